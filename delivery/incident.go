package delivery

import (
	"time"
)

// IncidentKind says what has happened.
type IncidentKind uint8

const (
	// IncidentDead is an event that became a dead letter.
	IncidentDead IncidentKind = iota + 1
	// IncidentUnavailable is a destination that is unavailable: its lane pauses.
	IncidentUnavailable
	// IncidentAvailable is a destination that answers again.
	IncidentAvailable
	// IncidentDatabaseLost is a database that does not answer.
	IncidentDatabaseLost
	// IncidentDatabaseBack is a database that answers again, and has for a while.
	IncidentDatabaseBack
	// IncidentListenerLost is that notifications are not heard, or not known to
	// be: events are found by polling.
	IncidentListenerLost
	// IncidentListenerBack is that they are heard again, and have been for a while.
	IncidentListenerBack
	// IncidentStale is an event that has waited for too long.
	IncidentStale
	// IncidentCaughtUp is that no event waits for that long any more.
	IncidentCaughtUp
)

// String returns the word for the kind, as logs and alerts have it.
func (k IncidentKind) String() string {
	switch k {
	case IncidentDead:
		return "dead_letter"
	case IncidentUnavailable:
		return "destination_unavailable"
	case IncidentAvailable:
		return "destination_available"
	case IncidentDatabaseLost:
		return "database_lost"
	case IncidentDatabaseBack:
		return "database_back"
	case IncidentListenerLost:
		return "listener_lost"
	case IncidentListenerBack:
		return "listener_back"
	case IncidentStale:
		return "waiting_too_long"
	case IncidentCaughtUp:
		return "caught_up"
	default:
		return "unknown"
	}
}

// Incident is something that an operator may want to know of at once. The
// relay raises all but the last two kinds, which are for whoever watches how
// long events wait. A dead letter is raised when it is decided, not when
// it is written to the database: after a lost connection it may be raised again.
type Incident struct {
	Kind IncidentKind
	// Time is when it happened, by the clock of the relay.
	Time time.Time
	// Destination is empty for those that are about none.
	Destination string
	// EventID and EventType tell the event, for IncidentDead.
	EventID   int64
	EventType string
	// Err is what went wrong, nil for good news.
	Err error
}

// Observer takes incidents. Observe is called from many goroutines, on paths
// that deliver events: it must return at once.
type Observer interface {
	Observe(incident Incident)
}
