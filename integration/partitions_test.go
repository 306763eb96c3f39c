package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// partition partitions the table by days; now is zero, or the first day.
func (e *env) partition(now time.Time) {
	e.t.Helper()
	if err := e.tryPartition(now); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) tryPartition(now time.Time) error {
	conn, err := e.pool.Acquire(e.ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return outboxsql.Partition(e.ctx, conn.Conn(), outboxsql.DefaultSchema, outboxsql.PartitionOptions{Now: now, LockPatience: patience})
}

// TestPartitions: with partitions of several days, the relay behaves as without:
// events are notified, swept, retried, given up, and refused if their key exists;
// and the relay creates days and drops them.
func TestPartitions(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			today := scan[time.Time](e, `SELECT now()`)
			name := func(days int) string { return "outbox_events_p" + today.AddDate(0, 0, days).UTC().Format("20060102") }
			e.partition(today.AddDate(0, 0, -5)) // up to two days ago
			h.answer = func(_ context.Context, ev *delivery.Event) error {
				switch {
				case ev.Type == "dead":
					return delivery.Permanent(errors.New("no"))
				case ev.Type == "retry" && h.times(ev.ID) < 3:
					return errors.New("not yet")
				}
				return nil
			}
			write := func(events ...outbox.Event) error {
				return pgx.BeginFunc(e.ctx, e.pool, func(tx pgx.Tx) error { return outbox.Write(e.ctx, tx, events...) })
			}
			aggregate := func(eventType, id string) outbox.Event {
				return outbox.Event{Type: eventType, AggregateType: "order", AggregateID: id, Payload: 1}
			}
			for n := range 4 { // some in each partition, before any relay runs
				e.exec(`SELECT outbox_partitions_extend($1, 0)`, today.AddDate(0, 0, n-5))
				if err := write(aggregate("retry", "a"), aggregate("a", "a"), outbox.Event{Type: "key", IdempotencyKey: fmt.Sprint(n), Payload: 1}); err != nil {
					t.Fatal(err)
				}
			}
			if err := write(outbox.Event{Type: "dead", Payload: 1}); err != nil {
				t.Fatal(err)
			}
			cfg := notifyd.Config{PollInterval: never, Retention: notifyd.Retention{Partitions: notifyd.PartitionsDaily, Keep: time.Millisecond, Batch: 10}}
			if err := write(outbox.Event{Type: "key", IdempotencyKey: "0", Payload: 1}); err == nil || !strings.Contains(err.Error(), "outbox_events_idempotency") {
				t.Errorf("a key of an earlier day: %v", err)
			}
			relay := e.relay(handleAll(t, h, delivery.Lane{Backoff: quick()}), cfg)
			e.untilDone()
			e.until("the day at hand", `SELECT count(*) >= 4 FROM outbox_partitions() WHERE day >= $1::date`, today.UTC().Format(time.DateOnly))
			e.until("the days before", `SELECT count(*) = 1 FROM outbox_partitions() WHERE day < $1::date`, today.UTC().Format(time.DateOnly))
			id := e.insert("a", "1")
			// The next day may have begun.
			e.untilState(id, "done")
			e.until("written today", `SELECT tableoid IN (to_regclass($2), to_regclass('outbox_events_p' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')))
				FROM outbox_events WHERE id = $1`, id, name(0))

			h.checkAggregate("a", 8, mode)

			// The dead letter has kept its partition; when it is discarded, the partition
			// is dropped.
			if left := scan[string](e, `SELECT string_agg(name, ' ') FROM outbox_partitions() WHERE day < $1::date`, today.UTC().Format(time.DateOnly)); left != name(-2) {
				t.Errorf("left is %s, want %s", left, name(-2))
			}
			if err := relay.end(); err != nil {
				t.Fatal(err)
			}
			// A relay that begins when all is settled finds the dead letter as the only reason.
			relay = e.relay(handleAll(t, h, delivery.Lane{}), cfg)
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for end := time.Now().Add(2 * time.Minute); !strings.Contains(relay.log.text(), "has a delivery that waits or is dead"); <-tick.C {
				if time.Now().After(end) {
					t.Fatal("the log does not say why a partition is kept")
				}
			}
			if err := relay.end(); err != nil {
				t.Fatal(err)
			}
			e.exec(`DELETE FROM outbox_deliveries`)
			e.relay(handleAll(t, h, delivery.Lane{}), cfg)
			e.until("the last of the days before", `SELECT count(*) = 0 FROM outbox_partitions() WHERE day < $1::date`, today.UTC().Format(time.DateOnly))
			e.until("their keys", `SELECT count(*) = 0 FROM outbox_keys`)
		})
	}
}

