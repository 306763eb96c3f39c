package message

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
)

// TestEncodeIntoIsEncode, with a message that is used again and again.
func TestEncodeIntoIsEncode(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.FixedZone("", 3600))
	events := []*delivery.Event{
		{ID: 1, Type: "a", AggregateType: "x", AggregateID: "y", Payload: json.RawMessage(`1`), CreatedAt: at, Headers: map[string]string{"b": "1", "a": "2", HeaderID: "taken"}},
		{ID: 2, Type: "b", Payload: json.RawMessage(`2`), CreatedAt: at},
		{ID: 3, Type: "c", AggregateType: "x", Payload: json.RawMessage(`3`), CreatedAt: at.Add(time.Microsecond), Headers: map[string]string{"c": ""}},
		{ID: 4, Type: "d", Payload: json.RawMessage(`4`)},
		{ID: 5, Type: "e", Payload: []byte{0, 255}, ContentType: "avro/binary"},
	}
	for _, format := range []handlers.Format{"", handlers.FormatPayload, handlers.FormatCloudEventsBinary, handlers.FormatCloudEventsStructured} {
		e, err := New(handlers.Message{Format: format}, Kafka())
		if err != nil {
			t.Fatal(err)
		}
		var m Message
		for range 2 {
			for _, ev := range events {
				e.EncodeInto(&m, ev)
				want := e.Encode(ev)
				if string(m.Body) != string(want.Body) || m.ContentType != want.ContentType || !reflect.DeepEqual(append([]Header{}, m.Headers...), append([]Header{}, want.Headers...)) {
					t.Errorf("%s, event %d: %+v\nwant %+v", format, ev.ID, m, want)
				}
			}
		}
	}
}
