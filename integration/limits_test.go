package integration

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// limitRun is a destination with limits, at one relay or several.
type limitRun struct {
	t    *testing.T
	pool *pgxpool.Pool
	more chan struct{} // capacity 1

	mu    sync.Mutex
	calls []call
	deal  func(ctx context.Context, e *delivery.Event) error
}

// call is one call of the handler.
type call struct {
	id      int64
	key     string
	attempt int
	at      time.Time
}

// limitPatience allows for a busy machine.
const limitPatience = 4 * time.Minute

func newLimitRun(t *testing.T, stream bool) *limitRun {
	t.Helper()
	r := &limitRun{t: t, more: make(chan struct{}, 1)}
	mode := outboxsql.ModeQueue
	if stream {
		mode = outboxsql.ModeStream
	}
	pool, err := pgxpool.New(t.Context(), testdb.URL(t, testdb.Tables{Mode: mode}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r.pool = pool
	return r
}

func (r *limitRun) Deliver(ctx context.Context, e *delivery.Event) error {
	r.mu.Lock()
	r.calls = append(r.calls, call{e.ID, e.AggregateType, e.Attempt, time.Now()})
	deal := r.deal
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
	if deal != nil {
		return deal(ctx, e)
	}
	return nil
}

// start starts a relay, and returns how to stop it.
func (r *limitRun) start(d notifyd.Destination) (relay *notifyd.Relay, stop func()) {
	r.t.Helper()
	relay, err := notifyd.New(r.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(r.t.Output(), nil)), PollInterval: 100 * time.Millisecond})
	if err != nil {
		r.t.Fatal(err)
	}
	d.Name, d.Handler = "d", r
	if err := relay.Handle("*", d); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	select {
	case <-relay.Ready():
	case err := <-done:
		r.t.Fatal(err)
	}
	return relay, func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
}

// until waits until the calls are as wanted, and returns them.
func (r *limitRun) until(what string, is func(calls []call) bool) []call {
	r.t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for timeout := time.After(limitPatience); ; {
		r.mu.Lock()
		calls := slices.Clone(r.calls)
		r.mu.Unlock()
		if is(calls) {
			return calls
		}
		select {
		case <-r.more:
		case <-again.C:
		case <-timeout:
			r.t.Fatalf("never: %s; calls %v", what, calls)
		}
	}
}

// read reads one text from the tables.
func (r *limitRun) read(query string) (text string) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), query).Scan(&text); err != nil {
		r.t.Fatal(err)
	}
	return text
}

// insert writes events whose aggregate types are the keys, and whose aggregate ids are the same or given.
func (r *limitRun) insert(n int, key, id string) {
	r.t.Helper()
	testdb.Exec(r.t, r.pool, fmt.Sprintf(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'a', '%s', coalesce(nullif('%s', ''), g::text), '{}' FROM generate_series(1, %d) AS g`, key, id, n))
}

func count(n int) func([]call) bool { return func(calls []call) bool { return len(calls) >= n } }

// byAggregateType is a rate key.
func byAggregateType(c *delivery.Candidate) (string, error) { return c.AggregateType, nil }

// inBothModes runs a test on a queue and on a stream.
func inBothModes(t *testing.T, f func(t *testing.T, stream bool)) {
	t.Helper()
	for _, stream := range []bool{false, true} {
		t.Run(map[bool]string{false: "queue", true: "stream"}[stream], func(t *testing.T) {
			t.Parallel()
			f(t, stream)
		})
	}
}

// TestRateLimitOverRelays: two relays together deliver no more than the rate and the burst, nothing is lost, and no
// attempt is counted.
func TestRateLimitOverRelays(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, stream bool) {
		t.Helper()
		r := newLimitRun(t, stream)
		const rate, burst, n = 50, 10, 100
		limited := notifyd.Destination{Lane: delivery.Lane{RateLimit: delivery.Rate{Events: rate, Per: time.Second}, RateBurst: burst}}
		began := time.Now()
		_, stop := r.start(limited)
		_, stop2 := r.start(limited)
		r.insert(n, "k", "")
		calls := r.until("all", count(n))
		stop()
		stop2()
		if len(calls) != n {
			t.Errorf("%d calls, want %d", len(calls), n)
		}
		for i, c := range calls {
			if soonest := began.Add(time.Duration(i+1-burst) * time.Second / rate); c.at.Before(soonest) {
				t.Fatalf("call %d came %v too soon", i+1, soonest.Sub(c.at))
			}
			if c.attempt != 1 {
				t.Errorf("event %d came as attempt %d", c.id, c.attempt)
			}
		}
		if rows := r.read(`SELECT count(*)::text FROM outbox_deliveries`); rows != "0" {
			t.Error(rows, "rows are left")
		}
	})
}

// TestTakeOverRefillsNothing: when a relay ends, even by a kill of its sessions, the part of a day's limit that it has
// used stays used.
func TestTakeOverRefillsNothing(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, stream bool) {
		t.Helper()
		r := newLimitRun(t, stream)
		limited := notifyd.Destination{Lane: delivery.Lane{RateLimit: delivery.Rate{Events: 1, Per: 24 * time.Hour}, RateBurst: 3}}
		_, stop := r.start(limited)
		r.insert(5, "k", "")
		r.until("the burst", count(3))
		testdb.Exec(t, r.pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%'`)
		stop()
		relay, stop := r.start(limited)
		r.until("the limit is noticed", func([]call) bool { return relay.Stats().Destinations[0].RateLimited })
		stop()
		left := 0
		for _, c := range r.until("", count(0)) {
			left += c.attempt
		}
		// What was on its way as the sessions went may come twice: at the cost of others, not of the limit.
		if left != 3 {
			t.Errorf("%d calls, want 3", left)
		}
	})
}

