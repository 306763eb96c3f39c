package ops

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// State is the state of an event, or of its delivery to one destination.
type State string

// The states of an event. A delivery may be waiting, dead or discarded as well.
const (
	// Waiting: a destination has yet to receive the event. Of a delivery: it is due at
	// Destination.NextTry.
	Waiting State = "waiting"
	// Dead: a delivery has become a dead letter, and no other one waits.
	Dead State = "dead"
	// Discarded: a person has permanently discarded a dead delivery, and nothing else is
	// left to do.
	Discarded State = "discarded"
	// Done: nothing is left to do. This state does not tell who has received the event; the states of its deliveries do,
	// as far as they are stored.
	Done State = "done"
	// Unknown: the row of a delivery is gone, and nothing shows that it was acknowledged. `notifyd positions forget`, a
	// change of the mode, or SQL by hand has removed it.
	Unknown State = "unknown"
)

// The states of a delivery.
const (
	// Filtered: a condition excludes the event from the destination. No table stores this: see
	// Event.Filter.
	Filtered State = "filtered"
	// Delivered: the destination has acknowledged the event.
	Delivered State = "delivered"
	// Skipped: the destination began behind the event by its start_from, or a person has moved its position past the
	// event. It was not sent, unless the position had been moved back before.
	Skipped State = "skipped"
	// Running: a relay is delivering it under a lease, which is written for slow calls.
	Running State = "running"
	// Parked: it waits until an earlier event of its aggregate is delivered; see Destination.Behind.
	Parked State = "parked"
	// Fresh: the event of a queue has not been tried, or its first attempt is under way.
	Fresh State = "not tried"
	// Unrouted: no route matches the event's type; it waits for one.
	Unrouted State = "unrouted"
	// Unread: the destination of a stream has not reached the event yet.
	Unread State = "not reached"
	// Open: the destination of a stream has reached the event and not acknowledged it: it is under
	// way, or waits for its turn, as while the destination is unavailable or paused.
	Open State = "not acknowledged"
	// NotRouted: the routes of the destination do not lead such events to it.
	NotRouted State = "not routed"
	// Passed: the position is beyond the event, and no table records whether it was sent. A setting may have excluded the event
	// (Destination.Drops), or its former routes were deleted.
	Passed State = "passed"
)

// Pending reports whether the delivery is still to be made.
func (s State) Pending() bool {
	switch s {
	case Waiting, Running, Parked, Fresh, Unrouted, Unread, Open:
		return true
	default:
		return false
	}
}

