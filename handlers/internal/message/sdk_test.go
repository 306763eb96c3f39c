package message

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
)

// reader hands a message to the SDK of CloudEvents.
type reader struct {
	Message
	Binding
}

func (r reader) ReadEncoding() binding.Encoding {
	if r.ContentType == format.JSON.MediaType() {
		return binding.EncodingStructured
	}
	return binding.EncodingBinary
}

func (r reader) ReadStructured(ctx context.Context, w binding.StructuredWriter) error {
	if r.ReadEncoding() != binding.EncodingStructured {
		return binding.ErrNotStructured
	}
	return w.SetStructuredEvent(ctx, format.JSON, bytes.NewReader(r.Body))
}

func (r reader) ReadBinary(_ context.Context, w binding.BinaryWriter) error {
	version := spec.WithPrefix(r.Prefix).Version("1.0")
	if err := w.SetAttribute(version.AttributeFromKind(spec.DataContentType), r.ContentType); err != nil {
		return err
	}
	for _, h := range r.Headers {
		name, ok := strings.CutPrefix(h.Name, r.Prefix)
		if !ok {
			continue
		}
		value := h.Value
		var err error
		if r.PercentEncode {
			if value, err = url.PathUnescape(value); err != nil {
				return err
			}
		}
		if a := version.Attribute(h.Name); a != nil {
			err = w.SetAttribute(a, value)
		} else {
			err = w.SetExtension(name, value)
		}
		if err != nil {
			return err
		}
	}
	if len(r.Body) == 0 {
		return nil
	}
	return w.SetData(bytes.NewReader(r.Body))
}

// GetAttribute is asked for the version.
func (r reader) GetAttribute(kind spec.Kind) (spec.Attribute, any) {
	a := spec.WithPrefix(r.Prefix).Version("1.0").AttributeFromKind(kind)
	for _, h := range r.Headers {
		if h.Name == r.Prefix+a.Name() {
			return a, h.Value
		}
	}
	return a, nil
}

func (r reader) GetExtension(string) any { return nil }

// checkWithSDK wants the SDK to understand the message and to find in it what
// was in the event.
func checkWithSDK(tb testing.TB, cfg handlers.Message, b Binding, e *delivery.Event) {
	tb.Helper()
	m := encoder(tb, cfg, b).Encode(e)
	got, err := binding.ToEvent(tb.Context(), reader{m, b})
	if err != nil {
		tb.Fatalf("the SDK does not understand it: %v\n%s\n%q", err, m.Body, m.Headers)
	}
	if err := got.Validate(); err != nil {
		tb.Fatalf("the SDK finds it invalid: %v\n%s\n%q", err, m.Body, m.Headers)
	}
	blank := func(s string) string {
		if strings.TrimSpace(s) == "" {
			return ""
		}
		return allowed(s)
	}
	extension := func(name string) string {
		s, _ := got.Extensions()[name].(string)
		return s
	}
	state := ""
	if e.Headers["traceparent"] != "" {
		state = e.Headers["tracestate"]
	}
	for name, pair := range map[string][2]string{
		"specversion": {got.SpecVersion(), "1.0"}, "id": {got.ID(), strconv.FormatInt(e.ID, 10)},
		"source": {got.Source(), encoder(tb, cfg, b).source}, "type": {got.Type(), allowed(e.Type)},
		"subject": {got.Subject(), blank(e.AggregateID)}, "partitionkey": {extension("partitionkey"), blank(e.AggregateID)},
		"aggregatetype": {extension("aggregatetype"), blank(e.AggregateType)},
		"traceparent":   {extension("traceparent"), blank(e.Headers["traceparent"])}, "tracestate": {extension("tracestate"), blank(state)},
	} {
		// The SDK trims some of them.
		if strings.TrimSpace(pair[0]) != strings.TrimSpace(pair[1]) {
			tb.Errorf("%s is %q, want %q", name, pair[0], pair[1])
		}
	}
	if !e.CreatedAt.IsZero() && !got.Time().Equal(e.CreatedAt) {
		tb.Errorf("time is %v, want %v", got.Time(), e.CreatedAt)
	}
	checkData(tb, cfg, got, e)
}

