package dispatch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/order"
)

// QueueLanes returns the lanes for an engine that keeps no order, one for each destination, in the order in which the
// destinations were added.
func (d *Dispatcher) QueueLanes() []QueueLane {
	firsts := d.firsts()
	all := make([]QueueLane, len(firsts))
	for i, l := range firsts {
		all[i] = l
	}
	return all
}

// StreamLanes returns the lanes for an engine that keeps order, one for each shard: by destination, in the order in which
// the destinations were added, and by shard.
func (d *Dispatcher) StreamLanes() []StreamLane {
	all := make([]StreamLane, len(d.lanes))
	for i, l := range d.lanes {
		all[i] = l
	}
	return all
}

// Patterns returns the patterns that lead to a destination, sorted.
func (d *Dispatcher) Patterns(destination string) []string { return d.router.patterns(destination) }

// Drops returns the settings by which a lane may finish with an event that its destination has not acknowledged:
// expires_after and when, in this order. It panics for an unknown name, as do ReportDestination and FilterOf.
func (d *Dispatcher) Drops(destination string) (settings []string) {
	l := d.first(destination)
	if l.dest.ExpiresAfter > 0 {
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
		if l.dest.Total {
			l.ctx = delivery.WithTotalOrder(d.workCtx)
		}
		if l.dest.Part > 0 {
			l.ctx = delivery.WithShard(l.ctx, l.dest.Part)
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
	defer d.database.settle(0) // no reason to wait for calm any more
	return d.drain(engine)
}

// End ends the last run: nothing is logged or reported to the observer by itself any more. It may be called before
// any Begin.
func (d *Dispatcher) End() { d.database.end() }

// LanesOf returns the lanes of an event type, none if no route matches, and whether this is the
// first event of the type.
func (d *Dispatcher) LanesOf(eventType string) (lanes []QueueLane, firstTime bool) {
	w, firstTime := d.router.wayOf(eventType)
	return w.views, firstTime
}

// TypesOf returns the event types seen so far for whose lanes f returns true.
func (d *Dispatcher) TypesOf(f func(lanes []QueueLane) bool) []string { return d.router.types(f) }

// QueueLane returns the lane of a destination, false if there is no destination with that name.
func (d *Dispatcher) QueueLane(destination string) (QueueLane, bool) {
	l := d.first(destination)
	if l == nil {
		return nil, false
	}
	return l, true
}

// Wanted reports whether the destination gets events of the type.
func (d *Dispatcher) Wanted(destination, eventType string) bool {
	w, _ := d.router.wayOf(eventType)
	return slices.ContainsFunc(w.lanes, func(l *lane) bool { return l.dest.Name == destination })
}

// ReportDestination records whether a destination answers something else than a delivery for a shard; nil means that it
// does. Otherwise the lane of the shard pauses, as after a failed delivery, and probes. ReportDestination returns the rest of
// the pause. With news the outage is reported again, although the destination may be unavailable already for another reason.
func (d *Dispatcher) ReportDestination(name string, part int, err error, news bool) (pause time.Duration) {
	l := d.byName[name][part]
	if err == nil {
		l.answers()
		return 0
	}
	return l.fault(time.Now(), err, news)
}

// Destination returns what never changes about the destination.
func (l *lane) Destination() *Destination { return &l.dest }

// Serve gives the lane to an engine that keeps no order.
func (l *lane) Serve(onCapacity func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agg, l.onRoom, l.owned = nil, onCapacity, true
}

// Own gives the lane to an engine that keeps order.
func (l *lane) Own(onCapacity func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agg, l.onRoom, l.owned = newQueues(&l.dest, &l.target), onCapacity, true
}

// Disown forgets the health of the destination.
func (l *lane) Disown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.health.Forget()
	l.outage.ends(l)
	l.owned = false
}

// Withdraw returns all deliveries that no worker has begun.
func (l *lane) Withdraw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	gone := l.emptyLocked()
	gone = l.keepLocked(gone, l.agg.Withdraw(), VerdictReleased)
	l.answerKept(gone)
}

