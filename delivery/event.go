package delivery

import (
	"encoding/json"
	"strconv"
	"time"
)

// Event is one event on its way to one destination.
//
// A handler may keep an Event after Deliver has returned, but must not change
// it: in a fan-out the same payload and headers are seen by several handlers.
type Event struct {
	// ID is the primary key of the row in outbox_events. It is the same for every attempt and every
	// destination. Consumers drop duplicates by DedupeID instead.
	ID int64
	// Type routes the event, "order.created" for example. Never empty.
	Type string
	// AggregateType and AggregateID name the object that the event is about. Both are empty for
	// events without one.
	AggregateType string
	AggregateID   string
	// Payload is the JSON text as the application wrote it, byte for byte.
	Payload json.RawMessage
	// Headers are the event's headers, nil where there are none.
	Headers map[string]string
	// CreatedAt is when the row was inserted, by the clock of the database.
	CreatedAt time.Time
	// Attempt is 1 for the first attempt, and one more for each failure counted before. An attempt
	// that was interrupted by a shutdown, or that met an unavailable destination, is not counted.
	Attempt int
	// Replay is how often this delivery was a dead letter that a person replayed: 0 for nearly all.
	// See DedupeID.
	Replay int
	// Destination is the name of the destination of this delivery.
	Destination string
}

// DedupeID returns the text by which consumers drop duplicates: the event's id, "42", the same for
// every attempt; after the first replay of a dead letter "42r1", after the second "42r2". A replay
// is intended, and may carry an edited payload, so a consumer that remembers the id of an earlier
// delivery must not drop it. A handler that gives its destination an id builds it from this one.
func (e *Event) DedupeID() string {
	id := strconv.FormatInt(e.ID, 10)
	if e.Replay > 0 {
		id += "r" + strconv.Itoa(e.Replay)
	}
	return id
}
