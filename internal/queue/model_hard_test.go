package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/sleep"
)

// Hard plans have everything at once: bursts, batches, delays, dead letters that a person handles,
// pauses, and a database that fails in between. The remaining events may not stand still for longer
// than the plan's patience, which is below the time after which the whole table is swept.

const (
	// hardPatience is above all waits for leases, backoff and reconnecting.
	hardPatience = 8 * time.Second
	// hardOps is far above the operations of any plan of the model, and far below those of a relay
	// that repeats the same query without end.
	hardOps = 100_000
	// modelBatchSize is how many events a batch handler gets at most.
	modelBatchSize = 5
)

// deed is an action of a person on a dead letter.
type deed uint8

const (
	leave deed = iota
	replay
	discard
)

type lanePause struct {
	relay int
	dest  string
	at    time.Duration
	lasts time.Duration
}

// modelBatch is a destination that takes batches.
type modelBatch struct {
	m    *model
	dest string
}

func (b *modelBatch) Deliver(ctx context.Context, e *delivery.Event) error {
	ref := deliveries.Ref{EventID: e.ID, Destination: b.dest}
	return b.m.deliver(ctx, ref, e, b.m.db.isSettled(ref))
}

func (b *modelBatch) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	settled := make([]bool, len(events))
	for i, e := range events {
		settled[i] = b.m.db.isSettled(deliveries.Ref{EventID: e.ID, Destination: b.dest})
	}
	errs := make([]error, len(events))
	b.m.called(b.dest, events, +1)
	defer b.m.called(b.dest, events, -1)
	for i, e := range events {
		errs[i] = b.m.deliver(ctx, deliveries.Ref{EventID: e.ID, Destination: b.dest}, e, settled[i])
	}
	return errs
}

// called counts the events of a call: a fault may cause all of them to repeat.
func (m *model) called(dest string, events []*delivery.Event, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range events {
		m.running[deliveries.Ref{EventID: e.ID, Destination: dest}] += n
	}
}

// resolve applies the chosen deed to each dead letter, as package ops does, and returns how
// many it changed.
func (db *fakeDB) resolve(choose func(deliveries.Ref) deed) (n int) {
	db.mu.Lock()
	for _, row := range db.sortedRows() {
		if row.State != deliveries.Dead {
			continue
		}
		e := db.events[row.EventID]
		switch choose(row.Ref) {
		case leave:
			continue
		case replay:
			row.State, row.Failures, row.due = deliveries.Retry, 0, time.Now()
			row.replays++
			e.state = "deferred"
			db.note("replay of %v", row.Ref)
		case discard:
			delete(db.rows, row.Ref)
			db.settleLocked(row.Ref)
			db.finishLocked(row.EventID)
			db.note("%v is discarded", row.Ref)
		}
		n++
	}
	db.checkLocked()
	ears, mute := slices.Clone(db.ears), db.mute || db.down
	db.mu.Unlock()
	for _, d := range ears {
		if n > 0 && !mute {
			d.Rescan()
		}
	}
	return n
}

// person handles dead letters until the plan is over.
func (m *model) person(until <-chan struct{}) {
	for {
		select {
		case <-until:
			return
		case <-time.After(m.plan.personEvery):
		}
		m.db.resolve(func(ref deliveries.Ref) deed {
			m.mu.Lock() // the database's is held
			defer m.mu.Unlock()
			d := m.byID[ref.EventID].scripts[ref.Destination].onDeath
			if d != leave {
				m.resolved[ref], m.moved = d, time.Now()
				delete(m.failed, ref)
			}
			return d
		})
	}
}

// pauseLane pauses a destination at a relay, or at its successor.
func (m *model) pauseLane(p lanePause) {
	at := func(do func(*relay) error) {
		m.mu.Lock()
		r := m.relays[p.relay]
		m.mu.Unlock()
		if r == nil {
			return
		}
		if err := do(r); err != nil {
			m.t.Error(err)
		}
	}
	sleep.For(context.Background(), p.at)
	at(func(r *relay) error { return r.Pause(p.dest) })
	sleep.For(context.Background(), p.lasts)
	at(func(r *relay) error { return r.Resume(p.dest) })
}

// cutOff cuts a relay off from the database, so that others take it for dead. Its deliveries until
// it is stopped may repeat.
func (m *model) cutOff(r *relay) {
	r.trigger.close()
	m.db.set(func() {
		m.db.cutOff = r.owner
		delete(m.db.alive, r.owner)
		m.db.ears = slices.DeleteFunc(m.db.ears, func(e *Engine) bool { return e == r.Engine })
	})
}

// left returns how many events are not done, and how many dead letters are not handled.
func (m *model) left() int {
	n := m.db.unfinished()
	m.db.set(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for ref, row := range m.db.rows {
			if row.State == deliveries.Dead && m.byID[ref.EventID].scripts[ref.Destination].onDeath != leave {
				n++
			}
		}
	})
	return n
}

