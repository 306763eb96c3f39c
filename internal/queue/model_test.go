package queue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/sleep"
)

// The model test draws a plan first, runs it in a bubble of virtual time, and
// checks it afterwards.

// model runs a plan.
type model struct {
	t     *testing.T
	plan  *modelPlan
	db    *fakeDB
	begin time.Time

	mu       sync.Mutex // taken after the database's
	byID     map[int64]*modelEvent
	running  map[deliveries.Ref]int
	acks     map[deliveries.Ref]int
	calls    map[deliveries.Ref]int
	began    map[deliveries.Ref]time.Duration // the first call
	failed   map[deliveries.Ref]map[int]bool  // attempts that failed because of the event
	resolved map[deliveries.Ref]deed          // actions on dead letters
	moved    time.Time                        // when a delivery last started, or a dead letter was last handled
	relays   [modelRelays]*relay              // running now
	broken   []string
}

func (m *model) breaks(format string, args ...any) {
	m.broken = append(m.broken, fmt.Sprintf(format, args...))
}

func (m *model) handler(dest string) delivery.Handler {
	if m.plan.batches[dest] {
		return &modelBatch{m, dest}
	}
	return delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
		return m.deliver(ctx, deliveries.Ref{EventID: e.ID, Destination: dest}, e, m.db.isSettled(deliveries.Ref{EventID: e.ID, Destination: dest}))
	})
}

// deliver is one call, or a part of one. settled is whether the delivery was settled when it began.
func (m *model) deliver(ctx context.Context, ref deliveries.Ref, e *delivery.Event, settled bool) (err error) {
	class := delivery.ClassEvent
	s, n := m.begins(ref, e, settled)
	defer func() {
		p := recover()
		m.ends(ref, e, class, err, p != nil)
		if p != nil {
			panic(p)
		}
	}()
	sleep.For(ctx, s.slow)
	class, err = m.answer(ctx, ref.Destination, e, &s, n)
	return err
}

