package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/inbox/idempotency"
	"github.com/notifyd/notifyd/inbox/idempotency/internal/storetest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// scriptsOf runs scripts by a client.
func scriptsOf(client *redis.Client) idempotency.RedisScript {
	return func(ctx context.Context, script string, keys []string, args ...any) ([]string, error) {
		return redis.NewScript(script).Run(ctx, client, keys, args...).StringSlice()
	}
}

// openRedis returns a store, and a client to inspect its keys.
func openRedis(tb testing.TB) (*idempotency.Redis, *redis.Client, string) {
	tb.Helper()
	place := testenv.Redis(tb)
	o, err := redis.ParseURL(place.URL)
	if err != nil {
		tb.Fatal(err)
	}
	o.ContextTimeoutEnabled = true
	client := redis.NewClient(o)
	tb.Cleanup(func() { _ = client.Close() })
	s, err := idempotency.NewRedis(scriptsOf(client), place.Name+":")
	if err != nil {
		tb.Fatal(err)
	}
	return s, client, place.Name + ":"
}

func TestRedisStore(t *testing.T) {
	t.Parallel()
	s, _, _ := openRedis(t)
	storetest.Run(t, s)
}

// TestNothingStaysForEver: every key has a time to live in every state.
func TestNothingStaysForEver(t *testing.T) {
	t.Parallel()
	s, client, prefix := openRedis(t)
	c := idempotency.Claim{Key: "k", Token: "t", Fingerprint: "f"}
	ttl := func(step string, most time.Duration) {
		t.Helper()
		d, err := client.PTTL(t.Context(), prefix+c.Key).Result()
		if err != nil || d <= 0 || d > most {
			t.Errorf("%s: %s to live, %v: want up to %s", step, d, err, most)
		}
	}
	if _, err := s.Begin(t.Context(), c, time.Hour); err != nil {
		t.Fatal(err)
	}
	ttl("begin", time.Hour)
	if err := s.Settle(t.Context(), c, idempotency.Change{Action: idempotency.Renew, For: 2 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	ttl("renew", 2*time.Hour)
	if err := s.Settle(t.Context(), c, idempotency.Change{Action: idempotency.Finish, For: 3 * time.Hour, Answer: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	ttl("finish", 3*time.Hour)
	// A key with less than a millisecond left has expired, which is not an error.
	c.Key = "k2"
	if _, err := s.Begin(t.Context(), c, time.Nanosecond); err != nil {
		t.Error(err)
	}
}

func TestRedisMistakes(t *testing.T) {
	t.Parallel()
	if _, err := idempotency.NewRedis(nil, ""); err == nil {
		t.Error("no function")
	}
	s, client, prefix := openRedis(t)
	if err := client.Set(t.Context(), prefix+"k", "something else", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Begin(t.Context(), idempotency.Claim{Key: "k", Token: "t", Fingerprint: "f"}, time.Minute); !errors.Is(err, idempotency.ErrUnusable) {
		t.Errorf("a foreign key: %v", err)
	}
}
