package tracing

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// TestExport sends a span to a receiver of OTLP in this process.
func TestExport(t *testing.T) {
	received := make(chan *collector.ExportTraceServiceRequest, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := &collector.ExportTraceServiceRequest{}
		if err != nil || proto.Unmarshal(body, request) != nil || r.URL.Path != "/v1/traces" || r.Header.Get("X-Key") != "k" {
			t.Errorf("%s %s, %v, %v", r.Method, r.URL, r.Header, err)
		}
		received <- request
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	t.Setenv("OTEL_SERVICE_NAME", "shop-relay")
	provider, err := New(t.Context(), "v1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, span := provider.Tracer("test").Start(t.Context(), "deliver mail", trace.WithSpanKind(trace.SpanKindProducer))
	span.End()
	if err := provider.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := (<-received).GetResourceSpans()[0]
	if name := got.GetScopeSpans()[0].GetSpans()[0].GetName(); name != "deliver mail" {
		t.Errorf("the span is called %q", name)
	}
	attributes := make(map[string]string)
	for _, a := range got.GetResource().GetAttributes() {
		attributes[a.GetKey()] = a.GetValue().GetStringValue()
	}
	for key, want := range map[string]string{"service.name": "shop-relay", "service.version": "v1", "deployment.environment.name": "test"} {
		if attributes[key] != want {
			t.Errorf("%s is %q, want %q", key, attributes[key], want)
		}
	}
}

// TestOutageIsLoggedOnce: an outage of the collector is logged once, and so is its end.
func TestOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	inner := &refusing{errs: []error{nil, errors.New("refused"), errors.New("refused"), nil, nil}}
	e := &loggingExporter{SpanExporter: inner, log: slog.New(slog.NewTextHandler(&text, nil))}
	for range 5 {
		if err := e.ExportSpans(t.Context(), make([]sdktrace.ReadOnlySpan, 3)); err != nil {
			t.Error(err)
		}
	}
	if strings.Count(text.String(), "\n") != 2 || !strings.Contains(text.String(), "err=refused") || !strings.Contains(text.String(), "lost=6") {
		t.Errorf("the log has\n%s", text.String())
	}
}

// refusing answers with one error after the other.
type refusing struct {
	sdktrace.SpanExporter
	errs []error
}

func (r *refusing) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) (err error) {
	err, r.errs = r.errs[0], r.errs[1:]
	return err
}