// stalls reports whether no delivery has started for longer than the plan allows, since the given
// time and the last action of the plan.
func (m *model) stalls(since time.Time) bool {
	calm := since
	for _, s := range m.plan.stops {
		if end := m.begin.Add(s.at + s.pause); end.After(calm) {
			calm = end
		}
	}
	ops := 0
	m.db.set(func() { ops = m.db.ops })
	m.mu.Lock()
	defer m.mu.Unlock()
	if ops > hardOps {
		m.breaks("%d operations, at %v", ops, time.Since(m.begin))
		return true
	}
	for _, e := range m.byID {
		if end := m.begin.Add(e.at + e.delay); end.After(calm) {
			calm = end
		}
	}
	if m.moved.After(calm) {
		calm = m.moved
	}
	if m.plan.patience == 0 || time.Since(calm) < m.plan.patience {
		return false
	}
	m.breaks("nothing has begun for %v, at %v", m.plan.patience, time.Since(m.begin))
	return true
}

func drawHard(t *rapid.T) *modelPlan {
	ms := drawMillis(t)
	p := &modelPlan{faults: make(map[string]faultKind), batches: make(map[string]bool), patience: hardPatience}
	slow := make(map[string]time.Duration)
	for _, dest := range []string{"a", "b", "c"} {
		p.batches[dest] = rapid.Bool().Draw(t, "takes")
		slow[dest] = rapid.SampledFrom([]time.Duration{0, 0, 3 * time.Millisecond, 12 * time.Millisecond, 40 * time.Millisecond}).Draw(t, "slow")
	}
	throttles := rapid.IntRange(0, 4).Draw(t, "throttles") == 0
	if throttles {
		p.patience = 0
	}
	keys := rapid.IntRange(1, 4).Draw(t, "keys")
	for range rapid.IntRange(1, 5).Draw(t, "bursts") {
		at := ms(3000, "at")
		for range rapid.IntRange(1, 50).Draw(t, "events") {
			e := modelEvent{typ: rapid.SampledFrom(modelTypes()).Draw(t, "type"), at: at + ms(100, "later"), scripts: make(map[string]script)}
			switch rapid.IntRange(0, 9).Draw(t, "how") {
			case 0, 1:
				e.commit = ms(rapid.SampledFrom([]int{20, 200, 2000}).Draw(t, "long"), "commit")
			case 2, 3:
				e.delay = time.Millisecond + ms(rapid.SampledFrom([]int{20, 200, 1500}).Draw(t, "long"), "delay")
			}
			if rapid.IntRange(0, 11).Draw(t, "unkeyed") > 0 {
				e.key = string(rune('a' + rapid.IntRange(0, keys-1).Draw(t, "key")))
			}
			for _, dest := range modelRoutes[e.typ] {
				e.scripts[dest] = p.drawScript(t, dest, slow[dest], throttles)
			}
			p.events = append(p.events, e)
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "outages") {
		from := ms(4000, "from")
		p.outages = append(p.outages, outage{
			dest: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "dest"), from: from, to: from + ms(400, "length"), throttle: throttles,
		})
	}
	for range rapid.IntRange(0, 8).Draw(t, "faults") {
		op := rapid.SampledFrom([]string{"claim", "claim", "settle", "settle", "settle", "finish", "finish", "renew", "takeover"}).Draw(t, "op")
		kind := rapid.SampledFrom([]faultKind{lostBefore, lostAfter, refused, hung}).Draw(t, "kind")
		p.faults[fmt.Sprint(op, " ", rapid.IntRange(1, rapid.SampledFrom([]int{10, 50, 250}).Draw(t, "most")).Draw(t, "which"))] = kind
	}
	for range rapid.IntRange(0, 4).Draw(t, "pauses") {
		p.pauses = append(p.pauses, lanePause{
			rapid.IntRange(0, 1).Draw(t, "relay"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "dest"), ms(4000, "pause at"), ms(800, "lasts"),
		})
	}
	p.personEvery = 50*time.Millisecond + ms(1500, "person")
	drawRelays(t, p, 3, 500)
	for i := range p.stops {
		p.stops[i].cut = rapid.IntRange(0, 2).Draw(t, "cut off") == 0
	}
	slices.SortFunc(p.stops, func(a, b relayStop) int { return int(a.at - b.at) })
	return p
}

// drawScript draws how a destination behaves towards an event of a hard plan.
func (p *modelPlan) drawScript(t *rapid.T, dest string, slow time.Duration, throttles bool) script {
	s := script{slow: slow}
	switch rapid.IntRange(0, 24).Draw(t, "behaviour") {
	case 0:
		s.fails = rapid.IntRange(1, modelAttempts).Draw(t, "fails")
		s.panics = !p.batches[dest] && rapid.Bool().Draw(t, "panics") // a panic would fail the whole batch
	case 1:
		s.fails, s.permanent = 1, true
	case 2:
		s.slow = drawMillis(t)(300, "slow")
	case 3:
		s.fails, s.wait = 1, time.Millisecond+drawMillis(t)(800, "wait")
	case 4:
		if throttles {
			s.throttled = rapid.IntRange(1, 4).Draw(t, "throttled")
		}
	}
	s.onDeath = rapid.SampledFrom([]deed{leave, replay, discard}).Draw(t, "on death")
	return s
}
