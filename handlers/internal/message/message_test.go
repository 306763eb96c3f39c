package message

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const payload = "{\n \"b\" : 1.10, \"a\": 12345678901234567890, \"a\": \"\u00e9 <&>\"}"

func event() *delivery.Event {
	return &delivery.Event{
		ID: 42, Type: "order.created", AggregateType: "order", AggregateID: "A 7%é",
		Payload: json.RawMessage(payload),
		Headers: map[string]string{
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1", "tenant": "acme",
		},
		CreatedAt: time.Date(2026, 3, 4, 6, 6, 7, 89_000_000, time.FixedZone("CET", 3600)), Attempt: 3, Destination: "shop",
	}
}

func encoder(tb testing.TB, cfg handlers.Message, b Binding) *Encoder {
	tb.Helper()
	e, err := New(cfg, b)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// lines writes headers as text.
func lines(headers []Header) []string {
	all := make([]string, len(headers))
	for i, h := range headers {
		all[i] = h.Name + ": " + h.Value
	}
	return all
}

const (
	parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	own    = "tenant: acme|traceparent: " + parent + "|tracestate: vendor=1"
)

func TestForms(t *testing.T) {
	t.Parallel()
	const described = "notifyd-id: 42|notifyd-type: order.created|notifyd-aggregate-type: order|notifyd-aggregate-id: A 7%é|" +
		"notifyd-time: 2026-03-04T05:06:07.089Z|" + own
	attributes := func(prefix, subject string) string {
		names := []string{
			"specversion: 1.0", "id: 42", "source: /shop", "type: order.created", "subject: " + subject, "time: 2026-03-04T05:06:07.089Z",
			"partitionkey: " + subject, "aggregatetype: order", "traceparent: " + parent, "tracestate: vendor=1",
		}
		return prefix + strings.Join(names, "|"+prefix) + "|" + own
	}
	for _, c := range []struct {
		name                    string
		cfg                     handlers.Message
		binding                 Binding
		body, contentType, head string
	}{
		{"payload", handlers.Message{}, Kafka(), payload, "application/json", described},
		{"binary, Kafka", handlers.Message{Format: handlers.FormatCloudEventsBinary, Source: "/shop"}, Kafka(), payload, "application/json", attributes("ce_", "A 7%é")},
		{"binary, AMQP", handlers.Message{Format: handlers.FormatCloudEventsBinary, Source: "/shop"}, AMQP(), payload, "application/json", attributes("cloudEvents_", "A 7%é")},
		{"binary, HTTP", handlers.Message{Format: handlers.FormatCloudEventsBinary, Source: "/shop"}, HTTP(), payload, "application/json", attributes("ce-", "A%207%25%C3%A9")},
		{
			"structured",
			handlers.Message{Format: handlers.FormatCloudEventsStructured, Source: "/shop"},
			HTTP(),
			`{"specversion":"1.0","id":"42","source":"/shop","type":"order.created","datacontenttype":"application/json",` +
				`"subject":"A 7%é","time":"2026-03-04T05:06:07.089Z","partitionkey":"A 7%é","aggregatetype":"order",` +
				`"traceparent":"` + parent + `","tracestate":"vendor=1","data":` + payload + `}`,
			"application/cloudevents+json", own,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := encoder(t, c.cfg, c.binding).Encode(event())
			if string(m.Body) != c.body {
				t.Errorf("body\n%s\nwant\n%s", m.Body, c.body)
			}
			if m.ContentType != c.contentType {
				t.Errorf("content type %s, want %s", m.ContentType, c.contentType)
			}
			if got, want := lines(m.Headers), strings.Split(c.head, "|"); !slices.Equal(got, want) {
				t.Errorf("headers\n%q\nwant\n%q", got, want)
			}
		})
	}
}

