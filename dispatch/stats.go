package dispatch

import "time"

// Reporter is implemented by a [Handler] that knows how its destination is.
type Reporter interface {
	// Report returns what is known. It contacts nothing and returns at once.
	Report() Report
}

// Report is the state of a handler at one moment.
type Report struct {
	// Connected says that there is a connection. A handler that connects when it
	// is first used has none before.
	Connected bool
	// Blocked says that the destination has asked for a pause, as RabbitMQ does
	// when it runs out of memory, and Reason why, in its own words.
	Blocked bool
	Reason  string
	// Unconfirmed is how many messages are sent and not answered yet.
	Unconfirmed int
}

// Stats are the figures of a dispatcher. Counters begin with zero at its start
// and only grow.
type Stats struct {
	// Claims counts the claims that found something, and Claimed what they found.
	Claims, Claimed uint64
	// Fenced counts answers that were refused because another relay had taken
	// the delivery over.
	Fenced uint64
	// Bell is how awake the relay is: "asleep" (writers ring), "awake" (it keeps
	// them silent and sweeps), "ringing" or "drowsy" (about to fall asleep).
	Bell string
	// DatabaseDown says that the database does not answer.
	DatabaseDown bool
	// Listener is the connection that listens; nil where the relay only polls, or
	// if somebody else than a relay asks.
	Listener *ListenerStats
	// Destinations are the lanes, in the order in which they were added.
	Destinations []DestinationStats
}

// DestinationStats are the figures of one destination.
type DestinationStats struct {
	Name string
	// Delivered, Failed, Dead and Released count answers: acknowledged, to be
	// tried again, given up, and given back without counting an attempt.
	Delivered, Failed, Dead, Released uint64
	// Running is how many calls of the handler are under way, and Queued how many
	// deliveries wait for one in memory.
	Running, Queued int
	// Unavailable says that the lane pauses because the destination is down.
	Unavailable bool
	// Paused says that somebody has called Pause: nothing is claimed for it.
	Paused bool
	// Pace is what an event takes a worker, on average.
	Pace time.Duration
	// Report is what the handler knows; nil if it does not tell.
	Report *Report
}

// Stats returns the figures of the moment. It asks nobody and is cheap.
func (d *Dispatcher) Stats() Stats {
	s := Stats{Fenced: d.leases.fenced.Load(), DatabaseDown: d.health.down()}
	s.Claims, s.Claimed, s.Bell = d.sched.stats()
	for _, l := range d.lanes {
		s.Destinations = append(s.Destinations, l.stats())
	}
	return s
}

func (l *lane) stats() DestinationStats {
	l.mu.Lock()
	s := DestinationStats{
		Name: l.name, Delivered: l.total[delivered], Failed: l.total[failed], Dead: l.total[dead], Released: l.total[released],
		Running: l.running, Queued: len(l.queue) - l.head, Unavailable: l.breaker.open(), Paused: l.paused, Pace: l.pace,
	}
	l.mu.Unlock()
	if r, ok := l.handler.(Reporter); ok {
		report := r.Report()
		s.Report = &report
	}
	return s
}

func (h *health) down() bool { return h.lost.Load() }

func (s *scheduler) stats() (claims, claimed uint64, bell string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims, s.found, s.sweep.mode.String()
}

func (m mode) String() string {
	switch m {
	case asleep:
		return "asleep"
	case awake:
		return "awake"
	case ringing:
		return "ringing"
	case drowsy:
		return "drowsy"
	default:
		return "unknown"
	}
}
