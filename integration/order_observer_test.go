package integration

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// orderAttempts is the number of failures that make a dead letter in tests of the order.
const orderAttempts = 3

// fate is a destination's treatment of an event; the same each time.
type fate struct {
	fails     int // attempts that fail
	permanent bool
	slow      time.Duration
}

func (f fate) dies() bool { return f.permanent || f.fails >= orderAttempts }

// orderDestination is a destination that keeps order.
type orderDestination struct {
	name string
	fate func(seed uint64, id int64) fate
	down func(since time.Duration) bool // nil: never
	// blocks means that a dead letter holds back the later events of its aggregate,
	// until it is replayed or discarded.
	blocks bool
}

// draw returns a number that is the same for the same event.
func draw(seed uint64, name string, id int64) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, seed, name, id)
	x := h.Sum64()
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>32
}

func orderDestinations() []orderDestination {
	return []orderDestination{
		// Fast, and rarely refuses an event.
		{name: "fast", fate: func(seed uint64, id int64) fate {
			switch x := draw(seed, "fast", id) % 1000; {
			case x < 3:
				return fate{permanent: true}
			case x < 10:
				return fate{fails: 1}
			case x < 14: // beyond the lock budget
				return fate{slow: 150 * time.Millisecond}
			}
			return fate{}
		}},
		// Slow, moody and often down.
		{name: "slow", fate: func(seed uint64, id int64) fate {
			x := draw(seed, "slow", id)
			f := fate{slow: time.Duration(x>>32%8) * time.Millisecond}
			switch x %= 100; {
			case x < 2:
				f.permanent = true
			case x < 8:
				f.fails = 1 + int(x)%orderAttempts
			case x < 9:
				f.slow = 300 * time.Millisecond
			}
			return f
		}, down: func(since time.Duration) bool { return since%(1500*time.Millisecond) < 150*time.Millisecond }},
		// A batch may have several events of an aggregate.
		{name: "stream", fate: func(seed uint64, id int64) fate {
			switch x := draw(seed, "stream", id) % 200; {
			case x < 2:
				return fate{permanent: true}
			case x < 6:
				return fate{fails: 1}
			}
			return fate{}
		}, down: func(since time.Duration) bool { return since%(2300*time.Millisecond) < 80*time.Millisecond }},
		// An event that it refuses needs an operator, and the rest waits for that.
		{name: "strict", fate: func(seed uint64, id int64) fate {
			switch x := draw(seed, "strict", id) % 200; {
			case x < 3:
				return fate{permanent: true}
			case x < 8:
				return fate{fails: 1 + int(x)%orderAttempts}
			case x < 9:
				return fate{slow: 150 * time.Millisecond}
			}
			return fate{}
		}, down: func(since time.Duration) bool { return since%(1900*time.Millisecond) < 100*time.Millisecond }, blocks: true},
		// Often delayed, often failed and slowly retried: many events come up meanwhile.
		{name: "late", fate: func(seed uint64, id int64) fate {
			if draw(seed, "late", id)%2 == 0 {
				return fate{fails: 1}
			}
			return fate{}
		}, down: func(since time.Duration) bool { return since%(2100*time.Millisecond) < 80*time.Millisecond }},
		// All its events are in one line.
		{name: "total", fate: func(seed uint64, id int64) fate {
			switch x := draw(seed, "total", id) % 200; {
			case x < 1:
				return fate{permanent: true}
			case x < 3:
				return fate{fails: 1 + int(x)%orderAttempts}
			}
			return fate{}
		}, down: func(since time.Duration) bool { return since%(2500*time.Millisecond) < 60*time.Millisecond }},
	}
}

// sight is an attempt that a destination saw.
type sight struct {
	at    time.Duration
	dest  string
	id    int64
	what  string
	relay string
}

// orderObserver is all destinations in one: it decides their answers, and records
// their attempts, in the order in which they see them.
type orderObserver struct {
	seed  uint64
	begin time.Time
	dests map[string]orderDestination

	mu     sync.Mutex
	sights []sight
	fixed  map[int64]bool // at the destinations that block

	dealt int // letters that were replayed or discarded; the operator's until it has stopped
}

