package relaytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// totalRun is one destination of a stream, in one order or another.
type totalRun struct {
	t     *testing.T
	pool  *pgxpool.Pool
	route string

	mu    sync.Mutex
	tries []int64
	fails map[int64]error
	more  chan struct{} // capacity 1
	gates map[int64]chan struct{}
	relay *notifyd.Relay
}

func newTotalRun(t *testing.T) *totalRun {
	t.Helper()
	return &totalRun{t: t, pool: streamPool(t), route: "*", fails: make(map[int64]error), more: make(chan struct{}, 1)}
}

func (r *totalRun) Deliver(ctx context.Context, e *delivery.Event) error {
	r.mu.Lock()
	gate := r.gates[e.ID]
	r.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries = append(r.tries, e.ID)
	select {
	case r.more <- struct{}{}:
	default:
	}
	return r.fails[e.ID]
}

// start starts a relay, and returns how to stop it.
func (r *totalRun) start(lane delivery.Lane, change ...func(*notifyd.Config)) (stop func()) {
	r.t.Helper()
	cfg := notifyd.Config{Logger: slog.New(slog.NewTextHandler(r.t.Output(), nil)), PollInterval: 100 * time.Millisecond}
	for _, f := range change {
		f(&cfg)
	}
	relay, err := notifyd.New(r.pool, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := relay.Handle(r.route, notifyd.Destination{Name: "orders", Handler: r, Lane: lane}); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	r.relay = relay
	select {
	case <-relay.Ready():
	case err := <-done:
		r.t.Fatal(err)
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
}

// insert writes events of n aggregates, one each.
func (r *totalRun) insert(n int) {
	r.t.Helper()
	testdb.Exec(r.t, r.pool, fmt.Sprintf(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'a', 'a', nullif(g %% 7, 0)::text, '{}' FROM generate_series(1, %d) AS g`, n))
}

// until waits until the tries are as wanted, and returns them.
func (r *totalRun) until(what string, is func(tries []int64) bool) []int64 {
	r.t.Helper()
	for timeout := time.After(settleWithin); ; {
		r.mu.Lock()
		tries := slices.Clone(r.tries)
		r.mu.Unlock()
		if is(tries) {
			return tries
		}
		select {
		case <-r.more:
		case <-timeout:
			r.t.Fatalf("never: %s; %d tries, the last %v", what, len(tries), tries[max(0, len(tries)-10):])
		}
	}
}

// heal lets an event succeed.
func (r *totalRun) heal(id int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.fails, id)
}

func (r *totalRun) rows() (all string) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), `SELECT coalesce(string_agg(format('%s %s %s', event_id, state, coalesce(ordering_key, '-')), ', ' ORDER BY event_id), '')
		FROM outbox_deliveries`).Scan(&all); err != nil {
		r.t.Fatal(err)
	}
	return all
}

func ascending(from, to int64) (ids []int64) {
	for id := from; id <= to; id++ {
		ids = append(ids, id)
	}
	return ids
}

// quick is a backoff between attempts that does not hold up a test.
func quick() delivery.Backoff {
	return delivery.Backoff{Initial: 2 * time.Millisecond, Max: 4 * time.Millisecond, Multiplier: 1}
}

// TestTotalHoldsAll: one failure holds back a whole backlog of other aggregates, across a restart, and
// only its own event becomes a row.
func TestTotalHoldsAll(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	const events, bad = 20_000, 700
	r.fails[bad] = errors.New("not yet")
	r.insert(events)
	lane := delivery.Lane{Order: delivery.OrderTotal, Backoff: quick(), MaxAttempts: 1_000_000, Concurrency: 4}
	tried := func(n int) func([]int64) bool {
		return func(tries []int64) bool { return len(tries) >= bad-1+n && tries[len(tries)-1] == bad }
	}
	stop := r.start(lane)
	r.until("it is tried again and again", tried(20))
	if rows := r.rows(); rows != "700 retry *" {
		t.Errorf("rows: %s", rows)
	}
	stop()
	stop = r.start(lane)
	n := len(r.until("it is tried again after the restart", tried(40)))
	r.heal(bad)
	tries := r.until("all is delivered", func(tries []int64) bool { return tries[len(tries)-1] == events })
	stop()
	if got := tries[:bad-1]; !slices.Equal(got, ascending(1, bad-1)) {
		t.Errorf("before the failure: %v", got)
	}
	for _, id := range tries[bad-1 : n] {
		if id != bad {
			t.Fatalf("%d is tried while %d fails", id, bad)
		}
	}
	rest := slices.DeleteFunc(slices.Clone(tries[n:]), func(id int64) bool { return id == bad })
	if !slices.Equal(rest, ascending(bad+1, events)) {
		t.Errorf("after the failure: %d tries, %v", len(rest), rest[:min(20, len(rest))])
	}
	if rows := r.rows(); rows != "" {
		t.Errorf("rows are left: %s", rows)
	}
}

// TestTotalBehindDeadLetter: after a dead letter the others continue. With on_dead: block they wait until it is replayed
// or discarded.
func TestTotalBehindDeadLetter(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(context.Context, *ops.Client) error{
		"goes on": nil,
		"replayed": func(ctx context.Context, s *ops.Client) error {
			_, err := s.ReplayDeadLetters(ctx, ops.DeadLetterFilter{All: true}, ops.BulkAction{})
			return err
		},
		"discarded": func(ctx context.Context, s *ops.Client) error {
			_, err := s.DiscardDeadLetters(ctx, ops.DeadLetterFilter{All: true}, ops.BulkAction{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTotalRun(t)
			r.fails[5] = delivery.Permanent(errors.New("never"))
			lane := delivery.Lane{Order: delivery.OrderTotal, Backoff: quick()}
			want := ascending(1, 1000)
			if free != nil {
				lane.OnDead.Then = delivery.OnDeadBlock
			}
			stop := r.start(lane)
			defer func() { stop() }()
			r.insert(1000)
			if free != nil {
				p := &simulation{t: t, pool: r.pool}
				p.eventually("it is dead", `SELECT count(*) = 1 FROM outbox_deliveries WHERE state = 'dead'`)
				stop()
				stop = r.start(lane) // ready although its line is held
				r.insert(1)
				want = append(want, 1001)
				if got := r.until("five are tried", func(tries []int64) bool { return len(tries) >= 5 }); len(got) != 5 {
					t.Errorf("behind the dead letter: %v", got)
				}
				r.heal(5)
				if err := free(t.Context(), r.relay.Ops()); err != nil {
					t.Fatal(err)
				}
				if name == "replayed" {
					want = slices.Insert(want, 5, 5)
				}
			}
			got := r.until("all is delivered", func(tries []int64) bool { return len(tries) >= len(want) })
			if !slices.Equal(got, want) {
				t.Errorf("%v", got[:20])
			}
		})
	}
}

// TestTotalAtSlowDestination: a destination that is slow is read no further than its line has room, and
// nothing becomes a row.
func TestTotalAtSlowDestination(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	r.insert(5000)
	gate := make(chan struct{})
	var mu sync.Mutex
	n := 0
	handler := delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
		mu.Lock()
		n++
		first := n <= 3
		mu.Unlock()
		if !first {
			select {
			case <-gate:
			case <-ctx.Done():
			}
		} else if _, err := r.pool.Exec(ctx, `SELECT pg_sleep(0.1)`); err != nil { // slow
			return err
		}
		return r.Deliver(ctx, e)
	})
	relay, err := notifyd.New(r.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Handle("*", notifyd.Destination{Name: "orders", Handler: handler, Lane: delivery.Lane{Order: delivery.OrderTotal}}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	r.until("three are delivered", func(tries []int64) bool { return len(tries) == 3 })
	close(gate)
	tries := r.until("all is delivered", func(tries []int64) bool { return len(tries) == 5000 })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !slices.Equal(tries, ascending(1, 5000)) || r.rows() != "" {
		t.Errorf("out of order, or rows: %s", r.rows())
	}
}

// TestTotalAndBack: a destination changes its order across restarts, and its stored deliveries follow.
func TestTotalAndBack(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	bad := errors.New("not yet")
	hour := delivery.Backoff{Initial: time.Hour, Max: time.Hour, Multiplier: 1}
	p := &simulation{t: t, pool: r.pool}
	r.fails[3], r.fails[7] = bad, bad // 7 has no aggregate
	stop := r.start(delivery.Lane{Backoff: hour})
	r.insert(21)
	p.eventually("the failures and what is behind them are rows", `SELECT count(*) = 4 FROM outbox_deliveries WHERE state IN ('retry', 'parked')`)
	stop()
	if rows := r.rows(); rows != "3 retry a/3, 7 retry -, 10 parked a/3, 17 parked a/3" {
		t.Fatalf("per aggregate: %s", rows)
	}
	before := len(r.until("all but the blocked are tried", func(tries []int64) bool { return len(tries) == 19 }))

	stop = r.start(delivery.Lane{Order: delivery.OrderTotal, Backoff: hour})
	r.insert(2)
	stop()
	if rows := r.rows(); rows != "3 retry a/3, 7 retry -, 10 parked a/3, 17 parked a/3" {
		t.Fatalf("in one order: %s", rows)
	}
	if got := r.until("", func([]int64) bool { return true }); len(got) != before {
		t.Errorf("behind a stored failure: %v", got[before:])
	}

	stop = r.start(delivery.Lane{Backoff: hour})
	if got := r.until("what was held is delivered", func(tries []int64) bool { return len(tries) == before+2 }); !slices.Contains(got[before:], 22) {
		t.Errorf("%v", got[before:])
	}
	stop()

	r.heal(3)
	r.heal(7)
	testdb.Exec(t, r.pool, `UPDATE outbox_deliveries SET available_at = now() WHERE state = 'retry'`)
	stop = r.start(delivery.Lane{Order: delivery.OrderTotal, Backoff: hour})
	r.insert(1)
	got := r.until("all is delivered", func(tries []int64) bool { return tries[len(tries)-1] == 24 })
	stop()
	if !slices.Equal(got[before+2:], []int64{3, 7, 10, 17, 24}) || r.rows() != "" {
		t.Errorf("%v, rows %s", got[before+2:], r.rows())
	}
}

// totalKeeper takes batches, and keeps the order of all their events.
type totalKeeper struct {
	*totalRun

	keeps   bool
	largest int
	calls   int
}

func (k *totalKeeper) KeepsOrder() bool { return k.keeps }

func (k *totalKeeper) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	k.mu.Lock()
	k.largest, k.calls = max(k.largest, len(events)), k.calls+1
	k.mu.Unlock()
	errs := make([]error, len(events))
	for i, e := range events {
		if errs[i] = k.Deliver(ctx, e); errs[i] == nil {
			continue
		}
		if !delivery.CallOf(ctx).TotalOrder {
			errs[i] = errors.New("the call does not say that it is of a total order")
		}
		for k := i + 1; k < len(events); k++ {
			errs[k] = errors.New("behind one that failed")
		}
		break
	}
	return errs
}

// TestTotalBatches: a handler that keeps order gets batches of all aggregates, and another one a single event. Events
// that wait after a failure in a call are not stored and do not count an attempt.
func TestTotalBatches(t *testing.T) {
	t.Parallel()
	for name, keeps := range map[string]bool{"keeper": true, "other": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTotalRun(t)
			k := &totalKeeper{totalRun: r, keeps: keeps}
			r.fails[120] = errors.New("not yet")
			r.insert(2000)
			relay, err := notifyd.New(r.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
			if err != nil {
				t.Fatal(err)
			}
			if err := relay.Handle("*", notifyd.Destination{Name: "orders", Handler: k, Lane: delivery.Lane{Order: delivery.OrderTotal, Backoff: quick(), MaxAttempts: 1_000_000}}); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- relay.Run(ctx) }()
			r.until("it fails", func(tries []int64) bool { return len(tries) > 125 })
			if rows := r.rows(); rows != "120 retry a/1" {
				t.Errorf("rows: %s", rows)
			}
			r.heal(120)
			tries := r.until("all is delivered", func(tries []int64) bool { return tries[len(tries)-1] == 2000 })
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if !slices.Equal(slices.Compact(tries), ascending(1, 2000)) {
				t.Error("out of order")
			}
			if k.mu.Lock(); keeps != (k.largest > 1) {
				t.Errorf("the largest of %d batches has %d events", k.calls, k.largest)
			}
			k.mu.Unlock()
		})
	}
}

// TestTotalTakesOpenOver: a destination is taken over in total order. Events in the memory of a relay that kept the order
// of aggregates arrive before the events that it had parked.
func TestTotalTakesOpenOver(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	r.insert(10)
	testdb.Exec(t, r.pool, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, ordering_key)
		VALUES (5, 'orders', 'a', 'parked', 0, 'a/5'), (6, 'orders', 'a', 'retry', 1, 'a/6')`)
	testdb.Exec(t, r.pool, `UPDATE outbox_mode SET origin_head = 8, origin_open = '{[1,5)}'`)
	stop := r.start(delivery.Lane{Order: delivery.OrderTotal})
	got := r.until("all is delivered", func(tries []int64) bool { return len(tries) >= 8 })
	stop()
	if !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6, 9, 10}) || r.rows() != "" {
		t.Errorf("%v, rows %s", got, r.rows())
	}
}

// TestTotalReplaysMany: dead letters that are replayed together are delivered one after the other, in the order of
// ids, although nothing has failed before them and each waits for the one before it.
func TestTotalReplaysMany(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	dead := []int64{5, 9, 14, 15}
	for _, id := range dead {
		r.fails[id] = delivery.Permanent(errors.New("never"))
	}
	stop := r.start(delivery.Lane{Order: delivery.OrderTotal})
	defer func() { stop() }()
	r.insert(20)
	p := &simulation{t: t, pool: r.pool}
	p.eventually("they are dead", `SELECT count(*) = 4 FROM outbox_deliveries WHERE state = 'dead'`)
	before := len(r.until("all are tried", func(tries []int64) bool { return len(tries) == 20 }))
	gate := make(chan struct{})
	r.mu.Lock()
	clear(r.fails)
	r.gates = map[int64]chan struct{}{5: gate}
	r.mu.Unlock()
	if _, err := r.relay.Ops().ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{}); err != nil {
		t.Fatal(err)
	}
	p.eventually("they wait for the first", `SELECT count(*) = 3 FROM outbox_deliveries WHERE state = 'parked'`)
	r.insert(1) // held, too, while they wait
	close(gate)
	got := r.until("all are delivered", func(tries []int64) bool { return len(tries) == before+5 })
	if want := slices.Concat(dead, []int64{21}); !slices.Equal(got[before:], want) {
		t.Errorf("%v, want %v", got[before:], want)
	}
}

