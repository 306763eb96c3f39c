package delivery

import (
	"time"
)

// IncidentKind is the kind of an [Incident].
type IncidentKind uint8

const (
	// IncidentDead means that an event became a dead letter.
	IncidentDead IncidentKind = iota + 1
	// IncidentDown means that a destination is down, and its lane pauses.
	IncidentDown
	// IncidentUp means that a destination is up again.
	IncidentUp
	// IncidentDatabaseLost means that the database does not answer.
	IncidentDatabaseLost
	// IncidentDatabaseBack means that the database answers again, and has for a while.
	IncidentDatabaseBack
	// IncidentRefused means that the database answers, and refuses the statements that record outcomes or hand out deliveries; Err
	// has its answer.
	IncidentRefused
	// IncidentAccepted means that the database accepts all of the relay's statements again.
	IncidentAccepted
	// IncidentListenerLost means that notifications do not arrive, or are not known to arrive; events are found
	// by polling.
	IncidentListenerLost
	// IncidentListenerBack means that notifications have arrived again for a while.
	IncidentListenerBack
	// IncidentHang means that the relay hangs: work is due, nothing holds it back, and nothing moves. Err names the work, and how
	// long it has waited.
	IncidentHang
	// IncidentHangOver means that all work moves again.
	IncidentHangOver
	// IncidentHeldBack means that a destination that no relay has keeps events of a stream from being purged.
	IncidentHeldBack
	// IncidentStale means that an event has waited for too long.
	IncidentStale
	// IncidentCaughtUp means that the oldest waiting event is within the limit again.
	IncidentCaughtUp
	// IncidentRepeats means that a destination with its own position gets events again, because the database has lost the record
	// of their delivery.
	IncidentRepeats
)

// String returns the label of the kind, as in logs and alerts.
func (k IncidentKind) String() string {
	switch k {
	case IncidentDead:
		return "dead_letter"
	case IncidentDown:
		return "destination_down"
	case IncidentUp:
		return "destination_up"
	case IncidentDatabaseLost:
		return "database_lost"
	case IncidentDatabaseBack:
		return "database_back"
	case IncidentRefused:
		return "database_refuses"
	case IncidentAccepted:
		return "database_accepts"
	case IncidentListenerLost:
		return "listener_lost"
	case IncidentListenerBack:
		return "listener_back"
	case IncidentHang:
		return "hang"
	case IncidentHangOver:
		return "hang_over"
	case IncidentHeldBack:
		return "purge_held_back"
	case IncidentStale:
		return "waiting_too_long"
	case IncidentCaughtUp:
		return "caught_up"
	case IncidentRepeats:
		return "destination_repeats"
	default:
		return "unknown"
	}
}

// Incident is an event that an operator may want to know at once. The relay raises all but the last
// two kinds, which are for monitoring of how long events wait. A dead letter is raised when it is
// decided, not when it is written to the database: after a lost connection it may be raised again.
type Incident struct {
	Kind IncidentKind
	// Time is when it happened, by the clock of the relay.
	Time time.Time
	// Destination is empty for incidents without one.
	Destination string
	// EventID and EventType identify the event, for IncidentDead.
	EventID   int64
	EventType string
	// Err is the cause, nil for good news.
	Err error
}

// Observer receives incidents. Observe is called from many goroutines, on paths that deliver
// events: it must return at once.
type Observer interface {
	Observe(incident Incident)
}
