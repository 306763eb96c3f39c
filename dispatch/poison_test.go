package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// kind is what happens to an event at its destination.
type kind string

const (
	good    kind = "good"
	drops   kind = "drops"   // the connection is lost, or refused, or the answer is 503, 421 or 401
	lingers kind = "lingers" // the same after a while
	hangs   kind = "hangs"   // until the timeout of the lane
	fails   kind = "fails"   // whatever it is, no error blames the destination
	refuses kind = "refuses" // an answer that every event might get
	exits   kind = "ends its goroutine"
	stays   kind = "does not return"      // for long after the end of its context
	kills   kind = "kills the whole call" // of a batch
)

// poisoned is a destination that some events harm.
type poisoned struct {
	cfg      LaneConfig
	form     string // one, batch
	kinds    []kind // of the events, in the order of ids
	keys     int    // aggregates of the good events; 0: none has any
	interval time.Duration
	answer   func(e *delivery.Event) error // before anything else; nil error: as the kind says
	typed    bool                          // bad events have a type of their own
	onlyGood bool                          // stop once the good events are delivered
	reads    int                           // events of a read, all written before the first one; 0 for 50 that are written one by one
	outage   time.Duration                 // how long answer returns errors
	observer delivery.Observer             // nil for none

	mu    sync.Mutex
	when  map[int64]time.Time // delivered
	came  map[int64]time.Time
	calls int
	stats observe.DestinationStats // at the end
}

const (
	lingersFor = 2 * time.Second
	staysFor   = 20 * time.Second
)

func (p *poisoned) Deliver(ctx context.Context, e *delivery.Event) error {
	p.mu.Lock()
	p.calls++
	what := good
	if i := int(e.ID) - 1; i < len(p.kinds) {
		what = p.kinds[i]
	}
	p.mu.Unlock()
	if p.answer != nil {
		if err := p.answer(e); err != nil {
			return err
		}
	}
	wait := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	switch what {
	case good:
	case drops, kills:
		return delivery.Unavailable(errors.New("connection reset"))
	case lingers:
		wait(lingersFor)
		return delivery.Unavailable(errors.New("no answer"))
	case hangs:
		wait(time.Hour)
		return fmt.Errorf("waiting: %w", context.Cause(ctx))
	case fails:
		return errors.New("500")
	case refuses:
		return delivery.Unclear(delivery.Permanent(errors.New("404")))
	case exits:
		runtime.Goexit()
	case stays:
		time.Sleep(staysFor) //nolint:forbidigo // of the bubble
		return nil           // ignored
	}
	wait(time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.when[e.ID] = time.Now()
	return nil
}

type poisonedBatches struct{ *poisoned }

func (p poisonedBatches) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	errs := make([]error, len(events))
	killed := slices.ContainsFunc(events, func(e *delivery.Event) bool { return int(e.ID) <= len(p.kinds) && p.kinds[e.ID-1] == kills })
	for i, e := range events {
		if killed {
			errs[i] = delivery.Unavailable(errors.New("connection reset"))
		} else {
			errs[i] = p.Deliver(ctx, e)
		}
	}
	return errs
}

func drawPoisoned(t *rapid.T) *poisoned {
	p := &poisoned{
		when: make(map[int64]time.Time), came: make(map[int64]time.Time), cfg: testLane(), form: rapid.SampledFrom([]string{"one", "batch"}).Draw(t, "form"),
	}
	p.cfg.Timeout, p.cfg.Batch = 3*time.Second, 10
	p.cfg.Backoff = delivery.Backoff{Initial: 100 * time.Millisecond, Max: time.Second, Multiplier: 2}
	p.cfg.Concurrency = rapid.IntRange(1, 8).Draw(t, "workers")
	p.cfg.LongestPause = rapid.SampledFrom([]time.Duration{200 * time.Millisecond, time.Second, p.cfg.LongestPause}).Draw(t, "longest pause")
	if rapid.Bool().Draw(t, "unordered") {
		p.cfg.Order = delivery.OrderNone
	}
	p.interval = rapid.SampledFrom([]time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond}).Draw(t, "interval")
	p.keys = rapid.SampledFrom([]int{0, 3, 50}).Draw(t, "aggregates")
	n := rapid.IntRange(20, 150).Draw(t, "events")
	k := rapid.IntRange(1, n/4).Draw(t, "poison")
	p.kinds = slices.Repeat([]kind{good}, n)
	some := rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), k, k, rapid.ID[int]).Draw(t, "which")
	if rapid.Bool().Draw(t, "all of them first") {
		for i := range some {
			some[i] = i
		}
	}
	kinds := []kind{drops, lingers, hangs, fails, exits, stays, refuses}
	if p.form == "batch" {
		kinds = []kind{drops, kills, fails, refuses} // a call that does not return takes the whole batch with it
	}
	for _, i := range some {
		p.kinds[i] = rapid.SampledFrom(kinds).Draw(t, "kind")
	}
	return p
}

// poison counts the bad events.
func (p *poisoned) poison() (k int) {
	for _, what := range p.kinds {
		if what != good {
			k++
		}
	}
	return k
}

// within is how late a good event may be: a few pauses and calls for each bad event, whatever the
// number of good ones.
func (p *poisoned) within() time.Duration {
	each := 4*(p.cfg.LongestPause+turnGrace) + 4*p.cfg.Timeout
	if slices.Contains(p.kinds, stays) {
		each += time.Duration(p.cfg.MaxAttempts) * (returnGrace + staysFor)
	}
	if p.outage > 0 {
		each += 2*p.outage + time.Minute
	}
	return 5*time.Second + time.Duration(max(p.poison(), 1))*each
}