// TestRateKeys: events of a key that has used up its rate wait, in rows that record the reason. Other keys continue. The
// order of the key's aggregates is kept.
func TestRateKeys(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, stream bool) {
		t.Helper()
		r := newLimitRun(t, stream)
		const waiting = `SELECT format('%s %s', count(*) FILTER (WHERE last_error = 'waits for its rate limit' AND attempts = 0), count(*)) FROM outbox_deliveries`
		slow, quick := delivery.Rate{Events: 1, Per: time.Hour}, delivery.Rate{Events: 100, Per: time.Second}
		_, stop := r.start(notifyd.Destination{Lane: delivery.Lane{RateLimit: slow, RateBurst: 2}, RateKey: byAggregateType})
		r.insert(4, "busy", "one")
		r.insert(4, "busy", "two")
		r.insert(2, "other", "one")
		calls := r.until("other keys", count(4))
		keys := make(map[string]int)
		for _, c := range calls {
			keys[c.key]++
		}
		if keys["busy"] != 2 || keys["other"] != 2 {
			t.Error(keys)
		}
		want := "6 6"
		if stream { // one is first in its line, or two are
			want = "2 6"
		}
		r.until("rows "+want+", and not "+r.read(waiting), func([]call) bool { return r.read(waiting) == want })
		stop()
		testdb.Exec(t, r.pool, `UPDATE outbox_deliveries SET available_at = now() WHERE state = 'retry'`)
		_, stop = r.start(notifyd.Destination{Lane: delivery.Lane{RateLimit: quick, RateBurst: 2}, RateKey: byAggregateType})
		calls = r.until("all", count(10))
		stop()
		last := make(map[bool]int64)
		for _, c := range calls {
			if c.attempt != 1 {
				t.Errorf("event %d came as attempt %d", c.id, c.attempt)
			}
			if line := c.id <= 4; stream && c.key == "busy" {
				if c.id <= last[line] {
					t.Errorf("event %d came after %d", c.id, last[line])
				}
				last[line] = c.id
			}
		}
	})
}

// TestExpiry: an event that is too old is not delivered, whatever it has waited for: the relay, its time, a retry, or a
// worker.
func TestExpiry(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, stream bool) {
		t.Helper()
		r := newLimitRun(t, stream)
		r.deal = func(ctx context.Context, e *delivery.Event) error {
			switch e.AggregateType {
			case "retry":
				return delivery.RetryAfter(5*time.Second, fmt.Errorf("again"))
			case "long":
				_, err := r.pool.Exec(ctx, `SELECT pg_sleep(5)`)
				return err
			}
			return nil
		}
		testdb.Exec(t, r.pool, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, created_at, available_at) VALUES
			('a', 'old', '1', '{}', now() - interval '1 hour', NULL), ('a', 'due', '2', '{}', now() - interval '1 hour', now() - interval '1 ms'),
			('a', 'overdue', '3', '{}', now() - interval '1 hour', now() - interval '1 minute')`)
		relay, stop := r.start(notifyd.Destination{Lane: delivery.Lane{ExpiresAfter: 4 * time.Second, Concurrency: 1}})
		r.until("the one that became available", count(1))
		r.insert(1, "retry", "")
		r.until("the one that fails", count(2))
		r.insert(1, "long", "")
		r.until("the long one", count(3))
		r.insert(1, "behind", "")
		r.until("the rest expires", func([]call) bool { return relay.Stats().Destinations[0].Expired == 4 })
		testdb.Exec(t, r.pool, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, available_at) VALUES ('a', 'later', '1', '{}', now() + interval '5 s')`)
		calls := r.until("one that is delayed for longer than that", count(4))
		stop()
		keys := make([]string, len(calls))
		for i, c := range calls {
			keys[i] = c.key
		}
		if got := strings.Join(keys, " "); got != "due retry long later" {
			t.Error(got)
		}
		if rows := r.read(`SELECT count(*)::text FROM outbox_deliveries`); rows != "0" {
			t.Error(rows, "rows are left")
		}
	})
}