func newOrderObserver(seed uint64) *orderObserver {
	o := &orderObserver{seed: seed, begin: time.Now(), dests: make(map[string]orderDestination), fixed: make(map[int64]bool)}
	for _, d := range orderDestinations() {
		o.dests[d.name] = d
	}
	return o
}

func (o *orderObserver) see(relay, dest string, id int64, what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sights = append(o.sights, sight{time.Since(o.begin), dest, id, what, relay})
}

// deliver is one attempt. It records the answer before it sends it: other events may continue after that moment, even if
// the answer is lost.
func (o *orderObserver) deliver(ctx context.Context, relay, dest string, id int64, attempt int) error {
	d := o.dests[dest]
	o.see(relay, dest, id, "begin")
	f := d.fate(o.seed, id)
	if o.isFixed(dest, id) {
		f = fate{}
	}
	if f.slow > 0 {
		timer := time.NewTimer(f.slow)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch {
	case d.down != nil && d.down(time.Since(o.begin)):
		return delivery.Unavailable(errors.New("down"))
	case f.permanent:
		o.see(relay, dest, id, "dead")
		return delivery.Permanent(errors.New("rejected"))
	case attempt <= f.fails:
		if attempt >= orderAttempts {
			o.see(relay, dest, id, "dead")
		}
		return errors.New("failed")
	}
	o.see(relay, dest, id, "ack")
	return nil
}

// orderHandler delivers to one destination of the observer.
type orderHandler func(ctx context.Context, dest string, e *delivery.Event) error

// streamHandler keeps the order within a batch.
type streamHandler struct{ one delivery.HandlerFunc }

func (s streamHandler) Deliver(ctx context.Context, e *delivery.Event) error { return s.one(ctx, e) }

func (s streamHandler) KeepsOrder() bool { return true }

func (s streamHandler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	errs := make([]error, len(events))
	broken := make(map[string]bool)
	for i, e := range events {
		if e.AggregateID != "" && broken[e.AggregateID] {
			errs[i] = errors.New("an earlier event has failed")
			continue
		}
		errs[i] = s.one(ctx, e)
		if errs[i] != nil && !delivery.IsPermanent(errs[i]) {
			broken[e.AggregateID] = true
		}
	}
	return errs
}

// handleInOrder registers all destinations with a relay.
func handleInOrder(t failer, r *notifyd.Relay, deliver orderHandler) {
	lane := delivery.Lane{MaxAttempts: orderAttempts, Timeout: 10 * time.Second, LongestPause: 500 * time.Millisecond, Backoff: delivery.Backoff{Initial: 20 * time.Millisecond, Max: 200 * time.Millisecond, Multiplier: 2}}
	with := func(change func(l *delivery.Lane)) delivery.Lane {
		changed := lane
		change(&changed)
		return changed
	}
	one := func(dest string) delivery.HandlerFunc {
		return func(ctx context.Context, e *delivery.Event) error { return deliver(ctx, dest, e) }
	}
	batch := delivery.BatchHandlerFunc(func(ctx context.Context, events []*delivery.Event) []error {
		errs := make([]error, len(events))
		for i, e := range events {
			errs[i] = one("slow")(ctx, e)
		}
		return errs
	})
	for _, err := range []error{
		r.Add(notifyd.Destination{Name: "fast", Handler: one("fast"), Lane: lane}),
		r.Add(notifyd.Destination{Name: "slow", Handler: batch, Lane: with(func(l *delivery.Lane) { l.Batch, l.Concurrency = 5, 4 })}),
		r.Add(notifyd.Destination{Name: "stream", Handler: streamHandler{one("stream")}, Lane: with(func(l *delivery.Lane) { l.Batch, l.Concurrency = 20, 2 })}),
		r.Add(notifyd.Destination{Name: "strict", Handler: one("strict"), Lane: with(func(l *delivery.Lane) { l.OnDead.Then = delivery.OnDeadBlock })}),
		r.Add(notifyd.Destination{Name: "late", Handler: one("late"), Lane: with(func(l *delivery.Lane) {
			l.Backoff.Initial, l.Backoff.Max, l.Backoff.Multiplier = 400*time.Millisecond, 400*time.Millisecond, 1
		})}),
		r.Add(notifyd.Destination{Name: "total", Handler: one("total"), Lane: with(func(l *delivery.Lane) { l.Order = delivery.OrderTotal })}), r.Route("total", "total"),
		r.Route("*", "fast", "slow"), r.Route("fast", "fast"), r.Route("stream", "stream", "fast"), r.Route("strict", "strict", "fast"),
		r.Route("late", "late", "fast"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// failer is the part of a test that handleInOrder needs; a victim has another
// implementation.
type failer interface{ Fatal(args ...any) }

// orderRoutes are the routes of handleInOrder.
func orderRoutes(eventType string) []string {
	switch eventType {
	case "fast":
		return []string{"fast"}
	case "stream":
		return []string{"stream", "fast"}
	case "strict":
		return []string{"strict", "fast"}
	case "late":
		return []string{"late", "fast"}
	case "total":
		return []string{"total"}
	}
	return []string{"fast", "slow"}
}

// committed is an event of the table in the end.
type committed struct {
	id        int64
	typ       string
	aggregate string
	written   time.Time // no later
	delayed   bool      // it takes its place when it is due
}

// committed returns all events, in the order of their ids.
func (e *env) committed() []committed {
	e.t.Helper()
	rows, err := e.pool.Query(e.ctx, `SELECT id, event_type, coalesce(aggregate_id, ''),
		created_at, available_at IS NOT NULL FROM outbox_events ORDER BY id`)
	if err != nil {
		e.t.Fatal(err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c committed, err error) {
		err = row.Scan(&c.id, &c.typ, &c.aggregate, &c.written, &c.delayed)
		return c, err
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return events
}

// orderRef is a delivery.
type orderRef struct {
	dest string
	id   int64
}

// orderLine identifies events that are kept in order.
type orderLine struct{ dest, aggregate string }

// lineOf returns the line of an event at a destination, and false if it is in none.
func lineOf(dest string, c committed) (at orderLine, is bool) {
	if dest == "total" {
		return orderLine{dest, "*"}, true
	}
	return orderLine{dest, c.aggregate}, c.aggregate != ""
}

// orderLines returns the events of each line in order, without delayed ones, and
// all of them by id.
func orderLines(events []committed) (lines map[orderLine][]int64, of map[int64]committed) {
	lines, of = make(map[orderLine][]int64), make(map[int64]committed, len(events))
	for _, c := range events {
		of[c.id] = c
		for _, dest := range orderRoutes(c.typ) {
			if at, is := lineOf(dest, c); is && !c.delayed {
				lines[at] = append(lines[at], c.id)
			}
		}
	}
	return lines, of
}

// checkCopies checks repeated events. A receiver that keeps the last event of
// each aggregate must end with the latest: after a copy, all events that had
// followed it before must follow again, except dead ones.
func (o *orderObserver) checkCopies(t *testing.T, e *env) {
	t.Helper()
	lines, of := orderLines(e.committed())
	last := make(map[orderLine]int64)
	back, wrong := 0, 0
	// skipped returns the first event of a line after one and before another that is not dead.
	skipped := func(at orderLine, after, before int64) (int64, bool) {
		i, _ := slices.BinarySearch(lines[at], after+1)
		for ; i < len(lines[at]) && lines[at][i] < before; i++ {
			if id := lines[at][i]; o.isFixed(at.dest, id) || !o.dests[at.dest].fate(o.seed, id).dies() {
				return id, true
			}
		}
		return 0, false
	}
	for n, s := range o.sights {
		at, is := lineOf(s.dest, of[s.id])
		if s.what != "begin" || !is || of[s.id].delayed {
			continue
		}
		if s.id < last[at] {
			back++
		}
		if id, is := skipped(at, last[at], s.id); is {
			if wrong++; wrong <= 5 {
				t.Errorf("%s of relay %s began with %d of %s at %v after %d, and not with %d; its sights of them:\n%s",
					s.dest, s.relay, s.id, at.aggregate, s.at, last[at], id, o.history(s.dest, n, last[at], id, s.id))
			}
		}
		last[at] = s.id
	}
	for at, id := range last {
		if next, is := skipped(at, id, math.MaxInt64); is {
			t.Errorf("%s was left with %d of %s, after %d", at.dest, id, at.aggregate, next)
		}
	}
	t.Logf("%d times a destination got an earlier event again, %d times the later ones did not follow", back, wrong)
}

// check compares the sights of the destinations with the tables: nothing lost,
// nothing left, nothing begun before its turn.
func (o *orderObserver) check(t *testing.T, e *env) {
	t.Helper()
	events := e.committed()
	lines, of := orderLines(events)
	begun, ended := make(map[orderRef]bool), make(map[orderRef]bool)
	again, wrong := 0, 0
	for n, s := range o.sights {
		r := orderRef{s.dest, s.id}
		c, known := of[s.id]
		at, kept := lineOf(s.dest, c)
		switch {
		case !known:
			t.Errorf("%s saw event %d, which is not in the table", s.dest, s.id)
			continue
		case s.what == "dead" && o.dests[s.dest].blocks: // it ends when it is replayed and accepted, or discarded
			continue
		case s.what != "begin":
			if ended[r] {
				again++
			}
			ended[r] = true
			continue
		case begun[r] || !kept:
			begun[r] = true
			continue
		}
		begun[r] = true
		for len(lines[at]) > 0 && ended[orderRef{s.dest, lines[at][0]}] {
			lines[at] = lines[at][1:]
		}
		if len(lines[at]) > 0 && lines[at][0] < s.id {
			if wrong++; wrong <= 5 {
				t.Errorf("%s of relay %s began with %d of %s at %v, before %d was done with; its sights of both:\n%s",
					s.dest, s.relay, s.id, c.aggregate, s.at, lines[at][0], o.history(s.dest, n, lines[at][0], s.id))
			}
		}
	}
	for _, c := range events {
		for _, dest := range orderRoutes(c.typ) {
			if !ended[orderRef{dest, c.id}] {
				t.Errorf("event %d was lost at %s", c.id, dest)
			}
		}
	}
	o.checkRows(t, e, events)
	t.Logf("%d dead letters were handled", o.dealt)
	t.Logf("%d events, %d sights, %d deliveries made again, %d out of order", len(events), len(o.sights), again, wrong)
}

// history returns a destination's sights of some events, and a few more.
func (o *orderObserver) history(dest string, upto int, ids ...int64) (text string) {
	for n, s := range o.sights[:min(upto+20, len(o.sights))] {
		if s.dest == dest && slices.Contains(ids, s.id) {
			text += fmt.Sprintf("%6d %v relay %s: %s %d\n", n, s.at, s.relay, s.what, s.id)
		}
	}
	return text
}

// checkRows checks the rows left in outbox_deliveries: the events that had to
// die, unless the operator has handled them.
func (o *orderObserver) checkRows(t *testing.T, e *env, events []committed) {
	t.Helper()
	rows, err := e.pool.Query(e.ctx, `SELECT event_id || '/' || destination || ' ' || state FROM outbox_deliveries`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, c := range events {
		for _, dest := range orderRoutes(c.typ) {
			if d := o.dests[dest]; !d.blocks && d.fate(o.seed, c.id).dies() {
				want = append(want, fmt.Sprintf("%d/%s dead", c.id, dest))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("outbox_deliveries has %d rows %.500v, want the %d dead letters %.500v", len(got), got, len(want), want)
	}
}
