package wire

import (
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// The columns of an event: its id, then the columns of [EventColumns].
const (
	ColumnID = iota
	ColumnType
	columnAggregateType
	columnAggregateID
	columnPayload
	columnHeaders
	columnCreatedAt
	ColumnDelay
	columnTrace
	ColumnBytes
	columnPayloadBytes
	columnContentType
	columnReadAt
	EventWidth // number of columns
)

// EventSource lists the columns of outbox_events that the subquery of [EventColumns] must select.
const EventSource = `id, event_type, aggregate_type, aggregate_id, payload, payload_bytes, content_type, headers,
	created_at, available_at, traceparent`

// EventColumns returns the columns of an event after its id. The statement reads them from a subquery that has
// [EventBytes] as the column bytes. prefix is the subquery's alias with a dot, or empty. limit must be the limit of
// [EventBytes].
//
// The delay is in microseconds. It is negative once the event is available, and NULL for an event that was not delayed.
// It is bounded, because infinity and the ends of PostgreSQL's calendar can neither be subtracted nor fit into a
// duration.
func EventColumns(prefix string, limit int) []string {
	name := func(column string) string { return Name(prefix+column, limit) }
	unread := func(column string) string { return Unread(prefix+column, limit) }

	at := prefix + "available_at"
	delay := `CASE WHEN ` + at + ` IS NOT NULL
		THEN (extract(epoch FROM greatest(least(` + at + `, clock_timestamp() + interval '100 years'),
			clock_timestamp() - interval '100 years') - clock_timestamp()) * 1000000)::bigint END`

	return []string{
		name("event_type"), name("aggregate_type"), name("aggregate_id"), unread("payload"), unread("headers"),
		prefix + "created_at", delay, name("traceparent"), prefix + "bytes", unread("payload_bytes"),
		name("content_type"), `clock_timestamp()`,
	}
}

// EventFormats returns the formats of an event's columns. Headers are text: binary jsonb begins with a version byte. Text and
// json are the same in both formats.
func EventFormats() []int16 {
	f := make([]int16, EventWidth)
	for _, column := range []int{ColumnID, columnCreatedAt, ColumnDelay, ColumnBytes, columnPayloadBytes, columnReadAt} {
		f[column] = Binary
	}
	return f
}

// Events decodes the events of one statement. Their payloads and aggregate ids share memory.
type Events struct {
	Names    *Names // of all statements
	Clock    Clock  // of the first event
	payloads Arena
	ids      Strings
	typ, agg string // of the previous row: often the same
}

// Decode decodes a row, except the id and the delay.
func (d *Events) Decode(e *delivery.Event, row [][]byte) (err error) {
	if string(row[ColumnType]) != d.typ {
		d.typ = d.Names.Intern(row[ColumnType])
	}
	if string(row[columnAggregateType]) != d.agg {
		d.agg = d.Names.Intern(row[columnAggregateType])
	}

	e.Type = d.typ
	e.AggregateType = d.agg
	e.AggregateID = d.ids.Keep(row[columnAggregateID])

	payload, kind := d.Names.Payload(row[columnPayload], row[columnPayloadBytes], row[columnContentType])
	e.Payload = d.payloads.Keep(payload)
	e.ContentType = kind

	if row[columnHeaders] != nil || row[columnTrace] != nil {
		e.Headers = Traced(DecodeHeaders(row[columnHeaders]), row[columnTrace])
	}

	e.CreatedAt, err = DecodeTime(row[columnCreatedAt])
	if err != nil {
		return fmt.Errorf("event %d: created_at: %w", e.ID, err)
	}

	if d.Clock.here.IsZero() {
		d.Clock.here = time.Now()
		d.Clock.database, err = DecodeTime(row[columnReadAt])
	}

	return err
}

// DecodeDelay reads [ColumnDelay] of an event that was delayed.
func DecodeDelay(raw []byte) (time.Duration, error) {
	us, err := DecodeInt8(raw)
	return time.Duration(us) * time.Microsecond, err
}
