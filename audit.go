package notifyd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// audit looks for work that is due, and that this relay could begin and does not. It decides by two looks at the tables that are
// some time apart: the same event is due in both, and in between its lane was well and answered nothing. So
// neither the age of an event nor any clock decides, and other relays that do the work are seen by what they have done.
type audit struct {
	relay *Relay
	lanes map[string]stillness // by destination
	seen  map[string]sighting  // by what was seen
}

// stillness is since when a lane is well and has answered nothing.
type stillness struct {
	answers uint64
	since   time.Duration
	within  time.Duration // of its calls
}

// sighting is something that should not last.
type sighting struct {
	key   string        // of the thing itself: another event is another sighting
	since time.Duration // of the first look that has seen it
}

// suspicion is something that must not last until the next looks.
type suspicion struct {
	what   string // what it is of: "mail", or "unit of mail"
	key    string
	reason func(lasted time.Duration) string
	within time.Duration // how long it may last beyond engine.Patience
	work   *store.Overdue
	own    bool // a restart of this relay is likely to help
}

func newAudit(r *Relay) *audit {
	return &audit{relay: r, lanes: make(map[string]stillness), seen: make(map[string]sighting)}
}

// look looks once, and returns what hangs. Where no lane is still it asks the database nothing. Work that
// a relay does not begin while the database refuses to record deliveries is not a hang.
func (a *audit) look(ctx context.Context) []engine.Hang {
	now := a.relay.pulse.Now()
	still := a.stillLanes(now)
	if a.relay.dispatcher.Refused() {
		still = nil
	}
	if a.relay.dispatcher.DatabaseDown() || len(still) == 0 && !a.relay.stream {
		clear(a.seen)
		return nil
	}
	b, err := a.relay.Waiting(ctx)
	if err != nil { // the database is down, or slow: what was seen before proves nothing
		clear(a.seen)
		return nil
	}
	var all []suspicion
	if a.relay.stream {
		all = append(a.unheld(&b), a.unread(&b, still)...)
	} else {
		all = append(a.unclaimed(&b, still), a.unleased(ctx, &b)...)
	}
	return a.hangs(ctx, now, all)
}

// stillLanes returns the lanes that are well, and have answered nothing since the look before.
func (a *audit) stillLanes(now time.Duration) []string {
	var still []string
	for _, l := range a.relay.dispatcher.Lanes() {
		p := l.Progress()
		before, known := a.lanes[l.Name()]
		if !known || !p.Well || p.Answers != before.answers {
			a.lanes[l.Name()] = stillness{answers: p.Answers, since: now, within: p.Within}
			delete(a.seen, l.Name())
			continue
		}
		before.within = max(before.within, p.Within)
		a.lanes[l.Name()] = before
		still = append(still, l.Name())
	}
	return still
}

// hangs returns those suspicions that have lasted for too long, and forgets those that have not.
func (a *audit) hangs(ctx context.Context, now time.Duration, all []suspicion) (hangs []engine.Hang) {
	seen := make(map[string]sighting, len(all))
	for _, s := range all {
		one := a.seen[s.what]
		if one.key != s.key {
			one = sighting{key: s.key, since: now}
		}
		seen[s.what] = one
		long := now - one.since - s.within
		if long < engine.Patience {
			continue
		}
		h := engine.Hang{Part: s.what, Reason: s.reason(now - one.since), For: long, Restart: s.own}
		if s.work != nil {
			if locked, err := a.relay.watch.Locked(ctx, *s.work); err == nil && locked {
				h.Reason += "; another session has locked it"
				h.Restart = false
			}
		}
		hangs = append(hangs, h)
	}
	a.seen = seen
	return hangs
}

// undone is the reason of work that is due for a destination and not begun.
func undone(what, destination, not string) func(time.Duration) string {
	return func(lasted time.Duration) string {
		return fmt.Sprintf("%s is due for %s and not %s, for %v at least, though the destination works and has received nothing in that time", what, destination, not, lasted)
	}
}

// unclaimed returns the work of a queue that is due for lanes that are still.
func (a *audit) unclaimed(b *Backlog, still []string) (all []suspicion) {
	for _, name := range still {
		s := suspicion{what: name, within: a.lanes[name].within, own: true}
		if due := b.Destination(name).NextDue; due != nil && !due.After(b.At) {
			s.key, s.work = due.String(), &store.Overdue{Destination: name}
			s.reason = undone("a stored delivery", name, "begun")
			all = append(all, s)
			continue
		}
		for _, t := range b.Types {
			if t.Oldest != nil && slices.Contains(a.relay.DestinationsOf(t.EventType), name) {
				s.key, s.work = fmt.Sprint(t.Oldest.EventID), &store.Overdue{EventID: t.Oldest.EventID}
				s.reason = undone(fmt.Sprintf("event %d", t.Oldest.EventID), name, "claimed")
				all = append(all, s)
				break
			}
		}
	}
	return all
}

// unleased returns a lease of a queue that has ended, and that no relay takes over.
func (a *audit) unleased(ctx context.Context, b *Backlog) []suspicion {
	if !slices.ContainsFunc(b.Destinations, func(d observe.DestinationBacklog) bool { return d.Running.N > 0 }) {
		return nil
	}
	o, ok, err := a.relay.watch.LostLease(ctx, engine.Patience)
	if err != nil || !ok {
		return nil
	}
	return []suspicion{{
		what: "leases", key: fmt.Sprint(o),
		reason: func(lasted time.Duration) string {
			return fmt.Sprintf("the lease of event %d for %s has ended, and no relay has taken it over, for %v at least", o.EventID, o.Destination, lasted)
		},
	}}
}

// unheld returns the units of a stream that no relay holds, of those that this relay wants.
func (a *audit) unheld(b *Backlog) (all []suspicion) {
	for i := range b.Positions {
		p := &b.Positions[i]
		if p.Destination != "" && !a.relay.dispatcher.Has(p.Destination) {
			continue
		}
		name := p.Destination
		if name == "" {
			name = "the search for types without a route"
		}
		what, key := "unit of "+name, p.UpdatedAt.String()
		// A relay that takes a unit writes its number into the position. While none has, a session that holds the lock
		// only tries to.
		if p.Session != nil && p.Owner != nil && a.seen[what].key != key {
			continue
		}
		all = append(all, suspicion{
			what: what, key: key,
			reason: func(lasted time.Duration) string {
				return fmt.Sprintf("no relay holds the unit of %s, for %v at least: nothing is delivered from there", name, lasted)
			},
		})
	}
	return all
}

// unread returns the work that is due for lanes that are still, of the units that this relay owns.
func (a *audit) unread(b *Backlog, still []string) (all []suspicion) {
	var s Stats
	(*a.relay.engine.Load()).Stats(&s)
	for _, unit := range s.Positions {
		if unit.Loading || !slices.Contains(still, unit.Destination) {
			continue
		}
		found := suspicion{what: unit.Destination, within: a.lanes[unit.Destination].within, own: true}
		if due := b.Destination(unit.Destination).NextDue; due != nil && !due.After(b.At) {
			found.key = due.String()
			found.reason = undone("a stored delivery", unit.Destination, "begun")
			all = append(all, found)
			continue
		}
		for _, p := range b.Positions {
			if p.Destination == unit.Destination && p.Oldest != nil {
				found.key = fmt.Sprint(p.Oldest.EventID, p.Head, p.Lowest)
				found.reason = undone(fmt.Sprintf("event %d", p.Oldest.EventID), unit.Destination, "read or not answered")
				all = append(all, found)
				break
			}
		}
	}
	return all
}