// TestNotExpired: an event that is young enough is delivered. So is a retry, and an event whose available_at is before
// its insert.
func TestNotExpired(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, stream bool) {
		t.Helper()
		r := newLimitRun(t, stream)
		r.deal = func(_ context.Context, e *delivery.Event) error {
			if e.Attempt == 1 {
				return delivery.RetryAfter(time.Millisecond, fmt.Errorf("again"))
			}
			return nil
		}
		testdb.Exec(t, r.pool, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, available_at) VALUES
			('a', 'retry', '1', '{}', NULL), ('a', 'past', '2', '{}', now() - interval '2 hours')`)
		relay, stop := r.start(notifyd.Destination{Lane: delivery.Lane{ExpiresAfter: time.Hour}})
		r.until("both, twice", func(calls []call) bool { return len(calls) == 4 || relay.Stats().Destinations[0].Expired > 0 })
		stop()
		if expired := relay.Stats().Destinations[0].Expired; expired > 0 {
			t.Error(expired, "have expired")
		}
	})
}

// TestLimitsRefused: contradictory settings are refused, and settings that need a stream are refused with an error that
// names it.
func TestLimitsRefused(t *testing.T) {
	t.Parallel()
	r := newLimitRun(t, false)
	relay, err := notifyd.New(r.pool, notifyd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	rate := delivery.Rate{Events: 1, Per: time.Second}
	for want, d := range map[string]notifyd.Destination{
		"rate_key: has no effect without rate_limit": {RateKey: byAggregateType},
		"order: total lets nothing go past":          {RateKey: byAggregateType, Lane: delivery.Lane{RateLimit: rate, Order: delivery.OrderTotal}},
		"burst":                                      {Lane: delivery.Lane{RateLimit: rate, RateBurst: -1}},
		"more than one a microsecond":                {Lane: delivery.Lane{RateLimit: delivery.Rate{Events: 2, Per: time.Microsecond}}},
		"the least is 1ms":                           {Lane: delivery.Lane{ExpiresAfter: -time.Second}},
	} {
		d.Name, d.Handler = "x", delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })
		if err := relay.Add(d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// TestLimitedBehindAFailure: an event that waits as a row for the rate of its key does not go past one of its aggregate that fails
// when its turn comes.
func TestLimitedBehindAFailure(t *testing.T) {
	t.Parallel()
	const aggregates = 300
	r := newLimitRun(t, true)
	var mu sync.Mutex
	failed, acked := make(map[string]bool), make(map[string]int64)
	r.deal = func(_ context.Context, e *delivery.Event) error {
		mu.Lock()
		first := !failed[e.AggregateID]
		failed[e.AggregateID] = true
		mu.Unlock()
		if first {
			<-time.After(time.Duration(30+rand.IntN(60)) * time.Millisecond) // about as long as the second one waits
		}
		mu.Lock()
		defer mu.Unlock()
		if first {
			return delivery.RetryAfter(300*time.Millisecond, fmt.Errorf("not yet"))
		}
		if e.ID < acked[e.AggregateID] || acked[e.AggregateID] == 0 && e.ID > aggregates {
			t.Errorf("%d of %s comes after %d", e.ID, e.AggregateID, acked[e.AggregateID])
		}
		acked[e.AggregateID] = e.ID
		return nil
	}
	testdb.Exec(t, r.pool, fmt.Sprintf(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'a', 'k', g::text, '{}' FROM generate_series(1, 2) AS n, generate_series(1, %d) AS g ORDER BY n, g`, aggregates))
	_, stop := r.start(notifyd.Destination{
		Lane:    delivery.Lane{RateLimit: delivery.Rate{Events: 20, Per: time.Second}, RateBurst: 1, Concurrency: 32},
		RateKey: func(c *delivery.Candidate) (string, error) { return c.AggregateID, nil },
	})
	r.until("all", count(3*aggregates))
	stop()
}