// TestTotalAndNoAggregate: stored events without an aggregate are in the one line like any other. They come before
// the live ones that were written later, after a route was added as after a change from a queue.
func TestTotalAndNoAggregate(t *testing.T) {
	t.Parallel()
	const events = 300
	none := fmt.Sprintf(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '{}' FROM generate_series(1, %d)`, events)
	for name, store := range map[string]func(*totalRun){
		"a route was added": func(r *totalRun) {
			r.route = "b"
			stop := r.start(delivery.Lane{Order: delivery.OrderTotal})
			testdb.Exec(r.t, r.pool, none)
			p := &simulation{t: r.t, pool: r.pool}
			p.eventually("they have no route", fmt.Sprintf(`SELECT count(*) = %d FROM outbox_deliveries WHERE state = 'unrouted'`, events))
			stop()
			r.route = "*"
		},
		"a queue had too many ranges": func(r *totalRun) { // what a change of the mode leaves: see putAside
			testdb.Exec(r.t, r.pool, none)
			testdb.Exec(r.t, r.pool, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT id, '', event_type, 'retry' FROM outbox_events`)
			testdb.Exec(r.t, r.pool, fmt.Sprintf(`UPDATE outbox_mode SET origin_head = %d`, events))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTotalRun(t)
			store(r)
			testdb.Exec(t, r.pool, `INSERT INTO outbox_events (event_type, payload, available_at) SELECT 'a', '{}', now() + interval '1 hour'`) // is in no line before it is due
			r.insert(10)
			stop := r.start(delivery.Lane{Order: delivery.OrderTotal})
			got := r.until("all is delivered", func(tries []int64) bool { return len(tries) >= events+10 })
			stop()
			if want := append(ascending(1, events), ascending(events+2, events+11)...); !slices.Equal(got, want) {
				t.Errorf("out of order: the first live event is number %d", 1+slices.IndexFunc(got, func(id int64) bool { return id > events }))
			}
			if rows := r.rows(); rows != fmt.Sprintf("%d retry -", events+1) {
				t.Errorf("rows: %.200s", rows)
			}
		})
	}
}