// begins checks the start of a call, and returns its script and its number.
func (m *model) begins(ref deliveries.Ref, e *delivery.Event, settled bool) (s script, n int) {
	m.db.set(func() {
		m.db.note("deliver %v, attempt %d, key %q", ref, e.Attempt, e.AggregateID)
		if time.Since(m.db.faulted) <= lateAnswer+m.db.roundTrip {
			m.db.excused++ // the relay may not have heard of the fault
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running[ref]++
	m.calls[ref]++
	m.moved = time.Now()
	n = m.calls[ref]
	if n == 1 {
		m.began[ref] = time.Since(m.begin)
	}
	if settled {
		m.breaks("%v is delivered again after its delivery was settled", ref)
	}
	m.check(ref, e)
	return m.byID[e.ID].scripts[ref.Destination], n
}

func (m *model) ends(ref deliveries.Ref, e *delivery.Event, class delivery.Class, err error, panics bool) {
	m.db.set(func() { m.db.note("end of %v: %v", ref, err) })
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running[ref]--
	switch {
	case err == nil && !panics:
		m.acks[ref]++
	case class == delivery.ClassEvent:
		if m.failed[ref] == nil {
			m.failed[ref] = make(map[int]bool)
		}
		m.failed[ref][e.Attempt] = true
	}
}

// answer returns the result of a call, and whose fault it is.
func (m *model) answer(ctx context.Context, dest string, e *delivery.Event, s *script, n int) (delivery.Class, error) {
	now := time.Since(m.begin)
	for _, o := range m.plan.outages {
		switch {
		case o.dest != dest || now < o.from || now >= o.to:
		case !o.throttle:
			return delivery.ClassDestination, delivery.Unavailable(errors.New("down"))
		case n%2 == 1:
			return delivery.ClassDestination, delivery.Throttled(o.wait, errors.New("too many"))
		}
	}
	switch {
	case ctx.Err() != nil:
		return delivery.ClassRelay, ctx.Err()
	case n <= s.throttled:
		return delivery.ClassDestination, delivery.Throttled(0, errors.New("too many of these"))
	case e.Attempt > s.fails || e.Replay > 0:
		return delivery.ClassEvent, nil
	case s.panics:
		panic("scripted")
	case s.permanent:
		return delivery.ClassEvent, delivery.Permanent(errors.New("rejected"))
	case s.wait > 0:
		return delivery.ClassEvent, delivery.RetryAfter(s.wait, errors.New("busy"))
	}
	return delivery.ClassEvent, errors.New("failed")
}

// check checks the beginning of a call.
func (m *model) check(ref deliveries.Ref, e *delivery.Event) {
	if e.Attempt < 1 || e.Attempt > modelAttempts || e.Attempt > 1 && !m.failed[ref][e.Attempt-1] {
		m.breaks("%v: attempt %d without a failure before it", ref, e.Attempt)
	}
	if e.Destination != ref.Destination {
		m.breaks("%v: called as %q", ref, e.Destination)
	}
}

// inflight returns how many deliveries a fault may cause to repeat.
func (m *model) inflight() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, k := range m.running {
		n += k
	}
	for ref := range m.acks {
		if !m.db.settled[ref] { // the database's lock is held
			n++
		}
	}
	return n
}

func (m *model) newRelay(owner int64) *relay {
	cfg := testConfig()
	cfg.Batch = m.plan.batch
	cfg.Claims, cfg.Lease, cfg.ShutdownTimeout = 2, time.Second, time.Second
	r := newRelay(m.t, m.db, owner, cfg)
	lane := testLane()
	lane.Concurrency, lane.MaxAttempts = 3, modelAttempts
	lane.Backoff = delivery.Backoff{Initial: 50 * time.Millisecond, Max: time.Second, Multiplier: 2}
	for _, dest := range []string{"a", "b", "c"} {
		lane.Priority, lane.Batch = m.plan.urgency[dest], modelBatchSize
		if m.plan.filters != nil {
			lane.Filter = func(*delivery.Candidate) (bool, error) {
				sleep.For(context.Background(), m.plan.filters[dest])
				return true, nil
			}
		}
		r.to(m.t, dest, m.handler(dest), lane)
	}
	for typ, dests := range modelRoutes {
		r.fanOut(m.t, typ, dests...)
	}
	return r
}

func (m *model) write(e *modelEvent) {
	sleep.For(context.Background(), e.at)
	w := m.db.begin()
	id := w.insertKeyed(e.typ, e.key, e.delay)
	m.mu.Lock()
	m.byID[id] = e
	m.mu.Unlock()
	if e.large {
		m.db.set(func() { m.db.events[id].payload = make([]byte, largePayload) })
	}
	sleep.For(context.Background(), e.commit)
	w.commit()
}

func (m *model) starts(i int, r *relay) {
	r.start()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.relays[i], m.moved = r, time.Now() // a relay that was cut off has spent a while on its last answers
}

// keep runs a relay, and stops and starts it again as the plan says.
func (m *model) keep(i int, until <-chan struct{}) {
	owner := int64(i + 1)
	r := m.newRelay(owner)
	m.starts(i, r)
	for _, s := range m.plan.stops {
		if s.relay != i {
			continue
		}
		sleep.For(context.Background(), s.at-time.Since(m.begin))
		if s.cut {
			m.cutOff(r)
		}
		if err := r.stop(); err != nil {
			m.t.Error(err)
		}
		sleep.For(context.Background(), s.pause)
		owner += 10
		r = m.newRelay(owner)
		m.starts(i, r)
	}
	<-until
	if err := r.stop(); err != nil {
		m.t.Error(err)
	}
}

// run runs the plan to its end and returns the violations.
func run(t *testing.T, plan *modelPlan) (broken []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &model{
			t: t, plan: plan, db: newFakeDB(), begin: time.Now(), byID: make(map[int64]*modelEvent),
			running: make(map[deliveries.Ref]int), calls: make(map[deliveries.Ref]int), began: make(map[deliveries.Ref]time.Duration), acks: make(map[deliveries.Ref]int), failed: make(map[deliveries.Ref]map[int]bool), resolved: make(map[deliveries.Ref]deed), moved: time.Now(),
		}
		m.db.inflight = m.inflight
		ops := make(map[string]int)
		m.db.faults = func(op string) faultKind {
			ops[op]++
			return plan.faults[fmt.Sprint(op, " ", ops[op])]
		}
		var writers, relays sync.WaitGroup
		for i := range plan.events {
			writers.Go(func() { m.write(&plan.events[i]) })
		}
		if plan.foreign > 0 {
			writers.Go(func() {
				sleep.For(context.Background(), plan.foreign)
				w := m.db.begin()
				if plan.lasts > 0 {
					sleep.For(context.Background(), plan.lasts)
					w.commit()
				}
			})
		}
		until := make(chan struct{})
		m.db.slow, m.db.late = plan.slow, plan.late
		for i := range plan.relays {
			relays.Go(func() { m.keep(i, until) })
		}
		for _, s := range plan.pauses {
			writers.Go(func() { m.pauseLane(s) })
		}
		if plan.personEvery > 0 {
			relays.Go(func() { m.person(until) })
		}
		writers.Wait()
		for begin := time.Now(); m.left() > 0 && time.Since(begin) < modelLimit && !m.stalls(begin); {
			sleep.For(context.Background(), 100*time.Millisecond)
		}
		close(until)
		relays.Wait()
		m.compare()
		if len(m.broken) > 0 && os.Getenv("NOTIFYD_TEST_HISTORY") != "" {
			_ = os.WriteFile(os.Getenv("NOTIFYD_TEST_HISTORY"), []byte(strings.Join(append(m.db.history, m.broken...), "\n")), 0o600)
		}
		broken = slices.Concat(m.broken, m.db.broken)
	})
	return broken
}

