package message

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
)

// FuzzHeaders: whatever headers an application has given an event, the transport
// gets text, no name twice, nothing in place of what describes the event, and for
// HTTP nothing that would end a field. What it gets is a bounded multiple of what the application has given.
func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"a=1"}`,
		`{"Notifyd-Id":"7","notifyd-id":"8","NOTIFYD-TYPE":"x"}`, `{"a":"1","A":"2","":"3"}`, `{"x":"1\r\nEvil: 2","y\r\n":"z"}`,
		`{"ce-id":"1","Ce_Id":"2","cloudEvents_id":"3","Content-Type":"text/html"}`, `{"\u00e9":"\u0000","b":"\ud800"}`, `{"a b":"c","d:":"e","\u007f":"f"}`,
	} {
		f.Add([]byte(seed), "order.placed", "A-7")
	}
	f.Fuzz(func(t *testing.T, headers []byte, eventType, aggregateID string) {
		e := &delivery.Event{ID: 42, Type: eventType, AggregateID: aggregateID, Payload: []byte(`1`), CreatedAt: time.Unix(1, 0)}
		if json.Unmarshal(headers, &e.Headers) != nil {
			return // no headers
		}
		given := maps.Clone(e.Headers)
		for _, format := range []handlers.Format{handlers.FormatPayload, handlers.FormatCloudEventsBinary, handlers.FormatCloudEventsStructured} {
			for _, b := range []Binding{Kafka(), AMQP(), HTTP()} {
				m := encoder(t, handlers.Message{Format: format}, b).Encode(e)
				seen := make(map[string]bool)
				sum := len(m.Body)
				for _, h := range m.Headers {
					sum += len(h.Name) + len(h.Value)
				}
				if most := 32*(len(headers)+len(eventType)+len(aggregateID)) + 1024; sum > most { // a byte that is no text becomes nine, in a few places
					t.Errorf("%s: %d bytes of %d", format, sum, len(headers)+len(eventType)+len(aggregateID))
				}
				for _, h := range m.Headers {
					name := h.Name
					if b.HTTPFields {
						name = strings.ToLower(name)
					}
					switch {
					case h.Name == "" || seen[name]:
						t.Errorf("%s: the name %q is empty or there twice", format, h.Name)
					case !utf8.ValidString(h.Name+h.Value) || strings.ContainsRune(h.Name+h.Value, 0):
						t.Errorf("%s: %q is not a text", format, h)
					case strings.EqualFold(h.Name, "content-type"):
						t.Errorf("%s: %q speaks of the body", format, h)
					case b.HTTPFields && (strings.ContainsFunc(h.Name, notInToken) || strings.ContainsAny(h.Value, "\r\n\x00")):
						t.Errorf("%s: %q is not a field of HTTP", format, h)
					}
					seen[name] = true
				}
				if format == handlers.FormatPayload && (len(m.Headers) < 2 || m.Headers[0] != (Header{HeaderID, "42"}) || m.Headers[1].Name != HeaderType ||
					slices.ContainsFunc(m.Headers[1:], func(h Header) bool { return strings.EqualFold(h.Name, HeaderID) })) {
					t.Errorf("the id is not the event's: %q", m.Headers)
				}
			}
		}
		if !maps.Equal(e.Headers, given) {
			t.Errorf("the event's headers were changed: %q", e.Headers)
		}
	})
}