// checkAggregate checks the deliveries of an aggregate so far: n events, in a
// stream in the order of ids, through all retries.
func (r *recorder) checkAggregate(aggregate string, n int, mode outboxsql.Mode) {
	r.t.Helper()
	var got []int64
	for len(r.calls) > 0 {
		if ev := <-r.calls; ev.AggregateID == aggregate {
			got = append(got, ev.ID)
		}
	}
	sorted := slices.Clone(got)
	slices.Sort(sorted)
	if len(slices.Compact(slices.Clone(sorted))) != n || mode == outboxsql.ModeStream && !slices.Equal(got, sorted) {
		r.t.Errorf("the aggregate got %v", got)
	}
}

// TestPartitionWhileRunning: a table with events of every state is partitioned
// while two relays and writers run. Nothing is lost, nothing is delivered twice,
// no write fails, and a stream keeps its order.
func TestPartitionWhileRunning(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnv(t), newRecorder(t)
			var waiting atomic.Int64 // of the events written while the relays run
			h.answer = func(_ context.Context, ev *delivery.Event) error {
				if ev.Type == "dead" {
					return delivery.Permanent(errors.New("no"))
				}
				if strings.HasPrefix(ev.Type, "live") {
					waiting.Add(-1)
				}
				return nil
			}
			e.exec(`INSERT INTO outbox_events (event_type, payload, state, processed_at, idempotency_key)
				SELECT 'done', '1', 'done', now(), 'old' || i FROM generate_series(1, 7000) i`)
			e.become(mode) // the stream begins behind the events that the queue has done
			e.exec(`INSERT INTO outbox_events (event_type, payload, available_at) SELECT 'delayed', '1', now() + interval '1 second' FROM generate_series(1, 100)`)
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'dead', '1' FROM generate_series(1, 10)`)
			e.exec(`INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id) SELECT 'fresh', '1', 'a', (i % 50)::text FROM generate_series(1, 5000) i`)
			first, second := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{Batch: 50}), e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{Batch: 50})
			e.partitionUnderLoad(&waiting)
			e.untilDone()
			e.checkPartitioned(h, first, second)
		})
	}
}

// partitionUnderLoad partitions the table while three writers write.
func (e *env) partitionUnderLoad(waiting *atomic.Int64) {
	e.t.Helper()
	ctx, stop := context.WithCancel(e.ctx)
	defer stop()
	var writers sync.WaitGroup
	failures := make(chan error, 3)
	for w := range 3 {
		writers.Go(func() {
			if err := e.writeOn(ctx, w, waiting); err != nil && ctx.Err() == nil {
				failures <- err
			}
		})
	}
	written := `SELECT count(*) > $1 FROM outbox_events WHERE event_type LIKE 'live%'`
	e.until("some are written", written, 200)
	if err := e.tryPartition(time.Time{}); err != nil {
		e.t.Error(err)
	}
	e.until("some are written afterwards", `SELECT count(*) > 300 FROM outbox_events WHERE tableoid <> 'outbox_events_before'::regclass`)
	stop()
	writers.Wait()
	close(failures)
	for err := range failures {
		e.t.Errorf("a write failed: %v", err)
	}
}

// checkPartitioned checks the result.
func (e *env) checkPartitioned(h *recorder, relays ...*running) {
	e.t.Helper()
	rows, err := e.pool.Query(e.ctx, `SELECT id FROM outbox_events WHERE event_type <> 'done'`)
	if err != nil {
		e.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		e.t.Fatal(err)
	}
	lost := 0
	for _, id := range all {
		if h.times(id) == 0 {
			lost++
		}
	}
	e.t.Logf("%d events, %d of them in the old table, %d lost", len(all),
		scan[int](e, `SELECT count(*) FROM outbox_events_before WHERE event_type <> 'done'`), lost)
	if lost > 0 {
		e.t.Errorf("%d of %d events were lost", lost, len(all))
	}
	h.each(len(all), relays...)
	if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`); n != 10 {
		e.t.Errorf("%d dead letters, want 10", n)
	}
	if e.mode == outboxsql.ModeStream {
		h.checkAscending()
	}
	// Each writer's ids went up, across the change of the tables.
	if n := scan[int](e, `SELECT count(*) FROM (SELECT id, lag(id) OVER (PARTITION BY event_type ORDER BY (payload::text)::int) AS before
		FROM outbox_events WHERE event_type LIKE 'live%') AS w WHERE before >= id`); n != 0 {
		e.t.Errorf("%d ids are not above the one before", n)
	}
	// All keys are known: the earlier ones, and the ones written meanwhile.
	if n := scan[int](e, `SELECT count(*) FROM outbox_events e FULL JOIN outbox_keys k ON k.event_id = e.id AND k.event_type = e.event_type AND k.idempotency_key = e.idempotency_key
		WHERE e.idempotency_key IS NOT NULL AND k.event_id IS NULL OR e.id IS NULL`); n != 0 {
		e.t.Errorf("%d keys are not where they should be", n)
	}
}