// Reserve reserves capacity: what the lane delivers within its window. A fast destination gets large claims, and a slow one gets
// no claims that would only wait.
func (l *lane) Reserve(r Request) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := r.N
	if r.Replay {
		limit := l.asideLocked()
		free := limit - r.Held
		if 2*free < limit {
			return 0
		}
		n = min(n, free)
	}
	now := time.Now()
	room := l.roomLocked(now)
	if (r.Once || r.Replay) && room < min(n, l.fairLocked()) { // a full lane would trigger a read with each call that finishes
		room = 0
	}
	granted := min(n, room)
	l.load += granted
	l.health.Take(granted)
	if granted < n {
		l.refuseLocked(now)
	}
	return granted
}

// Capacity returns for how many deliveries there is capacity, if that is worth a claim.
func (l *lane) Capacity(stored bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	room := l.roomLocked(now)
	if room < l.fairLocked() || stored && l.health.Waits(now, true) {
		l.refuseLocked(now)
		return 0
	}
	return room
}

// HasCapacity reports whether there is capacity for at least one delivery.
func (l *lane) HasCapacity() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roomLocked(time.Now()) > 0
}

// Waits reports whether it is the turn of the other deliveries to find out whether the destination is down.
func (l *lane) Waits(stored bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.health.Waits(now, stored) {
		return false
	}
	l.refuseLocked(now)
	return true
}

// Return returns unused reserved capacity.
func (l *lane) Return(n int) {
	if n <= 0 {
		return
	}
	l.mu.Lock()
	l.load -= n
	call := l.returnLocked(n)
	l.mu.Unlock()
	call()
}

// Refused counts a delivery for which there was no capacity.
func (l *lane) Refused() { l.figures.passings.refused.Add(1) }

// Slow reports whether an event takes longer than a lease costs.
func (l *lane) Slow() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tempo.slow()
}

// Observe records that an event takes at least this long.
func (l *lane) Observe(atLeast time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if atLeast > l.tempo.pace {
		l.tempo.observe(atLeast)
	}
}

// Deliver hands over a parcel.
func (l *lane) Deliver(p *Parcel, unblock []Key) {
	held := l.deliver(p, unblock)
	if held == 0 {
		return
	}
	// Order keeps deliveries back: otherwise a lane would spend its small budget on writing down the events behind a
	// failure, row by row, and deliver nothing meanwhile. Their capacity is free, too, and a refused engine is notified, also
	// where the delivery that was held back was the only probe.
	l.mu.Lock()
	call := l.returnLocked(held)
	l.mu.Unlock()
	call()
}

func (l *lane) deliver(p *Parcel, unblock []Key) (held int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.agg
	p.order = a
	if l.head > 0 && len(l.queue)+len(p.jobs) > cap(l.queue) {
		l.compactLocked()
	}
	l.health.Press(l.aheadLocked())
	most := 0
	if l.tempo.slow() && !l.dest.Total { // a total order has no more capacity than that
		most = maxLine
	}
	var back []kept
	for i := range p.jobs {
		j, d := &p.jobs[i], &p.events[i]
		j.Value = task{parcel: p, work: i, event: d.Event}
		turn := order.Begins
		if a != nil {
			e := d.entry(a)
			e.Most = most
			turn = a.Join(j, e)
		}
		switch turn {
		case order.Begins:
			l.queue = append(l.queue, j)
		case order.Parked:
			l.load--
			back = append(back, kept{j, VerdictParked})
		case order.Returned:
			l.load--
			back = append(back, kept{j, VerdictReleased})
		default: // it waits
		}
	}
	if a != nil && !a.Stopped() {
		for _, key := range unblock {
			a.Unblock(key)
		}
	}
	if len(back) > 0 {
		l.health.Held(time.Now(), len(back))
	}
	l.employLocked()
	l.answerKept(back)
	return len(back)
}

// SetRows records whether deliveries of the aggregate are stored.
func (l *lane) SetRows(key Key, rows Rows) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.agg
	switch rows {
	case NoRows:
		a.Unblock(key)
	case SomeRows:
		a.Block(key)
	case NewRow:
		a.Fail(key)
	}
}

// Order returns the state of the order. It is zero while no engine owns the lane.
func (l *lane) Order(key Key) (o Order) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.agg
	if a == nil {
		return o
	}
	o = Order{Aggregates: a.Blocked(), Failures: a.Failures(), Returned: a.Returned(), Stopped: a.Stopped()}
	if key != (Key{}) {
		o.Blocked, o.Busy = a.IsBlocked(key), a.Busy(key)
	}
	return o
}

// GoOn lets the lane take deliveries again, if it has returned nothing since Order counted n.
func (l *lane) GoOn(n uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.agg.Resume(n)
}
