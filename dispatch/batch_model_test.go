package dispatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
)

// rowState is the state of a stored delivery.
type rowState uint8

const (
	rowRetry rowState = iota + 1
	rowParked
	rowDead
)

// batchModel is an engine that keeps positions, without a database, and the workers of the lane
// that it drives. Its writes take effect at once.
type batchModel struct {
	t    rapid.TB
	draw *rapid.T
	l    *lane
	lane StreamLane
	keys Keys

	events   []*delivery.Event
	next     int // of them, to be read
	rows     map[int64]*modelRow
	held     map[int64]bool
	again    []Delivery
	batches  []*Batch
	spare    []*Batch
	ready    map[Key]bool // lines to continue with
	valid    bool
	healthy  bool
	gone     bool          // withdrawn
	strict   bool          // it hands over no more than the lane grants
	wake     chan struct{} // of capacity 1, for an engine that waits
	taken    [][]*job
	out      map[int64]*Batch // handed over and not answered
	got      map[int64]bool
	latest   map[string]int64 // per aggregate
	replayed map[int64]bool
	fault    string // found by the handler
}

type modelRow struct {
	state    rowState
	failures int
	due      bool
	at       time.Time // when it is to be due
}

// anyHandler takes events one by one, batchHandler several, and the third keeps order in
// a call.
type (
	modelOneHandler     struct{ m *batchModel }
	modelBatchHandler   struct{ modelOneHandler }
	modelKeepingHandler struct{ modelBatchHandler }
)

func (h *modelOneHandler) Deliver(_ context.Context, e *delivery.Event) error { return h.m.deliver(e) }

func (h *modelBatchHandler) DeliverBatch(_ context.Context, events []*delivery.Event) []error {
	errs := make([]error, len(events))
	broken := make(map[string]bool)
	for i, e := range events {
		key := h.m.unit(e)
		if broken[key] && key != "" {
			errs[i] = errors.New("not after one that failed")
			continue
		}
		errs[i] = h.m.deliver(e)
		broken[key] = errs[i] != nil
	}
	return errs
}

func (*modelKeepingHandler) KeepsOrder() bool { return true }

// deliver is the destination's handling of an event.
func (m *batchModel) deliver(e *delivery.Event) error {
	answer := "ok"
	if !m.healthy {
		answer = rapid.SampledFrom([]string{"ok", "ok", "ok", "ok", "ok", "ok", "fail", "dead", "down", "down", "slower", "pause", "unsure"}).Draw(m.draw, "answer")
	}
	switch answer {
	case "fail":
		return errors.New("fails")
	case "dead":
		return delivery.Permanent(errors.New("never"))
	case "down":
		return delivery.Unavailable(errors.New("down"))
	case "slower":
		return delivery.Throttled(0, errors.New("slower"))
	case "pause":
		m.l.pause()
	case "unsure":
		m.valid = false
	}
	key := m.unit(e)
	switch { // a failure here would be mistaken for a panic of the handler
	case m.got[e.ID]:
		m.fault = fmt.Sprintf("%d is delivered again", e.ID)
	case m.out[e.ID] == nil:
		m.fault = fmt.Sprintf("%d is delivered after its answer", e.ID)
	case key != "" && !m.l.dest.Unordered && e.ID < m.latest[key] && (!m.replayed[e.ID] || m.l.dest.BlockOnDead):
		m.fault = fmt.Sprintf("%d of %s after %d", e.ID, key, m.latest[key])
	}
	m.got[e.ID] = true
	m.latest[key] = max(m.latest[key], e.ID)
	return nil
}

// unit is what an event is in order with.
func (m *batchModel) unit(e *delivery.Event) string {
	if m.l.dest.Total {
		return "all"
	}
	return e.AggregateID
}

// blocked reports whether only stored events go.
func (m *batchModel) blocked() bool {
	return m.l.dest.Total && m.lane.Order(m.keys.Named("*")).Blocked
}

func (m *batchModel) key(e *delivery.Event) (k Key) {
	if m.l.dest.Total {
		return m.keys.Named("*")
	}
	if !m.l.dest.Unordered {
		k, _ = m.keys.Of(nil, e)
	}
	return k
}

