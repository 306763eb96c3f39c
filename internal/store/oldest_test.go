package store

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"
)

func TestOldest(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	w := NewWatch(d.Connector)
	age := func(after int64) time.Duration {
		t.Helper()
		age, err := w.Oldest(t.Context(), BacklogOptions{After: after})
		if err != nil {
			t.Fatal(err)
		}
		return age.Round(time.Minute)
	}
	want := func(what string, want time.Duration) {
		t.Helper()
		if got := age(math.MinInt64); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	write := func(sql string, args ...any) {
		t.Helper()
		d.exec(sql, args...)
	}
	want("nothing there", 0)
	write(`INSERT INTO outbox_events (id, event_type, payload, created_at, state) VALUES (10, 'a', '1', now() - interval '9 h', 'done')`)
	want("only a delivered one", 0)
	write(`INSERT INTO outbox_events (id, event_type, payload, created_at, available_at) VALUES (11, 'a', '1', now() - interval '9 h', now() + interval '1 h')`)
	want("only one that is for later", 0)
	write(`INSERT INTO outbox_events (id, event_type, payload, created_at, state) VALUES
		(20, 'a', '1', now() - interval '8 h', 'deferred'), (21, 'a', '1', now() - interval '3 h', 'deferred'), (22, 'a', '1', now() - interval '2 h', 'deferred')`)
	write(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (20, 'x', 'a', 'dead'), (20, '', 'a', 'unrouted')`)
	want("a dead letter and an unrouted one", 0)
	write(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at) VALUES (22, 'x', 'a', 'retry', now())`)
	want("one that is due", 2*time.Hour)
	write(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at) VALUES (21, 'x', 'a', 'retry', 3, now() + interval '1 h')`)
	want("one that was tried", 3*time.Hour)
	write(`INSERT INTO outbox_events (id, event_type, payload, created_at, state) VALUES (19, 'a', '1', now() - interval '4 h', 'deferred')`)
	write(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at, error_class, last_error)
		VALUES (19, 'x', 'a', 'retry', now() + interval '1 h', 'destination', 'connection refused')`)
	want("one that an outage has put aside", 4*time.Hour)
	write(`DELETE FROM outbox_deliveries WHERE event_id = 19`)
	write(`DELETE FROM outbox_events WHERE id = 11`)
	write(`INSERT INTO outbox_events (id, event_type, payload, created_at) VALUES (30, 'a', '1', now() - interval '5 h')`)
	want("a fresh one", 5*time.Hour)
	if got := age(30); got != 3*time.Hour {
		t.Errorf("behind the fresh one: %v", got)
	}
}

// TestOldestAtOddTimes: times that cannot be subtracted, and events for later in front, neither fail
// the query nor make a nonsense of it.
func TestOldestAtOddTimes(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	w := NewWatch(d.Connector)
	want := func(what string, want time.Duration) {
		t.Helper()
		if got, err := w.Oldest(t.Context(), BacklogOptions{After: math.MinInt64}); err != nil || got.Round(time.Minute) != want {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
	}
	d.exec(`INSERT INTO outbox_events (id, event_type, payload, available_at) VALUES (1, 'a', '1', 'infinity'), (2, 'a', '1', now() + interval '1 h'), (3, 'a', '1', '294276-01-01')`)
	want("only events for later", 0)
	d.exec(`INSERT INTO outbox_events (id, event_type, payload, created_at) VALUES (10, 'a', '1', now() - interval '5 h')`)
	want("one behind them", 5*time.Hour)
	d.exec(`INSERT INTO outbox_events (id, event_type, payload, state, created_at, available_at) VALUES (4, 'a', '1', 'deferred', now(), 'infinity')`)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts) VALUES (4, 'x', 'a', 'retry', 1)`)
	want("a delivery of an event for never", 5*time.Hour)
	d.exec(`DELETE FROM outbox_deliveries`)
	for _, odd := range []string{"infinity", "294276-01-01"} {
		d.exec(`UPDATE outbox_events SET created_at = $1::text::timestamptz WHERE id = 10`, odd)
		want("written in "+odd, 0)
	}
	for _, odd := range []string{"-infinity", "4713-01-01 BC"} {
		d.exec(`UPDATE outbox_events SET created_at = $1::text::timestamptz WHERE id = 10`, odd)
		got, err := w.Oldest(t.Context(), BacklogOptions{After: math.MinInt64})
		if century := 100 * 365 * 24 * time.Hour; err != nil || got < century || got > century+30*24*time.Hour {
			t.Errorf("written in %s: %v, %v", odd, got, err)
		}
	}
}

// TestWatchingHarmsNobody: an operator has locked the tables, and a scrape is given up. The relay
// must still count as alive.
func TestWatchingHarmsNobody(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	o := options()
	k, w := d.relaySession(o), NewWatch(d.Connector)
	d.hold(k)
	d.exec(`BEGIN`)
	d.exec(`LOCK TABLE outbox_events`)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := w.Oldest(ctx, BacklogOptions{}); err == nil {
		t.Error("there was an answer")
	}
	d.exec(`ROLLBACK`)
	d.expect("alive", fmt.Sprintf(`SELECT (NOT pg_try_advisory_lock(%d))::text`, o.Owner), "true")
}