// compare compares the outcome of all events with the expected one.
func (m *model) compare() {
	again := 0
	for id, e := range m.byID {
		if state := m.db.events[id].state; state != "done" {
			m.breaks("event %d (%s) is %s in the end", id, e.typ, state)
		}
		for dest, s := range e.scripts {
			ref := deliveries.Ref{EventID: id, Destination: dest}
			row := m.db.rows[ref]
			dies := s.permanent || s.fails >= modelAttempts
			if dies && s.onDeath == discard && row == nil && m.acks[ref] == 0 && m.resolved[ref] == discard {
				continue
			}
			dies = dies && s.onDeath != replay
			switch {
			case dies && (row == nil || row.State != deliveries.Dead || m.acks[ref] > 0):
				m.breaks("%v should be a dead letter: %d acknowledged, row %+v", ref, m.acks[ref], row)
			case dies && row.Failures != min(s.fails, modelAttempts):
				m.breaks("%v died after %d failures of %d", ref, row.Failures, s.fails)
			case !dies && (row != nil || m.acks[ref] == 0):
				m.breaks("%v should be delivered: %d acknowledged, row %+v", ref, m.acks[ref], row)
			}
			again += max(0, m.acks[ref]-1)
		}
	}
	if again > m.db.excused {
		m.breaks("%d duplicates, the faults explain %d", again, m.db.excused)
	}
}

func TestModelHard(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	rapid.Check(t, func(rt *rapid.T) {
		if broken := run(t, drawHard(rt)); len(broken) > 0 {
			rt.Fatalf("%d violations:\n%s", len(broken), strings.Join(broken[:min(len(broken), 40)], "\n"))
		}
	})
}

func TestModelDense(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	rapid.Check(t, func(rt *rapid.T) {
		if broken := run(t, drawDense(rt)); len(broken) > 0 {
			rt.Fatalf("%d violations:\n%s", len(broken), strings.Join(broken[:min(len(broken), 40)], "\n"))
		}
	})
}

func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		if broken := run(t, drawPlan(rt)); len(broken) > 0 {
			rt.Fatalf("%d violations:\n%s", len(broken), strings.Join(broken[:min(len(broken), 40)], "\n"))
		}
	})
}
