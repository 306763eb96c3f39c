package dispatch

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Engines find what is to be delivered, and hand it to lanes: package queue claims
// events, package stream reads them in order. What follows is for them.

// Lane is the way to one destination. An engine takes it with Serve or with Own.
type Lane struct{ l *lane }

// Lanes returns the destinations in the order in which they were added.
func (d *Dispatcher) Lanes() []Lane {
	all := make([]Lane, len(d.lanes))
	for i, l := range d.lanes {
		all[i] = Lane{l}
	}
	return all
}

// Patterns returns the patterns that lead to a destination, sorted.
func (d *Dispatcher) Patterns(destination string) []string { return d.router.patterns(destination) }

// Begin readies the lanes for an engine. All deliveries end with the context that it
// returns: when the relay gives up on them, which is what Drain may do, and not when ctx ends.
func (d *Dispatcher) Begin(ctx context.Context) context.Context {
	d.workCtx, d.cancelWork = context.WithCancelCause(context.WithoutCancel(ctx))
	for _, l := range d.lanes {
		l.ctx = d.workCtx //nolint:fatcontext // one context for all, not one inside the other
	}
	return d.workCtx
}

// Drain ends what Begin began: nothing more begins, what runs may finish within the
// shutdown timeout, then it is cancelled and given back. Those in engine may still hand
// over what they had claimed, and are waited for as well. It returns nil, or
// [ErrShutdownIncomplete].
func (d *Dispatcher) Drain(engine *sync.WaitGroup) error {
	defer d.cancelWork(ErrStopping)
	defer d.health.settle(0) // nobody waits for calm any more
	return d.drain(engine)
}

// LanesOf returns the lanes of an event type, none if no route matches, and whether the type is met for the
// first time.
func (d *Dispatcher) LanesOf(eventType string) (lanes []Lane, firstTime bool) {
	return d.router.route(eventType)
}

// TypesOf returns the event types met so far for whose lanes f returns true.
func (d *Dispatcher) TypesOf(f func(lanes []Lane) bool) []string { return d.router.types(f) }

// LaneOf returns the lane of a destination, false if there is none of that name.
func (d *Dispatcher) LaneOf(destination string) (l Lane, ok bool) {
	l.l, ok = d.byName[destination]
	return l, ok
}

// Name is the name of the destination.
func (l Lane) Name() string { return l.l.name }

// Ordered reports whether the events of an aggregate are delivered in order.
func (l Lane) Ordered() bool { return !l.l.cfg.Unordered }

// Blocks reports whether a dead letter holds back the later events of its aggregate.
func (l Lane) Blocks() bool { return l.l.cfg.BlockOnDead && !l.l.cfg.Unordered }

// Wanted reports whether the lane gets events of the type.
func (d *Dispatcher) Wanted(l Lane, eventType string) bool {
	lanes, _ := d.router.route(eventType)
	return slices.Contains(lanes, l)
}

// Serve gives the lane to an engine that keeps no order: what is handed over is
// delivered as workers come to it. onRoom is called when Grant or Roomy had less than
// was asked for and there is more; it must not block.
func (l Lane) Serve(onRoom func()) {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	l.l.agg, l.l.onRoom = nil, onRoom
}

// Own gives the lane to an engine that hands events over in order, with nothing in line and no aggregate blocked.
// onRoom is called when Grant had less than was asked for and there is more, or
// when the lane may go on after something was given back; it must not block.
func (l Lane) Own(onRoom func()) {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	l.l.agg, l.l.onRoom = newAggregates(l.l), onRoom
}

// Grant reserves room for up to n deliveries, and returns for how many there is.
func (l Lane) Grant(n int) int { return l.l.grant(n) }

// GrantFair is Grant for an engine that reads once for what is granted: 0 where there is
// so little that it is not worth a read.
func (l Lane) GrantFair(n int) int { return l.l.grantFair(n) }

// Roomy returns for how many deliveries there is room, or 0 if that is too little to be
// worth a claim.
func (l Lane) Roomy() int { return l.l.roomy() }

// StoredWait reports whether what is stored is to wait for a moment: the destination may be
// down, and it is the turn of something new to find out. An event over which it failed is
// stored; were those always first, nobody would know about the others. onRoom is called when they may go.
func (l Lane) StoredWait() bool { return l.l.waits((*breaker).storedWait) }

// NewWait reports the same the other way round: of what is new, too much was held back by
// its aggregates.
func (l Lane) NewWait() bool { return l.l.waits((*breaker).newWait) }

func (l *lane) waits(turn func(*breaker, time.Time) bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !turn(&l.ease.breaker, now) {
		return false
	}
	l.ease.refuseLocked(now)
	return true
}

