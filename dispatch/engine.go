package dispatch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/guard"
)

// Engines find events to deliver and hand them to lanes: package queue claims events, package
// stream reads them in order. The rest of this file is for them.

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

// Drops returns the settings by which a lane may finish with an event that its destination has not acknowledged:
// expires_after and when, in this order.
func (d *Dispatcher) Drops(l Lane) (settings []string) {
	if l.l.cfg.ExpiresAfter > 0 {
		settings = append(settings, "expires_after")
	}
	if d.router.filters(l) {
		settings = append(settings, "when")
	}
	return settings
}

// Begin readies the lanes for an engine. All deliveries end with the returned context: when the
// relay gives up on them, which Drain may do, and not when ctx ends.
func (d *Dispatcher) Begin(ctx context.Context) context.Context {
	d.workCtx, d.cancelWork = context.WithCancelCause(context.WithoutCancel(ctx))
	for _, l := range d.lanes {
		l.ctx = d.workCtx //nolint:fatcontext // one context for all, not one inside the other
		if l.cfg.Total {
			l.ctx = delivery.WithTotalOrder(d.workCtx)
		}
	}
	return d.workCtx
}

// Drain ends the run that Begin started: no delivery begins any more, running ones may finish
// within the shutdown timeout, then they are cancelled and given back. The goroutines in engine may
// still hand over events that they have claimed; Drain waits for them as well. It returns nil, or
// [ErrShutdownIncomplete].
func (d *Dispatcher) Drain(engine *sync.WaitGroup) error {
	defer func() {
		d.cancelWork(ErrStopping)
		for _, l := range d.lanes {
			l.crew.stopPatrol()
		}
	}()
	defer d.health.settle(0) // no reason to wait for calm any more
	return d.drain(engine)
}

// End ends the last run: nothing is logged or reported to the observer by itself any more. It may be called before
// any Begin.
func (d *Dispatcher) End() { d.health.end() }

// LanesOf returns the lanes of an event type, none if no route matches, and whether this is the
// first event of the type.
func (d *Dispatcher) LanesOf(eventType string) (lanes []Lane, firstTime bool) {
	return d.router.route(eventType)
}

// TypesOf returns the event types seen so far for whose lanes f returns true.
func (d *Dispatcher) TypesOf(f func(lanes []Lane) bool) []string { return d.router.types(f) }

// LaneOf returns the lane of a destination, false if there is no destination with that name.
func (d *Dispatcher) LaneOf(destination string) (l Lane, ok bool) {
	l.l, ok = d.byName[destination]
	return l, ok
}

// Name is the name of the destination.
func (l Lane) Name() string { return l.l.name }

// PositionKeeper returns the handler if it keeps the position of its destination; nil if not.
func (l Lane) PositionKeeper() delivery.PositionKeeper { return l.l.target.position }

// Fault records that the destination has failed over something else than a delivery: the lane
// pauses, as after a failed delivery, and probes. Fault returns the rest of the pause. It is reported again with news,
// although the destination may be unavailable already for another reason.
func (l Lane) Fault(err error, news bool) (pause time.Duration) {
	return l.l.ease.fault(time.Now(), err, news)
}

// Answers records that the destination has answered something else than a delivery, after a Fault.
func (l Lane) Answers() { l.l.ease.answers() }

// Repeats reports that the destination gets again what it has got before, and why.
func (l Lane) Repeats(err error) { l.l.ease.repeats(err) }

// LongestPause bounds how long a destination that is down is left alone.
func (l Lane) LongestPause() time.Duration { return l.l.cfg.LongestPause }

// Ordered reports whether the events of an aggregate are delivered in order.
func (l Lane) Ordered() bool { return !l.l.cfg.Unordered }

// Total reports whether all events are delivered one after the other. The engine gives them one key,
// and hands over none that is not stored while it is blocked: the lane would give it back.
func (l Lane) Total() bool { return l.l.cfg.Total }

// Blocks reports whether a dead letter holds back the later events of its aggregate.
func (l Lane) Blocks() bool { return l.l.cfg.BlockOnDead && !l.l.cfg.Unordered }

// Wanted reports whether the lane gets events of the type.
func (d *Dispatcher) Wanted(l Lane, eventType string) bool {
	lanes, _ := d.router.route(eventType)
	return slices.Contains(lanes, l)
}

// Serve gives the lane to an engine that keeps no order: what is handed over is
// delivered as workers come to it. onRoom is called when Grant or Roomy had less than
// was requested and there is more; it must not block.
func (l Lane) Serve(onRoom func()) {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	l.l.agg, l.l.onRoom = nil, onRoom
}

// Own gives the lane to an engine that hands events over in order, with nothing in line and no aggregate blocked.
// onRoom is called when Grant had less than was requested and there is more, or
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

// StoredWait reports whether stored deliveries must wait for a moment: the destination may be down,
// and it is the turn of a new delivery to find out. An event over which the destination failed is
// stored; were stored events always first, the others would never be tried. onRoom is called when
// stored deliveries may go.
func (l Lane) StoredWait() bool { return l.l.waits((*breaker).storedWait) }

// NewWait reports the same for new deliveries: their aggregates held back too many.
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

