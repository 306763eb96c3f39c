// Package jsonline writes events as lines of JSON.
package jsonline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// Prefix begins every line.
const Prefix = `{"event_id":`

// Line is one event without its payload. Its names are columns of the outbox table.
type Line struct {
	EventID       int64             `json:"event_id"`
	DedupeID      string            `json:"dedupe_id,omitempty"`
	EventType     string            `json:"event_type"`
	AggregateType string            `json:"aggregate_type,omitempty"`
	AggregateID   string            `json:"aggregate_id,omitempty"`
	CreatedAt     string            `json:"created_at,omitempty"` // a year beyond 9999 has no RFC 3339
	Attempt       *int              `json:"attempt,omitempty"`
	Replay        int               `json:"replay,omitempty"`
	Destination   string            `json:"destination"`
	Outbox        string            `json:"outbox,omitempty"`      // where it has a name
	DeadLetter    *DeadLetter       `json:"dead_letter,omitempty"` // what the event reports
	Headers       map[string]string `json:"headers,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`   // if it is not application/json
	PayloadSize   *int              `json:"payload_size,omitempty"`   // in bytes, in place of a payload that is not JSON
	PayloadBase64 *[]byte           `json:"payload_base64,omitempty"` // a payload that is not JSON
}

// DeadLetter is a dead letter of another destination: see [delivery.DeadLetter].
type DeadLetter struct {
	Destination string `json:"destination"`
	Error       string `json:"error,omitempty"`
	Class       string `json:"class,omitempty"`
	Attempts    int    `json:"attempts"`
	Since       string `json:"since,omitempty"`
	At          string `json:"at,omitempty"`
	Replay      int    `json:"replay,omitempty"`
}

// Of returns the line of an event, without DedupeID, Attempt and the payload.
func Of(e *delivery.Event) Line {
	l := Line{
		EventID:       e.ID,
		EventType:     e.Type,
		AggregateType: e.AggregateType,
		AggregateID:   e.AggregateID,
		CreatedAt:     timestamp(e.CreatedAt),
		Replay:        e.Replay,
		Destination:   e.Destination,
		Outbox:        e.Outbox,
		Headers:       e.Headers,
	}

	if e.ContentType != delivery.ContentTypeJSON {
		l.ContentType = e.ContentType
	}

	if d := e.DeadLetter; d != nil {
		l.DeadLetter = &DeadLetter{
			Destination: d.Destination,
			Error:       d.Error,
			Class:       d.Class,
			Attempts:    d.Attempts,
			Since:       timestamp(d.Since),
			At:          timestamp(d.At),
			Replay:      d.Replay,
		}
	}

	return l
}

// Append appends a line with its end, and without a payload.
func Append(buf *bytes.Buffer, l Line) error {
	head, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("event %d: %w", l.EventID, err) // text and numbers can always be encoded
	}
	buf.Write(head)
	buf.WriteByte('\n')
	return nil
}

// AppendPayload is [Append] with a payload of JSON. If the payload is not JSON, AppendPayload appends nothing and
// returns an error, which does not quote the payload. Another attempt would fail alike.
func AppendPayload(buf *bytes.Buffer, l Line, payload []byte) error {
	before := buf.Len()
	if err := Append(buf, l); err != nil {
		return err
	}
	buf.Truncate(buf.Len() - len("}\n"))
	buf.WriteString(`,"payload":`)
	if err := Compact(buf, payload); err != nil {
		buf.Truncate(before)
		return fmt.Errorf("event %d: the payload is not JSON: fix the writer of the event", l.EventID)
	}
	buf.WriteString("}\n")
	return nil
}

// AppendEvent appends the line of an event with its DedupeID and payload: JSON as it is, other bytes in base64. It appends
// nothing and returns an error if the payload is called JSON and is not.
func AppendEvent(buf *bytes.Buffer, e *delivery.Event) error {
	l := Of(e)
	l.DedupeID = e.DedupeID()
	if e.IsJSON() {
		return AppendPayload(buf, l, e.Payload)
	}
	l.PayloadBase64 = new(e.Payload)
	return Append(buf, l)
}

// timestamp returns "" for a time that RFC 3339 cannot write.
func timestamp(t time.Time) string {
	if year := t.Year(); year < 0 || year > 9999 {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}
