package tracing

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
	provider, err := New(t.Context(), "v1")
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

func TestWanted(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{
		"": "off", "OTEL_SERVICE_NAME=x": "off",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318":                                                                   "on",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c:4318/v1/traces":                                                  "on",
		"OTEL_TRACES_EXPORTER=otlp":                                                                                   "on",
		"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318":                                         "off",
		"OTEL_SDK_DISABLED=TRUE OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318":                                            "off",
		"OTEL_TRACES_EXPORTER=zipkin":                                                                                 "use otlp or none",
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                                                  "OTEL_EXPORTER_OTLP_PROTOCOL: \"grpc\" is not spoken",
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf":                                         "on",
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                                                                            "off",
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf OTEL_EXPORTER_OTLP_PROTOCOL=grpc": "on",
	} {
		vars := make(map[string]string)
		for v := range strings.FieldsSeq(env) {
			name, value, _ := strings.Cut(v, "=")
			vars[name] = value
		}
		on, err := Wanted(func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && on != (want == "on") || err == nil && want != "on" && want != "off" {
			t.Errorf("%s: %t, %v; want %s", env, on, err, want)
		}
	}
}
