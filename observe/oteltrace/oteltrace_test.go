package oteltrace_test

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe/oteltrace"
)

const (
	writer    = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
)

func tracing(t *testing.T) (*tracetest.InMemoryExporter, delivery.Middleware) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	return spans, oteltrace.Middleware(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)), attribute.String("kind", "test"))
}

func event(id int64, parent string) *delivery.Event {
	e := &delivery.Event{ID: id, Type: "order.created", Destination: "mail", Attempt: 2, Payload: []byte(`{}`), Headers: map[string]string{"tenant": "a"}}
	if parent != "" {
		e.Headers["Traceparent"], e.Headers["tracestate"] = parent, "vendor=1"
	}
	return e
}

// TestSpan: the span continues the writer's trace, and the event that goes out
// continues the span.
func TestSpan(t *testing.T) {
	t.Parallel()
	spans, mw := tracing(t)
	e := event(7, writer)
	before := maps.Clone(e.Headers)
	var sent *delivery.Event
	h := mw(delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
		if !trace.SpanContextFromContext(ctx).IsValid() {
			t.Error("the handler's context has no span")
		}
		sent = e
		return delivery.Unavailable(errors.New("refused"))
	}))
	if err := h.Deliver(t.Context(), e); !delivery.IsUnavailable(err) {
		t.Errorf("the error became %v", err)
	}
	if len(spans.GetSpans()) != 1 {
		t.Fatalf("%d spans", len(spans.GetSpans()))
	}
	s := spans.GetSpans()[0]
	if s.Name != "deliver mail" || s.SpanKind != trace.SpanKindProducer || s.Status.Code != codes.Error || s.Status.Description != "refused" {
		t.Errorf("%+v", s)
	}
	if s.Parent.SpanID().String() != writer[36:52] || s.SpanContext.TraceID().String() != writer[3:35] || !s.Parent.IsRemote() {
		t.Errorf("parent %v", s.Parent)
	}
	if len(s.Links) != 1 || s.Links[0].SpanContext.SpanID() != s.Parent.SpanID() {
		t.Errorf("links %v", s.Links)
	}
	has := attribute.NewSet(s.Attributes...)
	for key, want := range map[attribute.Key]string{
		"messaging.system": "notifyd", "messaging.destination.name": "mail", "messaging.message.id": "7", "notifyd.event.type": "order.created",
		"notifyd.attempt": "2", "error.type": "destination", "kind": "test",
	} {
		if value, ok := has.Value(key); !ok || value.String() != want {
			t.Errorf("%s = %q, want %q", key, value.String(), want)
		}
	}
	if !maps.Equal(e.Headers, before) {
		t.Errorf("the event's own headers became %v", e.Headers)
	}
	want := map[string]string{"tenant": "a", "tracestate": "vendor=1", "traceparent": "00-" + writer[3:35] + "-" + s.SpanContext.SpanID().String() + "-01"}
	if !maps.Equal(sent.Headers, want) {
		t.Errorf("sent with %v, want %v", sent.Headers, want)
	}
}

// TestSampling: the writer's decision holds, and its trace goes on without spans.
func TestSampling(t *testing.T) {
	t.Parallel()
	spans, mw := tracing(t)
	var sent []*delivery.Event
	h := mw(delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		sent = append(sent, e)
		return nil
	}))
	for _, parent := range []string{unsampled, "", "nonsense"} {
		if err := h.Deliver(t.Context(), event(1, parent)); err != nil {
			t.Fatal(err)
		}
	}
	if got := spans.GetSpans(); len(got) != 2 || got[0].Parent.IsValid() || got[1].Parent.IsValid() || len(got[1].Links) > 0 || got[0].Status.Code != codes.Unset {
		t.Errorf("%+v", got)
	}
	if p := sent[0].Headers["traceparent"]; !strings.HasPrefix(p, writer[:36]) || !strings.HasSuffix(p, "-00") {
		t.Errorf("not sampled, and sent as %q", p)
	}
	for _, e := range sent[1:] {
		if len(e.Headers["traceparent"]) != len(writer) || len(e.Headers["Traceparent"]) != 0 {
			t.Errorf("sent with %v", e.Headers)
		}
	}
}

// TestOff: a no-op provider leaves the event alone.
func TestOff(t *testing.T) {
	t.Parallel()
	e := event(1, "")
	err := oteltrace.Middleware(noop.NewTracerProvider())(delivery.HandlerFunc(func(_ context.Context, got *delivery.Event) error {
		if got != e {
			t.Error("the handler got a copy")
		}
		return nil
	})).Deliver(t.Context(), e)
	if err != nil {
		t.Error(err)
	}
}

