package delivery

import (
	"encoding/json"
	"fmt"
	"mime"
	"strconv"
	"strings"
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
	// Payload is the payload as the application wrote it, byte for byte: JSON for nearly all events, see ContentType.
	Payload []byte
	// ContentType is the media type of Payload: the writer's value, or else ContentTypeJSON or ContentTypeBytes, by the
	// column of the payload. It is printable ASCII of at most 255 bytes. Events from a relay always have a type; for
	// others, empty means JSON.
	ContentType string
	// Headers are the event's headers; nil if it has no headers.
	Headers map[string]string
	// CreatedAt is when the row was inserted, by the clock of the database.
	CreatedAt time.Time
	// Attempt is 1 for the first attempt, and one more for each failure counted before. An attempt
	// that was interrupted by a shutdown, or that met an unavailable destination, is not counted.
	Attempt int
	// Replay is how often this delivery was a dead letter that a person replayed: 0 for nearly all.
	// See DedupeID.
	Replay int
	// DeadLetter is the dead letter that this delivery reports, where [OnDead].To of another destination leads
	// here; nil for all other deliveries.
	DeadLetter *DeadLetter
	// Destination is the name of the destination of this delivery.
	Destination string
	// Outbox is the name of the outbox that the event is from, where a relay has been given one; empty
	// for nearly all. Ids are unique in one outbox only.
	Outbox string

	onAck func(Ack) // see OnAck; nil for no middleware that asks
}

// Ack is what a destination returns with the acknowledgement of an event.
type Ack struct {
	// Partition names the partition or shard that has the event.
	Partition string
	// Offset is the position of the event in its partition of Kafka; negative if the destination returns none.
	Offset int64
}

// DeadLetter is a delivery of the event to another destination, which the relay does not try again.
type DeadLetter struct {
	// Destination is the name of that destination.
	Destination string
	// Replay is how often that delivery had been replayed before.
	Replay int
	// Attempts is how many of its attempts have failed. It is 0 for an event that was refused unread.
	Attempts int
	// Since is when the delivery was first stored: after its first failed attempt, or when it died. At is when it died.
	// Both are times of the database.
	Since, At time.Time
	// Class is the party at fault, as [Class.String] returns it.
	Class string
	// Error is the text of the last failure, of 1,000 bytes and three dots at most.
	Error string
}

// id is part of [Event.DedupeID].
func (d *DeadLetter) id() string {
	if d.Replay > 0 {
		return d.Destination + "r" + strconv.Itoa(d.Replay)
	}
	return d.Destination
}

// The content types of events whose writer gave none.
const (
	ContentTypeJSON  = "application/json"
	ContentTypeBytes = "application/octet-stream"
)

// IsJSON reports whether Payload is JSON by its content type: application/json, or one that ends in +json.
func (e *Event) IsJSON() bool {
	if e.ContentType == "" || e.ContentType == ContentTypeJSON {
		return true
	}
	kind, _, err := mime.ParseMediaType(e.ContentType)
	return err == nil && (kind == ContentTypeJSON || strings.HasSuffix(kind, "+json"))
}

// DecodeJSON decodes Payload as encoding/json does. The error is [Permanent]: the payload is the same at
// each attempt.
func (e *Event) DecodeJSON(to any) error {
	if !e.IsJSON() {
		return Permanent(fmt.Errorf("event %d: the payload is not JSON: its content type is %s", e.ID, e.ContentType))
	}
	if err := json.Unmarshal(e.Payload, to); err != nil {
		return Permanent(fmt.Errorf("event %d: decode the payload: %w", e.ID, err))
	}
	return nil
}

// DedupeID returns the text by which consumers drop duplicates: the event's id, "42", the same for
// every attempt; after the first replay of a dead letter "42r1", after the second "42r2". A replay
// is intended, and may carry an edited payload, so a consumer that remembers the id of an earlier
// delivery must not drop it. A handler that gives its destination an id builds it from this one.
//
// Where the outbox has a name, that comes first: "north/42". The report of a dead letter ends in its destination, and the
// number of its replay: "42-mail", "42-mailr1".
func (e *Event) DedupeID() string {
	id := strconv.FormatInt(e.ID, 10)
	if e.Outbox != "" {
		id = e.Outbox + "/" + id
	}
	if e.Replay > 0 {
		id += "r" + strconv.Itoa(e.Replay)
	}
	if e.DeadLetter != nil {
		id += "-" + e.DeadLetter.id()
	}
	return id
}

// OnAck calls f when the handler reports the acknowledgement of e, before it returns. It is for middleware, which calls it
// with its own copy of an event: several deliveries may share the original.
func (e *Event) OnAck(f func(Ack)) {
	outer := e.onAck
	e.onAck = func(a Ack) {
		f(a)
		if outer != nil {
			outer(a)
		}
	}
}

// Acknowledged reports the acknowledgement of e. It is for handlers whose destination returns more than a success. It calls
// ack if middleware asks for the result, and costs nothing otherwise.
func (e *Event) Acknowledged(ack func() Ack) {
	if e.onAck != nil {
		e.onAck(ack())
	}
}