// HasRoom reports whether there is room for anything.
func (l Lane) HasRoom() bool {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	return l.l.roomLocked(time.Now()) > 0
}

// Priority is that of the lane's configuration.
func (l Lane) Priority() int { return l.l.cfg.Priority }

// Timeout bounds one call of the handler.
func (l Lane) Timeout() time.Duration { return l.l.cfg.Timeout }

// Slow reports whether waiting for an answer with a transaction open is a waste.
func (l Lane) Slow() bool { return l.l.slow() }

// Observe says that a delivery takes at least this long.
func (l Lane) Observe(atLeast time.Duration) { l.l.observe(atLeast) }

// Refused counts a delivery for which there was no room.
func (l Lane) Refused() { l.l.figures.passings.refused.Add(1) }

// TakeBack gives back what nobody has begun with of a parcel. The lane is one that keeps
// no order.
func (l Lane) TakeBack(p *Parcel) { l.l.takeBack(p) }

// Return gives back granted room that is not needed.
func (l Lane) Return(n int) {
	if n > 0 {
		l.l.giveBack(n)
	}
}

// Deliver hands over a parcel, for which room was granted. The aggregates in unblock
// are not blocked any more: all that was stored of them has been handed over, the last
// of it with this parcel.
func (l Lane) Deliver(p *Parcel, unblock []Key) {
	if held := l.l.deliver(p, unblock); held > 0 {
		l.l.ease.heldBack(held)
	}
}

func (l *lane) deliver(p *Parcel, unblock []Key) (held int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.agg
	p.order = a
	if l.head > 0 && len(l.queue)+len(p.jobs) > cap(l.queue) {
		l.compactLocked()
	}
	if l.ease.breaker.ramping() && l.aheadLocked() >= l.ease.breaker.allowed {
		l.ease.breaker.pressed = true
	}
	var back []kept
	for i := range p.jobs {
		j, d := &p.jobs[i], &p.events[i]
		j.parcel, j.work, j.lane, j.event = p, i, l, d.Event
		begins, v := true, verdict(0)
		if a != nil {
			begins, v = a.join(j, d)
		}
		switch {
		case v != 0:
			l.load--
			back = append(back, kept{j, v})
		case begins:
			j.queued = true
			l.queue = append(l.queue, j)
		}
	}
	if a != nil && !a.spilled {
		for _, key := range unblock {
			a.blocked.remove(key)
		}
	}
	if l.ease.breaker.open() {
		l.ease.breaker.held += len(back)
	}
	l.employLocked()
	answerKept(back)
	return len(back)
}

// Block says that something is stored of the aggregate: what comes is parked.
func (l Lane) Block(key Key) {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	l.l.agg.blocked.add(key)
}

// Unblock says that nothing is stored of the aggregate any more.
func (l Lane) Unblock(key Key) {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	l.l.agg.blocked.remove(key)
}

// Blocked reports whether something is stored of the aggregate.
func (l Lane) Blocked(key Key) bool {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	return l.l.agg.blocked.has(key)
}

// BlockedCount returns of how many aggregates something is stored.
func (l Lane) BlockedCount() int {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	if l.l.agg == nil { // nobody owns it yet
		return 0
	}
	return l.l.agg.blocked.len()
}

// Spills returns how often something was given back, and whether nothing is taken
// for that reason until GoOn is called.
func (l Lane) Spills() (n uint64, spilled bool) {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	return l.l.agg.spills, l.l.agg.spilled
}

// GoOn lets the lane take deliveries again, if it has given nothing back since
// Spills returned n: all answers since then have been taken from the parcels, and what
// was given back is handed over first, in the order of ids.
func (l Lane) GoOn(n uint64) bool {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	if l.l.agg.spills != n {
		return false
	}
	l.l.agg.spilled = false
	return true
}

// Withdraw gives back all that nobody has begun with, and takes nothing more until
// the lane is owned anew.
func (l Lane) Withdraw() {
	l.l.mu.Lock()
	gone := l.l.emptyLocked()
	gone = append(gone, l.l.agg.stop()...)
	answerKept(gone)
	l.l.mu.Unlock()
}

// Busy reports whether anything of the aggregate is under way: when the last of it is
// delivered while the aggregate is blocked, its answer says Behind.
func (l Lane) Busy(key Key) bool {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	_, is := l.l.agg.lines[key]
	return is
}

// Idle reports whether nothing is under way.
func (l Lane) Idle() bool {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	return l.l.load == 0
}

// Resting reports whether the lane begins nothing at the moment: it is paused, or its
// destination is down.
func (l Lane) Resting() bool { return l.l.ease.halted() }
