package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/inbox/idempotency"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// server is a store's server, which a test may kill and freeze.
type server struct {
	store                       idempotency.Store
	kill, start, freeze, resume func(context.Context) error
}

func ownPostgres(tb testing.TB) server {
	tb.Helper()
	s := testenv.OwnPostgres(tb, nil)
	pool := testdb.Pool(tb, s.URL("postgres"))
	if err := idempotency.CreatePostgres(tb.Context(), pool, ""); err != nil {
		tb.Fatal(err)
	}
	store, err := idempotency.NewPostgres(pool, "")
	if err != nil {
		tb.Fatal(err)
	}
	return server{store, s.Kill, s.Start, s.Pause, s.Resume}
}

// ownRedis loses everything when it is killed: it saves nothing in so short a time.
func ownRedis(tb testing.TB) server {
	tb.Helper()
	s := testenv.OwnRedis(tb)
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = client.Close() })
	store, err := idempotency.NewRedis(scriptsOf(client), "")
	if err != nil {
		tb.Fatal(err)
	}
	return server{store, s.Kill, s.Start, s.Pause, s.Resume}
}

// TestServerDies while a handler runs: its answer is stored all the same.
func TestServerDies(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB) server{"postgres": ownPostgres, "redis": ownRedis} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			var runs atomic.Int64
			h := wrap(t, idempotency.Options{Store: s.store, Lease: time.Hour, StoreTimeout: patience}, func(w http.ResponseWriter, r *http.Request) {
				if err := s.kill(r.Context()); err != nil {
					t.Error(err)
				}
				if err := s.start(r.Context()); err != nil {
					t.Error(err)
				}
				w.WriteHeader(http.StatusCreated)
				_, _ = fmt.Fprint(w, "run ", runs.Add(1))
			})
			for i := range 2 {
				rec, _ := do(h, request("k", ""))
				got{rec}.wants(t, "order", http.StatusCreated, "run 1", i == 1)
			}
		})
	}
}

// TestServerHangs: the client gets an error, no handler runs, and when the server
// continues, the requests in its sockets hold the key for a lease at most.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB) server{"postgres": ownPostgres, "redis": ownRedis} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			var runs atomic.Int64
			// Long enough for a busy machine.
			h := wrap(t, idempotency.Options{Store: s.store, Lease: 8 * time.Second, StoreTimeout: 4 * time.Second}, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = fmt.Fprint(w, "run ", runs.Add(1))
			})
			rec, _ := do(h, request("warm", ""))
			got{rec}.wants(t, "before", http.StatusOK, "run 1", false)
			if err := s.freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			rec, _ = do(h, request("k", ""))
			got{rec}.wants(t, "frozen", http.StatusServiceUnavailable, "", false)
			if err := s.resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			end, tick := time.Now().Add(patience), time.NewTicker(50*time.Millisecond)
			defer tick.Stop()
			for ; time.Now().Before(end); <-tick.C {
				if rec, _ = do(h, request("k", "")); rec.Code == http.StatusOK {
					break
				}
			}
			got{rec}.wants(t, "afterwards", http.StatusOK, "run 2", false)
			rec, _ = do(h, request("k", ""))
			got{rec}.wants(t, "again", http.StatusOK, "run 2", true)
		})
	}
}