// TestPanic: the span ends, and the panic continues.
func TestPanic(t *testing.T) {
	t.Parallel()
	spans, mw := tracing(t)
	batch := mw(delivery.BatchHandlerFunc(func(context.Context, []*delivery.Event) []error { panic("no") })).(delivery.BatchHandler) //nolint:forcetypeassert // or the test panics
	one := mw(delivery.HandlerFunc(func(context.Context, *delivery.Event) error { panic("no") }))
	for _, call := range []func(){
		func() { _ = batch.DeliverBatch(t.Context(), []*delivery.Event{event(1, ""), event(2, "")}) },
		func() { _ = one.Deliver(t.Context(), event(3, "")) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is gone")
				}
			}()
			call()
		}()
	}
	if got := spans.GetSpans(); len(got) != 3 || got[0].Status.Code != codes.Error || got[2].Status.Code != codes.Error {
		t.Errorf("%+v", got)
	}
}

type full struct{ delivery.BatchHandlerFunc }

func (full) KeepsOrder() bool        { return true }
func (full) Report() delivery.Report { return delivery.Report{Unconfirmed: 3} }

type reporter struct{ delivery.HandlerFunc }

func (reporter) Report() delivery.Report { return delivery.Report{Unconfirmed: 4} }

// TestBatch: each event has a span with its own answer, and no wrapped handler
// loses an interface.
func TestBatch(t *testing.T) {
	t.Parallel()
	spans, mw := tracing(t)
	refused := errors.New("no")
	handle := delivery.BatchHandlerFunc(func(_ context.Context, events []*delivery.Event) []error {
		if events[0].Headers["traceparent"] == events[1].Headers["traceparent"] {
			t.Error("two events, one span")
		}
		return []error{nil, delivery.Permanent(refused)}
	})
	h, ok := mw(full{handle}).(delivery.BatchHandler)
	if !ok {
		t.Fatal("the wrapped handler is not a BatchHandler")
	}
	errs := h.DeliverBatch(t.Context(), []*delivery.Event{event(1, writer), event(2, writer)})
	if len(errs) != 2 || errs[0] != nil || !errors.Is(errs[1], refused) {
		t.Errorf("%v", errs)
	}
	if got := spans.GetSpans(); len(got) != 2 || got[0].Status.Code != codes.Unset || got[1].Status.Code != codes.Error {
		t.Errorf("%+v", got)
	}
	for name, c := range map[string]struct {
		handler               delivery.Handler
		batches, keeps, tells bool
	}{
		"full":     {full{handle}, true, true, true},
		"batch":    {handle, true, false, false},
		"reporter": {reporter{}, false, false, true},
		"plain":    {delivery.HandlerFunc(nil), false, false, false},
	} {
		h := mw(c.handler)
		_, batches := h.(delivery.BatchHandler)
		_, tells := delivery.As[delivery.Reporter](h)
		k, ok := h.(delivery.OrderedBatchHandler)
		if batches != c.batches || tells != c.tells || (ok && k.KeepsOrder()) != c.keeps {
			t.Errorf("%s: batches %t, tells %t, keeps order %t", name, batches, tells, ok && k.KeepsOrder())
		}
	}
}

// TestAck: the span of each event of a batch has the partition and the offset that the destination returned. An event without
// a span asks for nothing.
func TestAck(t *testing.T) {
	t.Parallel()
	spans, mw := tracing(t)
	handle := delivery.BatchHandlerFunc(func(_ context.Context, events []*delivery.Event) []error {
		for i, offset := range []int64{40, -1} {
			events[i].Acknowledged(func() delivery.Ack { return delivery.Ack{Partition: strconv.Itoa(i), Offset: offset} })
		}
		events[2].Acknowledged(func() delivery.Ack {
			t.Error("an event that is not sampled asks for its acknowledgement")
			return delivery.Ack{}
		})
		return nil
	})
	h := mw(handle).(delivery.BatchHandler) //nolint:forcetypeassert // or the test panics
	if errs := h.DeliverBatch(t.Context(), []*delivery.Event{event(1, writer), event(2, writer), event(3, unsampled)}); errs != nil {
		t.Fatal(errs)
	}
	got := spans.GetSpans()
	if len(got) != 2 {
		t.Fatalf("%d spans", len(got))
	}
	for i, want := range []int64{40, -1} {
		has := attribute.NewSet(got[i].Attributes...)
		partition, _ := has.Value("messaging.destination.partition.id")
		offset, found := has.Value("messaging.kafka.offset")
		if partition.AsString() != strconv.Itoa(i) || found != (want >= 0) || found && offset.AsInt64() != want {
			t.Errorf("event %d: partition %q, offset %d %t", i+1, partition.AsString(), offset.AsInt64(), found)
		}
	}
}

// BenchmarkSpan measures what tracing adds to an attempt, export excluded.
func BenchmarkSpan(b *testing.B) {
	for name, parent := range map[string]string{"sampled": writer, "unsampled": unsampled, "without a parent": ""} {
		b.Run(name, func(b *testing.B) {
			provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(tracetest.NewNoopExporter()))
			h := oteltrace.Middleware(provider)(delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil }))
			e := event(1, parent)
			b.ReportAllocs()
			for b.Loop() {
				if err := h.Deliver(b.Context(), e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