// TestTotalDelayedTogether: delayed events, some of them without an aggregate, become due together while a total order runs: they
// go in the order of ids.
func TestTotalDelayedTogether(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	r.insert(28)
	for _, statement := range []string{
		`UPDATE outbox_events SET aggregate_id = NULL WHERE id <= 3`,
		`UPDATE outbox_events SET available_at = now() + interval '1 second'`,
		`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at) SELECT id, '', event_type, 'retry', available_at FROM outbox_events`,
		`UPDATE outbox_mode SET origin_head = 28, origin_open = '{}'`,
	} {
		testdb.Exec(t, r.pool, statement)
	}
	stop := r.start(delivery.Lane{Order: delivery.OrderTotal})
	got := r.until("all is delivered", func(tries []int64) bool { return len(tries) >= 28 })
	stop()
	if !slices.Equal(got, ascending(1, 28)) {
		t.Errorf("%v, rows %s", got, r.rows())
	}
}

// TestTotalDespiteDeadLetters: dead letters without an order, as of a former queue, delay nothing.
func TestTotalDespiteDeadLetters(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	r.insert(10)
	testdb.Exec(t, r.pool, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts) VALUES (2, 'orders', 'a', 'dead', 5)`)
	testdb.Exec(t, r.pool, `UPDATE outbox_mode SET origin_head = 5`)
	stop := r.start(delivery.Lane{Order: delivery.OrderTotal, OnDead: delivery.OnDead{Then: delivery.OnDeadBlock}})
	got := r.until("all is delivered", func(tries []int64) bool { return len(tries) >= 5 })
	stop()
	if !slices.Equal(got, ascending(6, 10)) {
		t.Errorf("%v", got)
	}
}

// TestTotalNoMore: events without an aggregate that a total order has held back wait for none of each other in the order of
// aggregates, and for no dead letter.
func TestTotalNoMore(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	r.insert(21)
	testdb.Exec(t, r.pool, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, ordering_key, error_class, last_error)
		VALUES (7, 'orders', 'a', 'dead', 1, '*', 'event', 'x'), (14, 'orders', 'a', 'parked', 0, '*', NULL, NULL), (21, 'orders', 'a', 'parked', 0, '*', NULL, NULL)`)
	testdb.Exec(t, r.pool, `UPDATE outbox_mode SET origin_head = 21, origin_open = '{}'`)
	stop := r.start(delivery.Lane{OnDead: delivery.OnDead{Then: delivery.OnDeadBlock}, Backoff: quick()})
	got := r.until("both are delivered", func(tries []int64) bool { return len(tries) >= 2 })
	stop()
	slices.Sort(got)
	if !slices.Equal(got, []int64{14, 21}) || r.rows() != "7 dead *" {
		t.Errorf("%v, rows %s", got, r.rows())
	}
}