// run delivers all events, and then good events next to the bad ones until those are dead. It
// returns the faults that it finds.
func (p *poisoned) run(t *testing.T) string {
	t.Helper()
	m := &batchModel{
		t: t, keys: NewKeys(), rows: make(map[int64]*modelRow), held: make(map[int64]bool), ready: make(map[Key]bool), valid: true, strict: true,
		out: make(map[int64]*Batch), got: make(map[int64]bool), latest: make(map[string]int64), replayed: make(map[int64]bool),
	}
	var h delivery.Handler = p
	if p.form == "batch" {
		h = poisonedBatches{p}
	}
	m.l = newTestLane(h, p.cfg)
	if p.observer != nil {
		m.l.observer = p.observer
	}
	defer m.l.goroutines.Wait()
	defer m.l.drop()
	m.lane = m.l
	m.wake = make(chan struct{}, 1)
	m.lane.Own(m.poke)
	for p.reads > 0 && len(m.events) < len(p.kinds) {
		p.arrive(m)
	}
	begin, last := time.Now(), time.Time{}
	for limit := p.within() + time.Minute; time.Since(begin) < 3*limit; {
		if len(m.events) < len(p.kinds) || p.done() && time.Since(last) >= time.Second {
			isWritten := len(m.events) >= len(p.kinds)
			if p.onlyGood && isWritten && p.done() {
				return ""
			}
			if isWritten && p.done() && p.dead(m) {
				return p.check(m)
			}
			if time.Since(last) >= p.interval {
				last = time.Now()
				p.arrive(m)
			}
		}
		if p.feed(m) {
			continue
		}
		select {
		case <-m.wake:
		case <-time.After(p.idle(m, last)):
		}
	}
	return fmt.Sprintf("after %v %d of %d events are delivered, and %d rows are left", time.Since(begin), len(p.when), len(m.events), len(m.rows))
}

// idle is how long the loop waits when there is nothing to do.
func (p *poisoned) idle(m *batchModel, last time.Time) time.Duration {
	next := time.Now().Add(time.Second)
	if at := last.Add(p.interval); len(m.events) < len(p.kinds) && at.Before(next) {
		next = at
	}
	for _, r := range m.rows {
		if r.state == rowRetry && !r.due && r.at.Before(next) {
			next = r.at
		}
	}
	return max(time.Until(next), time.Millisecond)
}

// feed hands over as many events as there is room for, as a unit does, and reports whether there
// were any.
func (p *poisoned) feed(m *batchModel) (did bool) {
	synctest.Wait() // or a worker answers between two looks at one batch, which the model compares
	m.collect()
	for _, r := range m.rows {
		r.due = !time.Now().Before(r.at)
	}
	before := len(m.batches)
	if m.feed() && m.feedLines() {
		if !m.lane.Waits(true) {
			m.feedDue()
		}
		if !m.lane.Waits(false) && m.next < len(m.events) {
			m.read(cmp.Or(p.reads, 50))
		}
	}
	return len(m.batches) > before
}

// arrive writes the next event.
func (p *poisoned) arrive(m *batchModel) {
	id := int64(len(m.events) + 1)
	e := &delivery.Event{ID: id, Type: "x", Attempt: 1}
	if p.keys > 0 && (int(id) > len(p.kinds) || p.kinds[id-1] == good) {
		e.AggregateID = fmt.Sprint(id % int64(p.keys))
	} else if p.keys > 0 {
		e.AggregateID = fmt.Sprint(-id) // good ones behind it would wait for it
	}
	if p.typed && int(id) <= len(p.kinds) && p.kinds[id-1] != good {
		e.Type = "bad"
	}
	p.came[id] = time.Now()
	m.events = append(m.events, e)
}

// done reports whether all good events are delivered.
func (p *poisoned) done() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.came {
		if (int(id) > len(p.kinds) || p.kinds[id-1] == good) && p.when[id].IsZero() {
			return false
		}
	}
	return true
}

// dead reports whether all bad events are dead letters, and no other row is left.
func (p *poisoned) dead(m *batchModel) bool {
	n := 0
	for _, r := range m.rows {
		if r.state == rowDead {
			n++
		}
	}
	return n >= p.poison() && n == len(m.rows)
}

func (p *poisoned) check(m *batchModel) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, at := range p.when {
		if late := at.Sub(p.came[id]); late > p.within() {
			return fmt.Sprintf("event %d came after %v, want within %v", id, late, p.within())
		}
	}
	for id, r := range m.rows {
		if int(id) > len(p.kinds) || p.kinds[id-1] == good || r.state != rowDead {
			return fmt.Sprintf("the row of event %d: %+v", id, *r)
		}
	}
	p.stats = m.l.stats()
	if p.answer != nil {
		return ""
	}
	counted := uint64(p.poison() * p.cfg.MaxAttempts)
	isEarly := slices.Contains(p.kinds, refuses) // such an event may die before its last attempt
	if s := p.stats; s.Failed+s.Dead > counted || !isEarly && s.Failed+s.Dead < counted {
		return fmt.Sprintf("%d attempts were counted for %d bad events", s.Failed+s.Dead, p.poison())
	}
	return ""
}

// TestPoisonHurtsOnlyItself: whatever a few events do to their destination, and wherever
// they are, all others are delivered within a time that grows with the number of the bad ones
// alone; these become dead letters, and no attempt is counted for any other.
func TestPoisonHurtsOnlyItself(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPoisoned(rt)
		wrong := ""
		synctest.Test(t, func(t *testing.T) { wrong = p.run(t) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}
