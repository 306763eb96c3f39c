package observe

import (
	"strconv"
	"time"
)

// Count is a number of rows. Counting ends at the limit: a table may hold
// millions.
type Count struct {
	// N is how many were counted.
	N int `json:"count"`
	// More says that counting ended before the rows did.
	More bool `json:"more,omitempty"`
}

// String returns "12", or "10000+" where there are more.
func (c Count) String() string {
	if c.More {
		return strconv.Itoa(c.N) + "+"
	}
	return strconv.Itoa(c.N)
}

// Plus returns both together.
func (c Count) Plus(d Count) Count { return Count{N: c.N + d.N, More: c.More || d.More} }

// Backlog is what waits, at one moment.
type Backlog struct {
	// At is that moment, by the clock of the database. Ages count from it.
	At time.Time `json:"at"`
	// Mode is ModeQueue or ModeStream.
	Mode string `json:"mode"`
	// Positions are how far the destinations of a stream have come, by name, that of the
	// router among them; nil in a queue.
	Positions []Position `json:"positions,omitempty"`
	// Fresh counts the events that no relay has dealt with yet, and Types counts
	// them by type, in the order of the types' names. Of a stream Fresh is the largest
	// lag of a position, and Types are not known.
	Fresh Count         `json:"fresh"`
	Types []TypeBacklog `json:"types"`
	// Delayed counts the events that were put aside until they are available; in a
	// stream once for each destination.
	Delayed Count `json:"delayed"`
	// Unrouted are the types that no route of a relay matched.
	Unrouted []TypeBacklog `json:"unrouted"`
	// Destinations are those for which something waits or is dead, by name.
	Destinations []DestinationBacklog `json:"destinations"`
	// Oldest is the event that has waited longest; nil if none waits. What is
	// parked waits, what is dead, delayed or unrouted does not.
	Oldest *Waiting `json:"oldest,omitempty"`
}

// TypeBacklog is what waits of one event type.
type TypeBacklog struct {
	EventType string `json:"event_type"`
	Count
	// Oldest is the one that has waited longest; nil for types that are unrouted,
	// and where all are delayed.
	Oldest *Waiting `json:"oldest,omitempty"`
}

// DestinationBacklog is what waits for one destination.
type DestinationBacklog struct {
	Name string `json:"name"`
	// Fresh counts the events that are routed to it and that no relay has dealt
	// with yet; always 0 where the routes are not known. Of a stream it is Position.Lag.
	Fresh Count `json:"fresh"`
	// Retry, Running, Parked and Dead count its deliveries by state. Events of a stream
	// that are not available yet are not among Retry.
	Retry   Count `json:"retry"`
	Running Count `json:"running"`
	Parked  Count `json:"parked"`
	Dead    Count `json:"dead"`
	// Blocked counts the aggregates of a stream of which a delivery is to be tried again;
	// 0 in a queue.
	Blocked Count `json:"blocked"`
	// NextDue is when the next delivery of state retry is due; nil if there is none.
	NextDue *time.Time `json:"next_due,omitempty"`
	// Oldest is the event that has waited longest for this destination, as far as
	// the rows that were looked at tell.
	Oldest *Waiting `json:"oldest,omitempty"`
	// LastError is the newest failure among the deliveries that are due next; nil
	// if none of them has failed.
	LastError *Failure `json:"last_error,omitempty"`
	// DeadLetters are the newest dead letters, grouped by error, largest group first.
	DeadLetters []DeadGroup `json:"dead_letters,omitempty"`
}

// Waiting returns all that waits for the destination, dead letters left out.
func (d *DestinationBacklog) Waiting() Count {
	return d.Fresh.Plus(d.Retry).Plus(d.Running).Plus(d.Parked)
}

// Waiting is an event that waits.
type Waiting struct {
	EventID int64 `json:"event_id"`
	// Since is when it was written, or when it was to be available.
	Since time.Time `json:"since"`
	// Age is how long that was before Backlog.At, in seconds; never negative.
	Age float64 `json:"age_seconds"`
}

// Failure is a failed attempt.
type Failure struct {
	EventID   int64     `json:"event_id"`
	EventType string    `json:"event_type"`
	Attempts  int       `json:"attempts"`
	Class     string    `json:"class"` // event, destination or ours
	Text      string    `json:"text"`
	At        time.Time `json:"at"`
}

// DeadGroup are dead letters of one destination with one error. Errors that
// differ in numbers and UUIDs only are the same.
type DeadGroup struct {
	Count
	Class string `json:"class"`
	// Error is the text of the newest one.
	Error string `json:"error"`
	// EventID and EventType are those of the newest one, and At is when it was
	// given up.
	EventID   int64     `json:"event_id"`
	EventType string    `json:"event_type"`
	At        time.Time `json:"at"`
}

// Destination returns what waits for the named destination; nothing for a name
// that is not there.
func (b *Backlog) Destination(name string) DestinationBacklog {
	for _, d := range b.Destinations {
		if d.Name == name {
			return d
		}
	}
	return DestinationBacklog{Name: name}
}