// TestReplayedRowKeepsItsName: a row of a replay with the ids of the first time differs from the row of a live event by
// its name, even if a destination keeps no order: it does not expire.
func TestReplayedRowKeepsItsName(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	r.insert(5)
	testdb.Exec(t, r.pool, `UPDATE outbox_events SET created_at = now() - interval '1 day'`)
	testdb.Exec(t, r.pool, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, ordering_key) VALUES (3, 'orders', 'a', 'retry', 1, '#1#3')`)
	testdb.Exec(t, r.pool, `UPDATE outbox_mode SET origin_head = 5, origin_open = '{}'`)
	r.fails[3] = errors.New("not yet")
	stop := r.start(delivery.Lane{Order: delivery.OrderNone, Backoff: quick(), MaxAttempts: 1000, ExpiresAfter: time.Hour})
	r.until("it is tried again and again", func(tries []int64) bool { return len(tries) >= 5 })
	stop()
	if rows := r.rows(); rows != "3 retry #1#3" {
		t.Errorf("rows: %s", rows)
	}
}

// TestTotalTakesDueOver: events in the memory of the previous relay arrive before an event that has a higher id and is
// due: a delayed event, or one without a name. They also arrive before the events stored after it.
func TestTotalTakesDueOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rows, open string
		want       []int64
	}{
		"delayed":        {`(7, 'orders', 'a', 'retry', 0, NULL)`, "{[1,7)}", []int64{1, 2, 3, 4, 5, 6, 7, 9, 10}},
		"behind others":  {`(1, 'orders', 'a', 'retry', 1, 'a/1'), (7, 'orders', 'a', 'retry', 0, NULL)`, "{[2,7)}", []int64{1, 2, 3, 4, 5, 6, 7, 9, 10}},
		"before a queue": {`(5, 'orders', 'a', 'parked', 0, 'a/5'), (2, 'orders', 'a', 'retry', 1, NULL)`, "{[1,2)}", []int64{1, 2, 5, 9, 10}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTotalRun(t)
			r.insert(10)
			testdb.Exec(t, r.pool, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, ordering_key) VALUES `+c.rows)
			testdb.Exec(t, r.pool, `UPDATE outbox_mode SET origin_head = 8, origin_open = '`+c.open+`'`)
			stop := r.start(delivery.Lane{Order: delivery.OrderTotal})
			got := r.until("all is delivered", func(tries []int64) bool { return len(tries) >= len(c.want) })
			stop()
			if !slices.Equal(got, c.want) || r.rows() != "" {
				t.Errorf("%v, rows %s", got, r.rows())
			}
		})
	}
}

