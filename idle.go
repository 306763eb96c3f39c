package notifyd

import (
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

const (
	// idlePause separates the two checks that must both find nothing to do.
	idlePause = time.Second
	// dueSoon is how far away a stored delivery may be for an idle relay to wait for it.
	dueSoon = 5 * time.Second
)

// awaitIdle waits until the relay is idle; it returns false if ctx ends first. The relay is not idle before the first purge:
// relays that run for seconds would otherwise never purge.
func (r *Relay) awaitIdle(ctx context.Context, purged <-chan struct{}) bool {
	if !await(ctx, purged) {
		return false
	}
	var idle, failing bool
	var ended uint64
	for {
		now, busy := progress(r.dispatcher)
		b, err := r.Backlog(ctx)
		if err != nil && !failing && !store.IsDown(err) && ctx.Err() == nil {
			r.log.WarnContext(ctx, "the backlog cannot be read: the relay cannot tell whether it is idle", "err", err)
		}
		failing = err != nil
		is := !busy && err == nil && !leftover{relay: r, backlog: &b}.any()
		if is && idle && now == ended {
			return true
		}
		if idle, ended = is, now; !pause(ctx, idlePause) {
			return false
		}
	}
}

// progress returns how many deliveries have ended, and whether any is under way. A call that was given up and has not
// returned is: the relay would have to wait for the call when it stops.
func progress(d *dispatch.Dispatcher) (ended uint64, busy bool) {
	for _, s := range d.Stats().Destinations {
		ended += s.Delivered + s.Failed + s.Dead + s.Released
		busy = busy || s.Running+s.Queued+s.Stuck > 0
	}
	return ended, busy
}

// leftover decides what of a backlog this relay still has to do. What waits for a person does not count: events of paused
// destinations, events without a route, and what waits behind dead letters.
type leftover struct {
	relay   *Relay
	backlog *observe.Backlog
}

// any reports whether there is anything to do.
func (l leftover) any() bool {
	all := l.relay.dispatcher.Destinations()
	own := slices.DeleteFunc(all, func(d *dispatch.Destination) bool { return !l.mine(d.Name) })
	for _, d := range own {
		if of := l.backlog.Destination(d.Name); of.Running.N > 0 || l.soon(of.NextDue) || l.reads(d.Name) {
			return true
		}
	}
	if l.reads("") {
		return true
	}
	if len(own) == 0 && len(all) > 0 || l.elsewhere("") { // no one routes, or another relay does
		return false
	}
	return l.soon(l.backlog.NextDelayed) ||
		slices.ContainsFunc(l.backlog.Types, func(t observe.TypeBacklog) bool { // one without a route is fresh until it is stored
			to := l.relay.DestinationsOf(t.EventType)
			return len(to) == 0 || slices.ContainsFunc(to, l.mine)
		}) ||
		slices.ContainsFunc(l.backlog.Unrouted, func(t observe.TypeBacklog) bool { // one that has gained a route
			return slices.ContainsFunc(l.relay.DestinationsOf(t.EventType), l.mine)
		})
}

// soon reports whether a stored delivery is due now, or within dueSoon.
func (l leftover) soon(due *time.Time) bool { return due != nil && due.Sub(l.backlog.At) <= dueSoon }

// mine reports whether this relay delivers to the destination: it has the destination, no one has paused it, and no
// other relay reads the stream for it.
func (l leftover) mine(destination string) bool {
	of := l.backlog.Destination(destination)
	return l.relay.dispatcher.Has(destination) && of.Pause == nil && !l.elsewhere(destination)
}

// positions returns the positions of a destination, one for each shard; none if there is none yet, and in a queue.
func (l leftover) positions(destination string) (all []*observe.Position) {
	for i := range l.backlog.Positions {
		if p := &l.backlog.Positions[i]; p.Destination == destination {
			all = append(all, p)
		}
	}
	return all
}

// others reports whether another relay owns a position.
func (l leftover) others(p *observe.Position) bool {
	return p.Session != nil && (p.Owner == nil || *p.Owner != l.relay.owner)
}

// elsewhere reports whether other relays own all positions of a destination.
func (l leftover) elsewhere(destination string) bool {
	all := l.positions(destination)
	return len(all) > 0 && !slices.ContainsFunc(all, func(p *observe.Position) bool { return !l.others(p) })
}

// reads reports whether this relay has to read the stream for a destination, or "" for the search for events without a route:
// events wait there, a replay runs, or no relay owns a position. Ids of open transactions count for the lag of a
// position, but no event waits at them. In a total order nothing is read behind a stored delivery.
func (l leftover) reads(destination string) bool {
	if l.backlog.Mode != observe.ModeStream {
		return false
	}
	all := l.positions(destination)
	return len(all) == 0 || slices.ContainsFunc(all, func(p *observe.Position) bool {
		d := l.relay.dispatcher.Destination(destination)
		switch {
		case l.others(p):
			return false
		case p.Session == nil, p.Replay != nil:
			return true
		case d != nil && d.Total && l.relay.dispatcher.Blocked(destination) > 0:
			return false
		}
		return p.Oldest != nil || p.Lag > store.OldestLooked
	})
}
