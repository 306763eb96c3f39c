package observe

import (
	"strconv"
	"time"
)

// Count is a number of rows. Counting ends at a limit, because a table may hold millions.
type Count struct {
	// N is the number of rows counted.
	N int `json:"count"`
	// More reports that there are more rows than were counted.
	More bool `json:"more,omitempty"`
}

// String returns "12", or "10000+" if there are more.
func (c Count) String() string {
	if c.More {
		return strconv.Itoa(c.N) + "+"
	}
	return strconv.Itoa(c.N)
}

// Plus returns the sum of both.
func (c Count) Plus(d Count) Count { return Count{N: c.N + d.N, More: c.More || d.More} }

// Backlog is the backlog at one moment.
type Backlog struct {
	// At is that moment, by the clock of the database. Ages are relative to it.
	At time.Time `json:"at"`
	// Mode is ModeQueue or ModeStream.
	Mode string `json:"mode"`
	// Positions are the positions of the destinations of a stream, by name, including that of the unrouted
	// scanner; nil in a queue.
	Positions []Position `json:"positions,omitempty"`
	// Fresh counts the events that no relay has delivered or stored yet, and Types counts them by
	// type, in the order of the types' names. In a stream Fresh is the largest lag of a position,
	// and Types are unknown.
	Fresh Count         `json:"fresh"`
	Types []TypeBacklog `json:"types"`
	// Delayed counts the events that are not available yet; in a stream once for each destination.
	Delayed Count `json:"delayed"`
	// NextDelayed is when the first delayed event without a destination becomes available. It is nil if no event is
	// delayed, and in a stream: see DestinationBacklog.NextDue.
	NextDelayed *time.Time `json:"next_delayed,omitempty"`
	// Missing is DestinationBacklog.Missing of all destinations, and of deliveries that have none yet.
	Missing Count `json:"missing"`
	// Unrouted are the types that no route of a relay matched, and UnroutedMore reports that there
	// are more of them than were read.
	Unrouted     []TypeBacklog `json:"unrouted"`
	UnroutedMore bool          `json:"unrouted_more,omitempty"`
	// Destinations are those with waiting or dead deliveries, and those that are paused, by name.
	Destinations []DestinationBacklog `json:"destinations"`
	// Oldest is the event that has waited longest; nil if none waits. Parked events wait; dead,
	// delayed and unrouted ones do not.
	Oldest *Waiting `json:"oldest,omitempty"`
}

// TypeBacklog is the backlog of one event type.
type TypeBacklog struct {
	EventType string `json:"event_type"`
	Count
	// Oldest is the event of the type that has waited longest; nil for unrouted types, and if all
	// events are delayed.
	Oldest *Waiting `json:"oldest,omitempty"`
}

// DestinationBacklog is the backlog of one destination.
type DestinationBacklog struct {
	Name string `json:"name"`
	// Fresh counts its routed events that no relay has delivered or stored yet; always 0 if the
	// routes are unknown. In a stream it is Position.Lag.
	Fresh Count `json:"fresh"`
	// Retry, Running, Parked and Dead count its deliveries by state. Events of a stream that are
	// not available yet are not part of Retry.
	Retry   Count `json:"retry"`
	Running Count `json:"running"`
	Parked  Count `json:"parked"`
	Dead    Count `json:"dead"`
	// Blocked counts the aggregates of a stream with a delivery to retry; 0 in a queue.
	Blocked Count `json:"blocked"`
	// Missing counts those deliveries of Retry whose events a relay has not found in outbox_events. They wait for
	// them, and those parked behind them wait as well.
	Missing Count `json:"missing"`
	// NextDue is when the next delivery of state retry is due; nil without such deliveries.
	NextDue *time.Time `json:"next_due,omitempty"`
	// Oldest is the event that has waited longest for this destination, among the rows that were
	// read.
	Oldest *Waiting `json:"oldest,omitempty"`
	// LastError is the newest failure among the deliveries that are due next; nil if none of them
	// has failed.
	LastError *Failure `json:"last_error,omitempty"`
	// Pause is by whom and why the destination is paused for all relays; nil if it is not.
	Pause *Pause `json:"pause,omitempty"`
	// DeadLetters are the newest dead letters, grouped by error, largest group first.
	DeadLetters []DeadGroup `json:"dead_letters,omitempty"`
}

// Waiting returns all that waits for the destination, without dead letters.
func (d *DestinationBacklog) Waiting() Count {
	return d.Fresh.Plus(d.Retry).Plus(d.Running).Plus(d.Parked)
}

// Pause is the pause of a destination, which all relays of the tables honour.
type Pause struct {
	// By is who has paused it, and Reason why; Reason may be empty.
	By     string `json:"by"`
	Reason string `json:"reason,omitempty"`
	// Since is when that was.
	Since time.Time `json:"since"`
}

// Waiting is a waiting event.
type Waiting struct {
	EventID int64 `json:"event_id"`
	// Since is when it was written, or when it became available.
	Since time.Time `json:"since"`
	// Age is the time from Since to Backlog.At, in seconds; never negative.
	Age float64 `json:"age_seconds"`
}

// Failure is a failed attempt, or a failure that concerned no single event: then EventID is 0.
type Failure struct {
	EventID   int64     `json:"event_id"`
	EventType string    `json:"event_type"`
	Attempts  int       `json:"attempts"`
	Class     string    `json:"class"` // event, destination or relay
	Text      string    `json:"text"`
	At        time.Time `json:"at"`
}

// DeadGroup are dead letters of one destination with one error. Errors that differ only in numbers
// and UUIDs are the same.
type DeadGroup struct {
	Count
	Class string `json:"class"`
	// Error is the text of the newest one.
	Error string `json:"error"`
	// EventID and EventType describe the newest dead letter, and At is the time of its last failure.
	EventID   int64     `json:"event_id"`
	EventType string    `json:"event_type"`
	At        time.Time `json:"at"`
}

// Destination returns the backlog of the named destination, or an empty backlog.
func (b *Backlog) Destination(name string) DestinationBacklog {
	for _, d := range b.Destinations {
		if d.Name == name {
			return d
		}
	}
	return DestinationBacklog{Name: name}
}