// TestTotalHandsOutAll: events that had no route, more than one page and few of them with an aggregate, come in the order of ids.
func TestTotalHandsOutAll(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	r.insert(5)
	r.route = "b"
	stop := r.start(delivery.Lane{Order: delivery.OrderTotal})
	testdb.Exec(t, r.pool, `INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id)
		SELECT 'a', '{}', 'a', CASE WHEN g > 1500 THEN '1' END FROM generate_series(1, 1510) AS g`)
	p := &simulation{t: t, pool: r.pool}
	p.eventually("they have no route", `SELECT count(*) = 1515 FROM outbox_deliveries WHERE state = 'unrouted'`)
	stop()
	r.route = "*"
	relay, err := notifyd.New(r.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Batch: 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Handle("*", notifyd.Destination{Name: "orders", Handler: r, Lane: delivery.Lane{Order: delivery.OrderTotal}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	got := r.until("all is delivered", func(tries []int64) bool { return len(tries) >= 1515 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !slices.Equal(got, ascending(1, 1515)) {
		t.Errorf("out of order: %v", got[:20])
	}
}

// begin begins a transaction that has written n events.
func (r *totalRun) begin(n int) pgx.Tx {
	r.t.Helper()
	tx, err := r.pool.Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(r.t.Context())) })
	r.write(tx, n)
	return tx
}

// write writes n events in a transaction.
func (r *totalRun) write(tx pgx.Tx, n int) {
	r.t.Helper()
	if _, err := tx.Exec(r.t.Context(), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'a', 'a', nullif(g % 7, 0)::text, '{}' FROM generate_series(1, $1::int) AS g`, n); err != nil {
		r.t.Fatal(err)
	}
}

// end commits a transaction, or rolls it back.
func (r *totalRun) end(tx pgx.Tx, commit bool) {
	r.t.Helper()
	end := tx.Rollback
	if commit {
		end = tx.Commit
	}
	if err := end(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// read waits until the relay has read up to an id, and returns the figures of its shard.
func (r *totalRun) read(upto int64) (at observe.PositionStats) {
	r.t.Helper()
	testenv.Await(r.t, fmt.Sprintf("the relay reads up to %d", upto), func() bool {
		for _, at = range r.relay.Stats().Positions {
			if at.Destination == "orders" && at.Head >= upto {
				return true
			}
		}
		return false
	})
	return at
}

// expect waits for len(want) tries, and compares them with want.
func (r *totalRun) expect(want []int64) {
	r.t.Helper()
	got := r.until(fmt.Sprintf("%d deliveries", len(want)), func(tries []int64) bool { return len(tries) >= len(want) })
	if !slices.Equal(got, want) {
		r.t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestTotalWaitsForOpenTransactions: an event waits until each transaction that has drawn a lower id has committed or rolled
// back.
func TestTotalWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprintf("commit %v", commit), func(t *testing.T) {
			t.Parallel()
			r := newTotalRun(t)
			defer r.start(delivery.Lane{Order: delivery.OrderTotal})()
			first := r.begin(2)
			r.insert(2)
			second := r.begin(1)
			r.insert(1)
			r.read(6)
			r.end(second, commit)
			r.insert(1)
			r.read(7)
			r.end(first, commit)
			if commit {
				r.expect(ascending(1, 7))
			} else {
				r.expect([]int64{3, 4, 6, 7})
			}
		})
	}
}

// TestTotalHoldsFewInMemory: while a transaction with a low id is open, the relay reads only some of the events behind it,
// however many of them fill gaps.
func TestTotalHoldsFewInMemory(t *testing.T) {
	t.Parallel()
	const batch, n = 20, 1000
	r := newTotalRun(t)
	defer r.start(delivery.Lane{Order: delivery.OrderTotal}, func(c *notifyd.Config) { c.Batch = batch })()
	first, second := r.begin(1), r.begin(1)
	for range n { // one turn each, so that no read finds all gaps as one range
		r.write(second, 1)
		r.write(first, 1)
	}
	r.insert(n)
	r.read(3)
	r.end(second, true)
	r.insert(1)
	at := r.read(3)
	if at.Open > 4*batch {
		t.Errorf("%d events are in memory", at.Open)
	}
	r.end(first, true)
	r.expect(ascending(1, 2+2*n+n+1))
}

// TestTotalWaitsQuietly: while many events wait for an open transaction, the relay reads as seldom as an idle one.
func TestTotalWaitsQuietly(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	defer r.start(delivery.Lane{Order: delivery.OrderTotal})()
	first := r.begin(1)
	r.insert(5000)
	r.read(1000)
	var before, after int64
	const transactions = `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`
	for _, n := range []*int64{&before, &after} {
		testdb.Exec(t, r.pool, `SELECT pg_sleep(2)`) // sessions report their transactions once per second
		*n = testdb.One[int64](t, r.pool, transactions)
	}
	if after-before > 1000 { // of thousands per second without a pause
		t.Errorf("%d transactions in two seconds", after-before)
	}
	r.end(first, true)
	r.expect(ascending(1, 5001))
}

// TestTotalTakesHeldOver: a relay that stops while events wait for a transaction has delivered none of them, and the next one
// delivers each once.
func TestTotalTakesHeldOver(t *testing.T) {
	t.Parallel()
	r := newTotalRun(t)
	stop := r.start(delivery.Lane{Order: delivery.OrderTotal})
	r.insert(1)
	first := r.begin(1)
	r.insert(3)
	r.read(5)
	stop()
	defer r.start(delivery.Lane{Order: delivery.OrderTotal})()
	r.read(5)
	r.end(first, true)
	r.expect(ascending(1, 5))
}

// TestTotalOfManyWriters: many writers write at once, and roll back now and then. The events arrive in the order of ids.
func TestTotalOfManyWriters(t *testing.T) {
	t.Parallel()
	const writers, transactions = 8, 60
	r := newTotalRun(t)
	defer r.start(delivery.Lane{Order: delivery.OrderTotal})()
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for n := range transactions {
				tx := r.begin(1 + n%3)
				r.write(tx, 1)
				r.end(tx, (w+n)%5 > 0)
			}
		})
	}
	all.Wait()
	var ids []int64
	if err := r.pool.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY id) FROM outbox_events`).Scan(&ids); err != nil {
		t.Fatal(err)
	}
	r.expect(ids)
}