func checkData(tb testing.TB, cfg handlers.Message, got *cloudevents.Event, e *delivery.Event) {
	tb.Helper()
	want, have := e.Payload, got.Data()
	if cfg.Format == handlers.FormatCloudEventsStructured && !got.DataBase64 {
		// Blanks around a value belong to the object.
		want, have = bytes.Trim(want, " \t\r\n"), bytes.Trim(have, " \t\r\n")
	}
	if !bytes.Equal(have, want) {
		tb.Errorf("the data is %q, want %q", have, want)
	}
	if len(want) > 0 && got.DataContentType() != cmp.Or(e.ContentType, contentJSON) {
		tb.Errorf("the content type is %s", got.DataContentType())
	}
}

func TestSDKUnderstands(t *testing.T) {
	t.Parallel()
	odd := event()
	odd.AggregateID, odd.AggregateType, odd.Type = "\"\\\x00\x1f\x7f\u0085\uFFFE\uFDD0\U0001FFFF\xff %é🎉", "ütf", "order \"created\""
	bare := event()
	bare.AggregateID, bare.AggregateType, bare.Headers = "", " ", nil
	orphan := event()
	orphan.Headers = map[string]string{"tracestate": "of nothing", "ce_Bad-Name": "1", "ce-Bad_Name": "1", "cloudEvents_Bad": "1", "ce_time": "now", "ce-time": "now"}
	events := map[string]*delivery.Event{"usual": event(), "odd": odd, "bare": bare, "orphan": orphan}
	for name, data := range map[string]string{
		"number": "1.10", "text": `"a"`, "true": "true", "list": "[1 , 2]", "blanks": " {} \n", "empty": "", "not JSON": "hello", "not UTF-8": "\"\xff\"", "null": "null",
	} {
		e := event()
		e.Payload = json.RawMessage(data)
		events["payload "+name] = e
	}
	for i, data := range []string{"\x00\xff", "7", "null", ""} {
		e := event()
		e.Payload, e.ContentType = []byte(data), "application/x-protobuf"
		events["bytes "+strconv.Itoa(i)] = e
	}
	for name, e := range events {
		for _, b := range []Binding{Kafka(), AMQP(), HTTP()} {
			for _, f := range []handlers.Format{handlers.FormatCloudEventsBinary, handlers.FormatCloudEventsStructured} {
				t.Run(name+"/"+b.Prefix+"/"+string(f), func(t *testing.T) {
					t.Parallel()
					checkWithSDK(t, handlers.Message{Format: f}, b, e)
				})
			}
		}
	}
}

// FuzzCloudEvents: whatever an application writes, it becomes an event that others
// understand.
func FuzzCloudEvents(f *testing.F) {
	f.Add(int64(1), "order.created", "order", "A-7", "tenant", "acme", []byte(`{"a":1}`), int64(1772600767))
	f.Add(int64(-1), "\xff", "\u0085", "\U0010FFFF", "traceparent", "00-\r\n", []byte("\"\xff\""), int64(-62135596800))
	f.Add(int64(1), "t", " ", "\t", "CE-Id", "\x00", []byte(" null\n"), int64(253402300799))
	f.Fuzz(func(t *testing.T, id int64, eventType, aggregateType, aggregateID, header, value string, data []byte, seconds int64) {
		if strings.TrimSpace(eventType) == "" {
			t.Skip("an event has a type")
		}
		e := &delivery.Event{
			ID: id, Type: eventType, AggregateType: aggregateType, AggregateID: aggregateID, Payload: data,
			Headers: map[string]string{header: value}, CreatedAt: time.Unix(seconds, 0).UTC(),
		}
		if timestamp(e) == "" {
			e.CreatedAt = time.Time{}
		}
		for _, b := range []Binding{Kafka(), HTTP()} {
			checkWithSDK(t, handlers.Message{Format: handlers.FormatCloudEventsBinary}, b, e)
			checkWithSDK(t, handlers.Message{Format: handlers.FormatCloudEventsStructured}, b, e)
			for _, h := range encoder(t, handlers.Message{}, b).Encode(e).Headers {
				if h.Name == "" || !utf8.ValidString(h.Name+h.Value) || strings.ContainsRune(h.Name+h.Value, 0) {
					t.Errorf("header %q", h)
				}
			}
		}
		body := encoder(t, handlers.Message{Format: handlers.FormatCloudEventsStructured}, HTTP()).Encode(e).Body
		if !json.Valid(body) || !utf8.Valid(body) {
			t.Errorf("not JSON: %q", body)
		}
		if json.Valid(data) && utf8.Valid(data) && !bytes.HasSuffix(body, append([]byte(`"data":`), append(data, '}')...)) {
			t.Errorf("the data is not byte for byte in %q", body)
		}
	})
}
