package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestFailoverUnderLoad kills the primary while events are written, and promotes
// its synchronous standby. All events of the table arrive, no others arrive, and
// a stream keeps its order.
func TestFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, primary, standby := newPair(t, mode)
			h := newRecorder(t)
			e.exec(`ALTER SYSTEM SET synchronous_standby_names = '*'`)
			e.exec(`SELECT pg_reload_conf()`)
			e.until("the standby synchronous", `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')`)
			url := either(standby, primary)
			e.through(url).relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})

			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			acknowledged := make([][]int64, 3)
			var writers sync.WaitGroup
			for w := range acknowledged {
				writers.Go(func() { acknowledged[w] = e.writeThrough(ctx, url, w) })
			}
			e.until("some are written", `SELECT count(*) > 500 FROM outbox_events`)
			next := e.on(standby)
			e.killAndPromote(primary, standby)
			before := scan[int](next, `SELECT count(*) FROM outbox_events`)
			next.until("some are written afterwards", `SELECT count(*) > $1 FROM outbox_events`, before+500)
			stop()
			writers.Wait()
			next.untilDone()

			all := scan[int](next, `SELECT count(*) FROM outbox_events`)
			copies := h.all(next, all)
			t.Logf("%d events, %d before the failover, %d copies", all, before, copies)
			if n := len(h.count); n != all {
				t.Errorf("%d events have arrived, and %d are in the table", n, all)
			}
			for w, ids := range acknowledged {
				if n := scan[int](next, `SELECT count(*) FROM unnest($1::bigint[]) AS a(id) WHERE NOT EXISTS (SELECT FROM outbox_events AS e WHERE e.id = a.id)`, ids); n > 0 {
					t.Errorf("%d events of writer %d were committed, and are gone", n, w)
				}
			}
			if mode == outboxsql.ModeStream {
				h.checkAscending()
			}
		})
	}
}

