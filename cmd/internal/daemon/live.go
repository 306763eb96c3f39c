package daemon

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// live is the relay that runs at the moment, for observers of the daemon: a reload
// puts another one in its place. It is safe for several goroutines.
type live struct {
	mu    sync.Mutex // guards the fields below
	relay *notifyd.Relay
	past  observe.Stats // counters of the relays before
}

func newLive(relay *notifyd.Relay) *live { return &live{relay: relay} }

// Relay returns the running relay, which may stop at any time.
func (l *live) Relay() *notifyd.Relay {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.relay
}

// replace puts a relay that does not run yet in the place of one that has
// stopped.
func (l *live) replace(relay *notifyd.Relay) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.past = addCounters(l.relay.Stats(), l.past)
	l.relay = relay
}

// Pause pauses a destination, see ops.Client.
func (l *live) Pause(ctx context.Context, destination string, a ops.Action) error {
	return l.Relay().Ops().Pause(ctx, destination, a)
}

// Resume resumes a destination, see ops.Client.
func (l *live) Resume(ctx context.Context, destination string, a ops.Action) (was bool, err error) {
	return l.Relay().Ops().Resume(ctx, destination, a)
}

// Stats returns the figures of the relay that runs, with counters since the
// start of the daemon.
func (l *live) Stats() observe.Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.relay.Stats()
	s := addCounters(own, l.past)
	s.Destinations = s.Destinations[:len(own.Destinations)] // without the removed ones
	return s
}

// Live returns why only a restart is likely to help; nil else.
func (l *live) Live() error {
	h := l.Health()
	return h.Live()
}

// Health returns the health of the current relay, also after it has stopped: the daemon then starts another one, or ends.
func (l *live) Health() observe.Health {
	h := l.Relay().Health()
	h.Stopped = nil

	return h
}

// Listening implements metrics.Source.
func (l *live) Listening() bool { return l.Relay().Listening() }

// Waiting implements metrics.Source.
func (l *live) Waiting(ctx context.Context) (observe.Backlog, error) {
	return l.Relay().Waiting(ctx)
}

// Backlog reads the backlog from the database.
func (l *live) Backlog(ctx context.Context) (observe.Backlog, error) {
	return l.Relay().Backlog(ctx)
}

// DestinationsOf returns the destinations of an event type.
func (l *live) DestinationsOf(eventType string) []string { return l.Relay().DestinationsOf(eventType) }

// addCounters returns s with the counters of past added to its own, and those
// destinations behind its own which only past has: they may come back.
func addCounters(s, past observe.Stats) observe.Stats {
	s.Claims += past.Claims
	s.Claimed += past.Claimed
	s.Fenced += past.Fenced
	s.ByID = s.ByID.Plus(past.ByID)
	s.Sweeps = s.Sweeps.Plus(past.Sweeps)
	s.Due = s.Due.Plus(past.Due)

	s.Leases.Granted += past.Leases.Granted
	s.Leases.Renewed += past.Leases.Renewed
	s.Leases.Lost += past.Leases.Lost
	s.Leases.TakenOver += past.Leases.TakenOver

	if l, p := s.Listener, past.Listener; l != nil && p != nil {
		sum := *l
		sum.Lost += p.Lost
		sum.Sent += p.Sent
		sum.Overdue += p.Overdue
		sum.Unsent += p.Unsent
		s.Listener = &sum
	}

	before := make(map[string]observe.DestinationStats, len(past.Destinations))
	for _, d := range past.Destinations {
		before[d.Name] = d
	}

	s.Destinations = slices.Clone(s.Destinations)
	for i := range s.Destinations {
		d := &s.Destinations[i]
		p := before[d.Name]
		delete(before, d.Name)

		d.Delivered += p.Delivered
		d.Failed += p.Failed
		d.Dead += p.Dead
		d.Released += p.Released
		d.Parked += p.Parked
		d.Refused += p.Refused
		d.Withdrawn += p.Withdrawn
		d.Withheld += p.Withheld
		d.Filtered += p.Filtered
		d.RateLimits += p.RateLimits
		d.Expired += p.Expired

		for class := range d.Classes {
			d.Classes[class] += p.Classes[class]
		}

		d.Started.Add(&p.Started)
		d.Acked.Add(&p.Acked)
	}

	for _, name := range slices.Sorted(maps.Keys(before)) {
		s.Destinations = append(s.Destinations, before[name])
	}
	return s
}