// checkAscending requires that each aggregate's events came in the order of ids,
// except repeated ones.
func (r *recorder) checkAscending() {
	r.t.Helper()
	highest, seen, late := make(map[string]int64), make(map[int64]bool), 0
	for len(r.calls) > 0 {
		ev := <-r.calls
		if key := ev.AggregateType + "/" + ev.AggregateID; ev.AggregateID != "" && !seen[ev.ID] {
			if ev.ID < highest[key] {
				late++
			}
			highest[key] = max(highest[key], ev.ID)
		}
		seen[ev.ID] = true
	}
	if late > 0 {
		r.t.Errorf("%d of %d events came out of order", late, len(seen))
	}
}

// mostWaiting bounds the events of writeOn that wait for their delivery. Without
// a bound, three writers produce more than three keys can deliver in time.
const mostWaiting = 5000

// writeOn writes event after event until ctx ends: alone, in transactions that
// stay open for a while, and with keys. It pauses while too many wait.
func (e *env) writeOn(ctx context.Context, writer int, waiting *atomic.Int64) error {
	conn, err := pgx.Connect(ctx, e.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		for waiting.Load() > mostWaiting {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
		}
		event := outbox.Event{Type: fmt.Sprint("live", writer), AggregateType: "live", AggregateID: fmt.Sprint(writer), Payload: n}
		if n%3 == 0 {
			event.IdempotencyKey = fmt.Sprint(n)
		}
		// Not with ctx: if it ended during a commit, it would be unknown whether the
		// event exists.
		err := pgx.BeginFunc(context.WithoutCancel(ctx), conn, func(tx pgx.Tx) error {
			if err := outbox.Write(context.WithoutCancel(ctx), tx, event); err != nil {
				return err
			}
			if n%10 != 0 {
				return nil
			}
			_, err := tx.Exec(context.WithoutCancel(ctx), `SELECT pg_sleep(0.02)`)
			return err
		})
		if err != nil {
			return err
		}
		waiting.Add(1)
	}
	return nil
}