// HasRoom reports whether there is room for at least one delivery.
func (l Lane) HasRoom() bool {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	return l.l.roomLocked(time.Now()) > 0
}

// Priority is the priority in the lane's configuration.
func (l Lane) Priority() int { return l.l.cfg.Priority }

// Timeout bounds one call of the handler.
func (l Lane) Timeout() time.Duration { return l.l.cfg.Timeout }

// Slow reports whether it is a waste to wait for an answer with a transaction open.
func (l Lane) Slow() bool { return l.l.slow() }

// Observe records that a delivery takes at least this long.
func (l Lane) Observe(atLeast time.Duration) { l.l.observe(atLeast) }

// Refused counts a delivery for which there was no room.
func (l Lane) Refused() { l.l.figures.passings.refused.Add(1) }

// TakeBack gives back the deliveries of a parcel that no worker has begun. The lane must be one that
// keeps no order.
func (l Lane) TakeBack(p *Parcel) { l.l.takeBack(p) }

// Return gives back unused granted room.
func (l Lane) Return(n int) {
	if n > 0 {
		l.l.giveBack(n)
	}
}

// Deliver hands over a parcel, for which room was granted. The aggregates in unblock are no longer
// blocked: all their stored deliveries have been handed over, the last of them with this parcel.
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
	if len(back) > 0 {
		l.ease.breaker.holds(time.Now(), len(back))
	}
	l.employLocked()
	answerKept(back)
	return len(back)
}

// Block records that deliveries of the aggregate are stored: later ones are parked.
func (l Lane) Block(key Key) {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	l.l.agg.blocked.add(key)
}

// Unblock records that no deliveries of the aggregate are stored any more.
func (l Lane) Unblock(key Key) {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	l.l.agg.blocked.remove(key)
}

// Blocked reports whether the aggregate is blocked.
func (l Lane) Blocked(key Key) bool {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	return l.l.agg.blocked.has(key)
}

// BlockedCount returns the number of blocked aggregates.
func (l Lane) BlockedCount() int {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	if l.l.agg == nil { // no engine owns it yet
		return 0
	}
	return l.l.agg.blocked.len()
}

// Spills returns how often a delivery was given back, and whether the lane takes nothing for that
// reason until GoOn is called.
func (l Lane) Spills() (n uint64, spilled bool) {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	return l.l.agg.spills, l.l.agg.spilled
}

// GoOn lets the lane take deliveries again, if it has given nothing back since Spills returned n.
// The engine must have taken all answers since then from the parcels, and hands the returned
// deliveries over first, in the order of ids.
func (l Lane) GoOn(n uint64) bool {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	if l.l.agg.spills != n {
		return false
	}
	l.l.agg.spilled = false
	return true
}

// Disown ends what Own began, once nothing of the lane is in flight: another relay calls the destination from now on, and what
// this one knows about it is forgotten. Own begins without it.
func (l Lane) Disown() {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	l.l.ease.forgetLocked()
}

// Withdraw gives back all deliveries that no worker has begun. The lane takes nothing more until it
// is owned again.
func (l Lane) Withdraw() {
	l.l.mu.Lock()
	gone := l.l.emptyLocked()
	gone = append(gone, l.l.agg.stop()...)
	answerKept(gone)
	l.l.mu.Unlock()
}

// Failures counts how often a failure has blocked an aggregate, from 1. The answers of those that it counts can be
// taken from their parcels. It is 0 for a lane without order.
func (l Lane) Failures() uint64 {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	if l.l.agg == nil {
		return 0
	}
	return l.l.agg.fails
}

// Busy reports whether a delivery of the aggregate is in flight: when the last one is delivered
// while the aggregate is blocked, its answer has Behind set.
func (l Lane) Busy(key Key) bool {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	_, is := l.l.agg.lines[key]
	return is
}

// Limits returns those of the lane.
func (l Lane) Limits() Limits { return Limits(l) }

// Passes asks a filter whether an event is for the lane, and counts those that are not. If the filter cannot
// tell, the error is the reason why the event must not be delivered: see Delivery.Refused.
func (l Lane) Passes(f delivery.Filter, c *delivery.Candidate) (bool, error) {
	passes, err := ask(f, c)
	if err != nil {
		return true, fmt.Errorf("the filter of %q cannot decide about the event: %s", l.l.name, guard.Text(err))
	}
	if !passes {
		l.l.figures.passings.filtered.Add(1)
	}
	return passes, nil
}

// Progress returns the progress of the lane.
func (l Lane) Progress() Progress { return l.l.progress() }

// GrantAside is Grant for deliveries that may take only what live ones leave: those of a replay. held
// is how many of them the lane has. They fill half of the lane at most, and of a fast one only as much as
// it works off in 2 ms, so that a live delivery finds room, and hardly waits. Nothing is granted for
// less than half of that: the engine asks again after the answers. Where live deliveries have the room,
// onRoom is called as for Grant.
func (l Lane) GrantAside(n, held int) int {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	limit := l.l.asideLocked()
	free := limit - held
	if 2*free < limit {
		return 0
	}
	now := time.Now()
	n = min(n, free)
	room := l.l.roomLocked(now)
	if room < min(n, l.l.fairLocked()) {
		room = 0
	}
	return l.l.takeRoomLocked(now, n, room)
}