// TestBytes: bytes that are not JSON are the body as they are, under their own type, and binary data of a
// structured CloudEvent, whatever they look like.
func TestBytes(t *testing.T) {
	t.Parallel()
	const head = `{"specversion":"1.0","id":"1","source":"/notifyd","type":"t",`
	for _, c := range []struct{ payload, contentType, wantType, structured string }{
		{"\x00\xff", "application/x-protobuf", "", `"datacontenttype":"application/x-protobuf","data_base64":"AP8="}`},
		{"7", "avro/binary", "", `"datacontenttype":"avro/binary","data_base64":"Nw=="}`},
		{"", "avro/binary", "", `"datacontenttype":"avro/binary","data_base64":""}`},
		{`{"a": 1}`, "application/vnd.acme.order+json; v=2", "", `"datacontenttype":"application/vnd.acme.order+json; v=2","data":{"a": 1}}`},
		{`{"a": 1}`, "", "application/json", `"datacontenttype":"application/json","data":{"a": 1}}`},
	} {
		e := &delivery.Event{ID: 1, Type: "t", Payload: []byte(c.payload), ContentType: c.contentType}
		want := cmp.Or(c.wantType, c.contentType)
		for _, format := range []handlers.Format{handlers.FormatPayload, handlers.FormatCloudEventsBinary} {
			enc := encoder(t, handlers.Message{Format: format}, HTTP())
			if m := enc.Encode(e); string(m.Body) != c.payload || m.ContentType != want {
				t.Errorf("%s: %q as %q, want %q as %q", format, m.Body, m.ContentType, c.payload, want)
			}
			if raw := enc.Raw(e); raw == strings.Contains(want, "json") {
				t.Errorf("%s, %s: raw is %t", format, want, raw)
			}
		}
		enc := encoder(t, handlers.Message{Format: handlers.FormatCloudEventsStructured}, HTTP())
		if m := enc.Encode(e); string(m.Body) != head+c.structured || m.ContentType != "application/cloudevents+json" || enc.Raw(e) {
			t.Errorf("structured: %s as %s, want %s", m.Body, m.ContentType, head+c.structured)
		}
	}
	if text := Preview([]Header{{"a", "b"}}, []byte("\x00")); !strings.HasPrefix(text, "a: b\n\n1 bytes\n00000000  00 ") {
		t.Errorf("preview:\n%s", text)
	}
}

func TestBareEvent(t *testing.T) {
	t.Parallel()
	bare := &delivery.Event{ID: 1, Type: "t"}
	if got := lines(encoder(t, handlers.Message{}, Kafka()).Encode(bare).Headers); !slices.Equal(got, []string{"notifyd-id: 1", "notifyd-type: t"}) {
		t.Errorf("got %q", got)
	}
	got := lines(encoder(t, handlers.Message{Format: handlers.FormatCloudEventsBinary}, Kafka()).Encode(bare).Headers)
	if !slices.Equal(got, []string{"ce_specversion: 1.0", "ce_id: 1", "ce_source: /notifyd", "ce_type: t"}) {
		t.Errorf("got %q", got)
	}
	body := encoder(t, handlers.Message{Format: handlers.FormatCloudEventsStructured}, Kafka()).Encode(bare).Body
	if string(body) != `{"specversion":"1.0","id":"1","source":"/notifyd","type":"t"}` {
		t.Errorf("got %s", body)
	}
}

