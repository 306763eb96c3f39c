package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Patience is how long a part of a relay may take to come back, and work that is due may wait for
	// a relay that could take it, before that counts as a hang. One round of a part waits for the
	// database less than half as long, at worst.
	Patience = 2 * time.Minute
	// Hopeless is for how long a hang must last after that until only a restart is likely to cure it.
	Hopeless = 5 * time.Minute
	// tick is the unit of a watch's time.
	tick = time.Second
)

// Watch notices the parts of a relay that do not come back. A part says when it begins a round and
// when it waits for something that may never happen; that costs an atomic load and store.
//
// A watch counts time in ticks of its own goroutine and reads no clock: while the process is frozen,
// or the machine suspended, no time passes, so that what is late for that reason is late by one tick.
//
// A nil *Watch, and the nil [Part] that it returns, watch nothing.
type Watch struct {
	every time.Duration
	ticks atomic.Int64

	mu    sync.Mutex
	parts []*Part
	found []Hang // by Report
}

// Hang is something in a relay that does not go on.
type Hang struct {
	// Part is the part of the relay: "claimer 0", or "unit of mail".
	Part string
	// Reason is a sentence without a full stop: what does not go on, and for how long.
	Reason string
	// For is for how long it has hung, in time in which the process ran.
	For time.Duration
	// Restart says that a restart of the relay is likely to end it.
	Restart bool
}

// Lost reports whether only a restart is likely to help.
func (h *Hang) Lost() bool { return h.Restart && h.For >= Patience+Hopeless }

// NewWatch returns a watch whose tick, which counts as a second, lasts for every: a second, except in tests. Run makes its time pass.
func NewWatch(every time.Duration) *Watch { return &Watch{every: every} }

// Part is a loop of the relay. One goroutine at a time uses it.
type Part struct {
	watch  *Watch
	name   string
	what   string
	within int64
	since  atomic.Int64 // the tick at which its round began, plus 1; 0 while it rests
}

// Part adds a part. what completes the sentence "... has not come back from". within is how long a
// round may take, [Patience] at least. The part rests until it begins.
func (w *Watch) Part(name, what string, within time.Duration) *Part {
	if w == nil {
		return nil
	}
	p := &Part{watch: w, name: name, what: what, within: ticksOf(max(within, Patience))}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.parts = append(w.parts, p)
	return p
}

// ticksOf returns d in ticks, rounded up.
func ticksOf(d time.Duration) int64 { return int64((d + tick - 1) / tick) }

// Begin says that a round begins, or goes on.
func (p *Part) Begin() { p.BeginIn(0) }

// BeginIn says that a round will begin in d at the latest, by itself.
func (p *Part) BeginIn(d time.Duration) {
	if p != nil {
		p.since.Store(p.watch.ticks.Load() + ticksOf(max(0, d)) + 1)
	}
}

// Rest says that the part waits for something that may never happen.
func (p *Part) Rest() {
	if p != nil {
		p.since.Store(0)
	}
}

// End removes the part.
func (p *Part) End() {
	if p == nil {
		return
	}
	p.watch.mu.Lock()
	defer p.watch.mu.Unlock()
	p.watch.parts = slices.DeleteFunc(p.watch.parts, func(q *Part) bool { return q == p })
}

// Now is the watch's time since its start.
func (w *Watch) Now() time.Duration {
	if w == nil {
		return 0
	}
	return time.Duration(w.ticks.Load()) * tick
}

// Report replaces the hangs that were found in another way than by the rounds of parts.
func (w *Watch) Report(found []Hang) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = found
}

// Hangs returns what hangs now, what has hung longest first. It takes no lock that a part of the relay may
// hold for longer than a moment.
func (w *Watch) Hangs() []Hang {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Clone(w.found)
	now := w.ticks.Load()
	for _, p := range w.parts {
		began := p.since.Load()
		if began == 0 || now-(began-1) <= p.within {
			continue
		}
		long := time.Duration(now-(began-1)) * tick
		all = append(all, Hang{
			Part: p.name, Reason: fmt.Sprintf("%s has not come back from %s for %v", p.name, p.what, long),
			For: long, Restart: true,
		})
	}
	slices.SortStableFunc(all, func(a, b Hang) int { return cmp.Compare(b.For, a.For) })
	return all
}

// Tick makes a second pass.
func (w *Watch) Tick() { w.ticks.Add(1) }

// Run makes the time pass until ctx ends. It calls ticked after each tick, which must not block. At the end
// nothing hangs any more: a relay that stops has timeouts of its own.
func (w *Watch) Run(ctx context.Context, ticked func()) {
	t := time.NewTicker(w.every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			w.mu.Lock()
			defer w.mu.Unlock()
			w.parts, w.found = nil, nil
			return
		case <-t.C:
			w.Tick()
			ticked()
		}
	}
}