// Destination is the state of an event's delivery to one destination.
type Destination struct {
	// Name is empty while the destinations are not decided: an event that was not tried, is
	// delayed, or has no route.
	Name  string `json:"destination"`
	State State  `json:"state"`
	// Since is when the state began: when the delivery died, failed last or was held back by its rate limit, was
	// discarded, or began to run. It is nil if no table stores this time, as for a delivery that succeeded and was not a
	// replayed dead letter.
	Since *time.Time `json:"since,omitempty"`
	// NextTry is when a waiting delivery is due; in the past, it is due now.
	NextTry *time.Time `json:"next_try,omitempty"`
	// Attempts counts the failures so far, without those that were the destination's fault.
	Attempts int `json:"attempts,omitempty"`
	// Replays counts how often a person has replayed it.
	Replays int `json:"replays,omitempty"`
	// Behind is the first delivery of the aggregate, of one that is parked.
	Behind *Behind `json:"behind,omitempty"`
	// Actor is who discarded it.
	Actor string `json:"actor,omitempty"`
	// Condition is the one that keeps the event from the destination, of one that is filtered.
	Condition string `json:"condition,omitempty"`
	// Drops are the settings by which the destination may have passed the event without receiving it, of one that is passed:
	// expires_after, when.
	Drops []string `json:"drops,omitempty"`
	// Throttled is the pause that the destination has requested, of a delivery that waits for it. No table stores this: see
	// Event.Throttle.
	Throttled *Throttled `json:"throttled,omitempty"`
	// Reports are the destinations whose dead letters this delivery reports, the next one first; see [delivery.OnDead].
	Reports []string `json:"reports,omitempty"`
	// Class is the party at fault for the last failure: event, destination or relay. It is empty while the rate limit
	// holds the delivery back.
	Class string `json:"error_class,omitempty"`
	// Error is the text of the last failure, shortened, or that it waits for its rate limit.
	Error string `json:"error,omitempty"`
	// Fingerprint is the group of the error of a dead delivery; see [DeadLetter].
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Throttled is the pause that a destination has requested by its answer to an event.
type Throttled struct {
	Destination string    `json:"destination"`
	Until       time.Time `json:"until"`
	ByEvent     int64     `json:"by_event"`
}

// Behind is the delivery that a parked one waits for.
type Behind struct {
	EventID int64 `json:"event_id"`
	State   State `json:"state"`
}

// Event is an event and its state.
type Event struct {
	ID             int64  `json:"id"`
	Type           string `json:"event_type"`
	AggregateType  string `json:"aggregate_type,omitempty"`
	AggregateID    string `json:"aggregate_id,omitempty"`
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// State sums up Destinations: waiting, dead, discarded, done or unknown.
	State State `json:"state"`
	// Gone reports that the event's row is deleted; the other fields come from other tables.
	Gone        bool       `json:"gone,omitempty"`
	CreatedAt   time.Time  `json:"created_at"`
	AvailableAt *time.Time `json:"available_at,omitempty"`
	// ProcessedAt is when the last delivery of the event of a queue succeeded or died. A stream
	// does not store it.
	ProcessedAt *time.Time `json:"processed_at"`
	// Destinations has the known destinations, by name.
	Destinations []Destination `json:"destinations"`
	// OthersSettled reports that nothing is left to do for any destination that the event was routed to and that is not in
	// Destinations: it has received the event, or has passed it over, by expires_after, by when, or because its position was
	// moved. Which destinations those are is not stored, nor which of it happened.
	OthersSettled bool `json:"others_settled"`
	// Routed are the destinations by the present routes, of an event of a queue whose destinations are not stored. The
	// caller knows the routes: see Event.Route.
	Routed  []string        `json:"by_present_routes,omitempty"`
	Headers json.RawMessage `json:"headers,omitempty"`
	// Payload is the payload if it was written as JSON, and PayloadBytes if it was written as bytes; encoding/json
	// writes bytes in base64. ContentType is the writer's value.
	Payload      json.RawMessage `json:"payload,omitempty"`
	PayloadBytes []byte          `json:"payload_bytes,omitempty"`
	ContentType  string          `json:"content_type,omitempty"`
	// Unreadable has the columns among these that PostgreSQL cannot read, each with its error. It is nil for nearly all
	// events.
	Unreadable map[string]string `json:"unreadable,omitempty"`

	known bool // some table knows of it
}

// Has reports whether the delivery to any destination is in a state that f accepts.
func (e *Event) Has(f func(State) bool) bool {
	for i := range e.Destinations {
		if f(e.Destinations[i].State) {
			return true
		}
	}
	return false
}

// Content returns the payload of an event that was read whole, and its media type, as handlers get them.
func (e *Event) Content() (payload []byte, contentType string) {
	if e.PayloadBytes != nil {
		return e.PayloadBytes, cmp.Or(e.ContentType, delivery.ContentTypeBytes)
	}
	return e.Payload, cmp.Or(e.ContentType, delivery.ContentTypeJSON)
}

// Route records the destinations of the event by the present routes, if no table stores them. They may have been others
// when the event was routed.
func (e *Event) Route(destinations []string) {
	undecided := e.OthersSettled && e.ProcessedAt != nil
	for _, d := range e.Destinations {
		undecided = undecided || d.State == Fresh
	}
	if undecided {
		e.Routed = slices.DeleteFunc(slices.Clone(destinations), e.about)
	}
}

// Filter records that a condition keeps the event from a destination, where nothing that is stored says otherwise: of a
// delivery that has a row, or has yet to come, it changes nothing. The caller knows the condition; the tables do not.
func (e *Event) Filter(destination, condition string) {
	for i := range e.Destinations {
		if d := &e.Destinations[i]; d.Name == destination {
			if d.State == Passed {
				d.State = Filtered
				d.Condition = condition
				d.Drops = nil
			}
			return
		}
	}

	if e.OthersSettled {
		e.Destinations = append(e.Destinations, Destination{Name: destination, State: Filtered, Condition: condition})
		slices.SortFunc(e.Destinations, func(a, b Destination) int { return cmp.Compare(a.Name, b.Name) })
	}
}

// Throttle records that a destination has requested a pause, for its delivery of the event if that is still to be made.
// The caller knows the pause; the tables do not. An event of a queue that was not tried yet has no destinations: routed
// reports that a route leads it there.
func (e *Event) Throttle(pause Throttled, routed bool) {
	for i := range e.Destinations {
		d := &e.Destinations[i]
		isMeant := d.Name == pause.Destination || d.Name == "" && routed
		waits := d.State.Pending() && d.State != Unrouted
		if isMeant && waits && d.Throttled == nil {
			d.Throttled = &pause
		}
	}
}

// sum returns the state of an event from the states of its deliveries.
func (e *Event) sum() State {
	is := func(want State) func(State) bool { return func(s State) bool { return s == want } }
	switch {
	case e.Has(State.Pending):
		return Waiting
	case e.Has(is(Unknown)):
		return Unknown
	case e.Has(is(Dead)):
		return Dead
	case e.Has(is(Discarded)):
		return Discarded
	default:
		return Done
	}
}

// about reports whether the event has the destination.
func (e *Event) about(name string) bool {
	return slices.ContainsFunc(e.Destinations, func(d Destination) bool { return d.Name == name })
}