// TestOddTimes: a time that RFC 3339 cannot write is left out.
func TestOddTimes(t *testing.T) {
	t.Parallel()
	for year, want := range map[int]bool{-1: false, 0: true, 9999: true, 10000: false} {
		e := event()
		e.CreatedAt = time.Date(year, 5, 5, 0, 0, 0, 0, time.UTC)
		if got := timestamp(e) != ""; got != want {
			t.Errorf("year %d is written: %t", year, got)
		}
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	headers := map[string]string{
		"": "no name", "Notifyd-ID": "another id", "notifyd-type": "another type", "CE_subject": "another subject", "ce-x": "1",
		"cloudEvents:id": "another id", "Content-Type": "text/plain", "Content-Encoding": "gzip", "Tenant": "A", "tenant": "b", "na me": "x", "nul": "a\x00b", "lines": "a\r\nX-Evil: 1\tz", "bad\xff": "\xfe", "é": "é",
	}
	for name, c := range map[string]struct {
		cfg     handlers.Message
		binding Binding
		want    []string
	}{
		"payload, Kafka": {handlers.Message{}, Kafka(), []string{
			"Tenant: A", "bad\uFFFD: \uFFFD", "lines: a\r\nX-Evil: 1\tz", "na me: x", "nul: a\uFFFDb", "tenant: b", "é: é",
		}},
		"payload, HTTP": {handlers.Message{}, HTTP(), []string{
			"Tenant: A", "lines: a  X-Evil: 1 z", "nul: a\uFFFDb",
		}},
		"binary, Kafka": {handlers.Message{Format: handlers.FormatCloudEventsBinary}, Kafka(), []string{
			"Tenant: A", "bad\uFFFD: \uFFFD", "lines: a\r\nX-Evil: 1\tz", "na me: x", "nul: a\uFFFDb", "tenant: b", "é: é",
		}},
		"binary, HTTP": {handlers.Message{Format: handlers.FormatCloudEventsBinary}, HTTP(), []string{
			"Tenant: A", "lines: a  X-Evil: 1 z", "nul: a\uFFFDb",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := event()
			e.Headers = headers
			got := lines(encoder(t, c.cfg, c.binding).Encode(e).Headers)
			bare := event()
			bare.Headers = nil
			about := len(encoder(t, c.cfg, c.binding).Encode(bare).Headers)
			if got = got[about:]; !slices.Equal(got, c.want) {
				t.Errorf("got\n%q\nwant\n%q", got, c.want)
			}
		})
	}
}

// TestAggregateIsSafeToo: what is about the event comes from applications as well.
func TestAggregateIsSafeToo(t *testing.T) {
	t.Parallel()
	e := event()
	e.AggregateID = "a\r\nX-Evil: 1"
	for _, h := range encoder(t, handlers.Message{}, HTTP()).Encode(e).Headers {
		if strings.ContainsAny(h.Value, "\r\n") {
			t.Errorf("%q", h)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg  handlers.Message
		path string // "" if it is valid
	}{
		{handlers.Message{}, ""},
		{handlers.Message{Format: handlers.FormatPayload}, ""},
		{handlers.Message{Format: handlers.FormatCloudEventsBinary}, ""},
		{handlers.Message{Format: handlers.FormatCloudEventsStructured, Source: "https://shop.example.com/orders?a=b#c"}, ""},
		{handlers.Message{Format: handlers.FormatCloudEventsStructured, Source: "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66"}, ""},
		{handlers.Message{Format: "json"}, "format"},
		{handlers.Message{Source: "/shop"}, "cloudevents_source"},
		{handlers.Message{Format: handlers.FormatCloudEventsBinary, Source: " "}, "cloudevents_source"},
		{handlers.Message{Format: handlers.FormatCloudEventsBinary, Source: "/a b"}, "cloudevents_source"},
		{handlers.Message{Format: handlers.FormatCloudEventsBinary, Source: "/é"}, "cloudevents_source"},
		{handlers.Message{Format: handlers.FormatCloudEventsBinary, Source: "/%zz"}, "cloudevents_source"},
		{handlers.Message{Format: handlers.FormatCloudEventsBinary, Source: `/"{}`}, "cloudevents_source"},
		{handlers.Message{Format: handlers.FormatCloudEventsBinary, Source: "/a\n"}, "cloudevents_source"},
		{handlers.Message{Format: handlers.FormatCloudEventsBinary, Source: "1:2"}, "cloudevents_source"},
	} {
		_, err := New(c.cfg, Kafka())
		if got := field.Path(err); got != c.path || (err == nil) != (c.path == "") {
			t.Errorf("%+v: %v, want a mistake in %q", c.cfg, err, c.path)
		}
	}
}