// writeThrough writes event after event on the server that accepts them, until
// ctx ends, and returns the ids of those whose commit was acknowledged.
func (e *env) writeThrough(ctx context.Context, url string, writer int) (ids []int64) {
	pool, err := pgxpool.New(ctx, url+"&target_session_attrs=read-write")
	if err != nil {
		e.t.Error(err)
		return nil
	}
	defer pool.Close()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		var id int64
		// Not with ctx: if it ended, it would be unknown whether the event exists.
		err := pool.QueryRow(context.WithoutCancel(ctx), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			VALUES ('n', 'writer', $1, '1') RETURNING id`, fmt.Sprint(writer, n%5)).Scan(&id)
		if err == nil {
			ids = append(ids, id)
		}
		select {
		case <-ctx.Done():
			return ids
		case <-tick.C:
		}
	}
}

// TestFailoverThatLosesTheTail: the promoted standby lacks the last events, which
// were delivered. Their ids are assigned again, and the new events with these ids
// arrive like all others: neither a relay's memory nor a position skips them.
func TestFailoverThatLosesTheTail(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, primary, standby := newPair(t, mode)
			h := newRecorder(t)
			e.through(either(standby, primary)).relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			e.insertOrders("kept", 300)
			e.untilDone()
			next := e.on(standby)
			next.untilFollowed(e)
			next.stopFollowing(e)
			lost := e.insertOrders("lost", 300)
			e.untilDone()
			e.killAndPromote(primary, standby)
			again := next.insertOrders("again", 600)
			next.untilDone()

			reused, came := make(map[int64]bool), make(map[int64]bool)
			for _, id := range lost {
				reused[id] = true
			}
			highest, late := make(map[string]int64), 0
			for len(h.calls) > 0 {
				ev := <-h.calls
				if ev.Type != "again" || came[ev.ID] {
					continue
				}
				came[ev.ID] = true
				if ev.ID < highest[ev.AggregateID] {
					late++
				}
				highest[ev.AggregateID] = ev.ID
			}
			twice, missed := 0, 0
			for _, id := range again {
				if reused[id] {
					twice++
				}
				if !came[id] {
					missed++
				}
			}
			t.Logf("%d of %d ids were assigned again", twice, len(lost))
			if twice == 0 {
				t.Error("no id was assigned again, which proves nothing")
			}
			if missed > 0 || len(came) != len(again) {
				t.Errorf("%d of %d events never came", missed, len(again))
			}
			if late > 0 && mode == outboxsql.ModeStream {
				t.Errorf("%d events came out of order", late)
			}
		})
	}
}

// TestFailoverFindsWhatHasNoRoute: the promoted standby lacks the last events, and a call of their destination still runs
// when the relay continues there. New events without a route get the ids of the lost ones. The relay finds them.
func TestFailoverFindsWhatHasNoRoute(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	e, primary, standby := newPair(t, outboxsql.ModeStream)
	answer := make(chan struct{})
	defer close(answer)
	e.through(either(standby, primary)).relay(func(r *notifyd.Relay) {
		err := r.Add(notifyd.Destination{Name: "all", Handler: delivery.HandlerFunc(func(ctx context.Context, ev *delivery.Event) error {
			if ev.Type == "slow" {
				select {
				case <-answer:
				case <-ctx.Done():
				}
			}
			return nil
		})})
		for _, eventType := range []string{"kept", "lost", "slow"} {
			err = errors.Join(err, r.Route(eventType, "all"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}, notifyd.Config{})
	e.insertOrders("kept", 300)
	e.untilDone()
	next := e.on(standby)
	next.untilFollowed(e)
	next.stopFollowing(e)
	e.insertOrders("lost", 300)
	slow := e.insert("slow", "1")
	e.until("all is read", `SELECT bool_and(head >= $1) FROM outbox_positions`, slow)
	e.killAndPromote(primary, standby)
	stray := next.insertOrders("stray", 600)
	if !slices.Contains(stray, slow) {
		t.Error("no id was assigned again, which proves nothing")
	}
	next.until("all events without a route are found", `SELECT count(*) = $1 FROM outbox_deliveries WHERE state = 'unrouted'`, len(stray))
}

// stopFollowing ends the replication to a standby.
func (e *env) stopFollowing(primary *env) {
	e.t.Helper()
	e.exec(`ALTER SYSTEM SET primary_conninfo = ''`)
	e.exec(`SELECT pg_reload_conf()`)
	primary.until("the end of replication", `SELECT NOT EXISTS (SELECT FROM pg_stat_replication)`)
}

// insertOrders writes events of ten aggregates, one statement for each hundred.
func (e *env) insertOrders(eventType string, n int) (ids []int64) {
	e.t.Helper()
	for ; n > 0; n -= 100 {
		rows, err := e.pool.Query(e.ctx, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT $1, 'order', (i % 10)::text, '1' FROM generate_series(1, 100) AS i RETURNING id`, eventType)
		if err != nil {
			e.t.Fatal(err)
		}
		some, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			e.t.Fatal(err)
		}
		ids = append(ids, some...)
	}
	return ids
}

// TestStartsOnAStandby: a relay that has only the address of a standby logs that,
// and begins when the standby is promoted.
func TestStartsOnAStandby(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, primary, standby := newPair(t, mode)
			h, next := newRecorder(t), e.on(standby)
			id := e.insert("n", "1")
			next.untilFollowed(e)
			r := next.start(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			testenv.Await(t, "the refusal", func() bool {
				return r.Stats().DatabaseDown && strings.Contains(r.log.text(), "the server is a standby")
			})
			e.killAndPromote(primary, standby)
			r.waitReady()
			if got := h.next(); got.ID != id {
				t.Errorf("got event %d, want %d", got.ID, id)
			}
			id = next.insert("n", "1")
			next.untilState(id, "done")
			if n := h.times(id); n != 1 {
				t.Errorf("the event after the promotion came %d times", n)
			}
		})
	}
}