// line returns the ids of the rows of an aggregate that count, in order.
func (m *batchModel) line(k Key) (ids []int64) {
	for id, r := range m.rows {
		if m.key(m.events[id-1]) == k && (r.state != rowDead || m.l.dest.Blocks()) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// hand hands deliveries over, as long as the lane takes any.
func (m *batchModel) hand(all []Delivery, unblock []Key) {
	if len(all) == 0 {
		return
	}
	m.l.mu.Lock()
	m.l.load += len(all)
	m.l.mu.Unlock()
	p := NewBatch(func() bool { return m.valid }, func(bool) { m.poke() })
	if n := len(m.spare); n > 0 {
		p, m.spare = m.spare[n-1], m.spare[:n-1]
	}
	for _, d := range all {
		if m.out[d.Event.ID] != nil {
			m.t.Fatalf("bug of the model: %d is under way", d.Event.ID)
		}
		m.out[d.Event.ID] = p
	}
	for _, d := range all {
		m.t.Logf("hand over %d of %q, row %v, leads %v, unblock %v", d.Event.ID, d.Event.AggregateID, d.Row, d.Leads, len(unblock))
	}
	p.Fill(all)
	m.batches = append(m.batches, p)
	m.lane.Deliver(p, unblock)
}

// capacity returns how many deliveries the lane would reserve.
func (m *batchModel) capacity(n int) int {
	if m.strict {
		n = m.l.Reserve(Request{N: n})
		if n > 0 {
			m.l.Return(n) // hand takes it again
		}
		return n
	}
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	switch {
	case m.gone || !m.valid || m.l.paused || m.l.stopped:
		return 0
	case m.l.health.Down() && m.l.load > 0:
		return 0
	case m.l.health.Down():
		return min(n, 1)
	}
	return n
}

// poke notifies a waiting engine that there is work.
func (m *batchModel) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *batchModel) collect() {
	left := m.batches[:0]
	var parked []Key
	for _, p := range m.batches {
		_, answers, n := p.Take()
		for i := range answers {
			parked = append(parked, m.answered(&answers[i])...)
		}
		after := m.underWay(p)
		if n != len(after) {
			m.t.Fatalf("%d have no answer, and %d are under way", n, len(after))
		}
		for _, d := range p.events {
			if id := d.Event.ID; m.out[id] == p && !after[id] {
				delete(m.out, id) // delivered, and no more to say
			}
		}
		if n > 0 {
			left = append(left, p)
			continue
		}
		p.Empty()
		m.spare = append(m.spare, p)
	}
	m.batches = left
	for _, k := range parked {
		ids := m.line(k)
		if !m.lane.Order(k).Busy && (len(ids) == 0 || m.rows[ids[0]].state == rowParked) {
			m.ready[k] = true
		}
	}
}

func (m *batchModel) underWay(p *Batch) map[int64]bool {
	ids := make(map[int64]bool)
	p.UnderWay(func(d *Delivery) { ids[d.Event.ID] = true })
	return ids
}

func (m *batchModel) answered(a *Answer) (waits []Key) {
	id := a.Event.ID
	if m.out[id] == nil {
		m.t.Fatalf("%d is answered again", id)
	}
	m.t.Logf("answer to %d of %q: verdict %d, behind %v", id, a.Event.AggregateID, a.Verdict, a.Behind)
	delete(m.out, id)
	delete(m.held, id)
	switch a.Verdict {
	case VerdictReleased:
		if a.Row {
			m.held[id] = true
		}
		m.again = append(m.again, a.Delivery)
		slices.SortFunc(m.again, func(a, b Delivery) int { return int(a.Event.ID - b.Event.ID) })
	case VerdictDelivered:
		delete(m.rows, id)
	case VerdictParked:
		if m.l.dest.Total && !a.Row {
			m.t.Fatalf("%d becomes a row, and was not tried", id)
		}
		m.rows[id] = &modelRow{state: rowParked, failures: a.Failures}
		waits = append(waits, a.Key)
	case VerdictDead:
		m.rows[id] = &modelRow{state: rowDead}
	default:
		m.rows[id] = &modelRow{state: rowRetry, failures: a.Failures, at: time.Now().Add(a.Delay)}
	}
	if a.Behind {
		m.ready[a.Key] = true
	}
	return waits
}

// begin has a worker take jobs; an idle one continues in the same way.
func (m *batchModel) begin() {
	m.l.mu.Lock()
	waiting := len(m.l.queue) - m.l.head
	m.l.mu.Unlock()
	if waiting == 0 || len(m.taken) >= m.l.dest.Concurrency {
		return
	}
	jobs := slices.Clone(m.l.take(nil, nil))
	for _, other := range m.taken {
		for _, j := range other {
			for _, mine := range jobs {
				if k := m.key(j.Value.event); k == m.key(mine.Value.event) && k != (Key{}) {
					m.t.Fatalf("%d and %d are with two workers", j.Value.event.ID, mine.Value.event.ID)
				}
			}
		}
	}
	m.taken = append(m.taken, jobs)
}

func (m *batchModel) deliverOne(i int) {
	jobs := m.taken[i]
	m.taken = slices.Delete(m.taken, i, i+1)
	w := &worker{lane: m.l}
	switch rest := w.dropLapsed(jobs); {
	case len(rest) == 0:
	case m.l.target.batch != nil:
		w.deliverBatch(rest, nil)
	default:
		w.deliverEach(rest, nil)
	}
	if m.fault != "" {
		m.t.Fatal(m.fault)
	}
}

// reown withdraws, waits for all calls to end, and owns the lane again, as after a unit was given
// away and taken again: the engine reads undelivered events again.
func (m *batchModel) reown() {
	m.lane.Withdraw()
	m.gone = true
	for len(m.taken) > 0 {
		m.deliverOne(0)
	}
	m.collect()
	if len(m.batches) > 0 || m.l.load != 0 || len(m.l.queue) > m.l.head {
		m.t.Fatalf("%d batches are under way after all workers ended, load %d", len(m.batches), m.l.load)
	}
	m.lane.Own(func() {})
	m.gone = false
	clear(m.ready)
	for _, d := range m.again {
		delete(m.held, d.Event.ID)
	}
	m.again = slices.DeleteFunc(m.again, func(d Delivery) bool { return d.Row })
	for id := range m.rows {
		k := m.key(m.events[id-1])
		if ids := m.line(k); k != (Key{}) && len(ids) > 0 {
			m.lane.SetRows(k, SomeRows)
			if m.rows[ids[0]].state == rowParked {
				m.ready[k] = true
			}
		}
	}
}

// settleDead replays or discards a dead letter.
func (m *batchModel) settleDead(replays bool) {
	for _, id := range slices.Sorted(maps.Keys(m.rows)) {
		r, k := m.rows[id], m.key(m.events[id-1])
		if r.state != rowDead {
			continue
		}
		if replays {
			r.state, r.due, r.failures, m.replayed[id] = rowRetry, true, 0, true
			return
		}
		delete(m.rows, id)
		m.got[id] = true
		if len(m.line(k)) == 0 && m.l.dest.Total && !m.lane.Order(k).Busy {
			m.ready[k] = true // as a unit does that looks at its line
		}
		if ids := m.line(k); len(ids) > 0 && k != (Key{}) && m.rows[ids[0]].state == rowParked && !m.held[ids[0]] {
			m.rows[ids[0]].state, m.rows[ids[0]].due = rowRetry, true
		}
		return
	}
}

func (m *batchModel) actions() map[string]func(*rapid.T) {
	act := func(f func()) func(*rapid.T) {
		return func(t *rapid.T) { m.t, m.draw = t, t; f() }
	}
	work := act(func() {
		m.begin()
		if n := len(m.taken); n > 0 {
			m.deliverOne(rapid.IntRange(0, n-1).Draw(m.draw, "worker"))
		}
	})
	return map[string]func(*rapid.T){
		"read": act(func() {
			m.l.mu.Lock()
			m.l.throughput.pace = rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second}).Draw(m.draw, "pace")
			m.l.mu.Unlock()
			if m.feed() && m.feedLines() {
				m.read(rapid.IntRange(1, 300).Draw(m.draw, "events"))
			}
		}),
		"due": act(func() {
			if m.feed() {
				m.feedDue()
			}
		}),
		"lines":   act(func() { _ = m.feed() && m.feedLines() }),
		"begin":   act(m.begin),
		"work":    work,
		"work 2":  work,
		"answers": act(func() { m.collect() }),
		"time": act(func() {
			for _, r := range m.rows {
				r.due = true
			}
		}),
		"pause":   act(func() { m.l.pause() }),
		"resume":  act(func() { m.l.resume() }),
		"unsure":  act(func() { m.valid = false }),
		"sure":    act(func() { m.valid = true }),
		"replay":  act(func() { m.settleDead(true) }),
		"discard": act(func() { m.settleDead(false) }),
		"give away": act(func() {
			if rapid.IntRange(0, 4).Draw(m.draw, "now") == 0 {
				m.reown()
			}
		}),
	}
}
