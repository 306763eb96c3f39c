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

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"
)

// broken is a collector of metrics that fails.
type broken struct{}

func (broken) Describe(chan<- *prometheus.Desc) {}

func (broken) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.NewInvalidMetric(prometheus.NewDesc("bad", "It fails.", nil, nil), errors.New("no figures"))
}

// TestExportMetrics sends the metrics of a registry to a receiver of OTLP in this process: those that can be gathered,
// with their labels, under the resource of the spans.
func TestExportMetrics(t *testing.T) {
	received := make(chan *collector.ExportMetricsServiceRequest, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := &collector.ExportMetricsServiceRequest{}
		if err != nil || proto.Unmarshal(body, request) != nil || r.URL.Path != "/v1/metrics" || r.Header.Get("X-Key") != "k" {
			t.Errorf("%s %s, %v, %v", r.Method, r.URL, r.Header, err)
		}
		received <- request
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k")
	t.Setenv("OTEL_SERVICE_NAME", "shop-relay")
	registry := prometheus.NewRegistry()
	sent := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sent_total", Help: "Sent."}, []string{"destination"})
	took := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "took_seconds", Help: "Took.", Buckets: []float64{1, 2}})
	registry.MustRegister(sent, took, broken{})
	sent.WithLabelValues("mail").Add(3)
	took.Observe(1.5)
	var text strings.Builder
	provider, err := NewMetrics(t.Context(), registry, "v1", slog.New(slog.NewTextHandler(&text, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := provider.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "metrics incomplete") {
		t.Errorf("the log has %s", text.String())
	}
	got := (<-received).GetResourceMetrics()[0]
	attributes := make(map[string]string)
	for _, a := range got.GetResource().GetAttributes() {
		attributes[a.GetKey()] = a.GetValue().GetStringValue()
	}
	if attributes["service.name"] != "shop-relay" || attributes["service.version"] != "v1" {
		t.Errorf("the resource is %v", attributes)
	}
	found := 0
	for _, m := range got.GetScopeMetrics()[0].GetMetrics() {
		switch m.GetName() {
		case "sent_total":
			p := m.GetSum().GetDataPoints()[0]
			if found++; p.GetAsDouble() != 3 || p.GetAttributes()[0].GetValue().GetStringValue() != "mail" || !m.GetSum().GetIsMonotonic() {
				t.Errorf("the counter is %v", m)
			}
		case "took_seconds":
			p := m.GetHistogram().GetDataPoints()[0]
			if found++; p.GetCount() != 1 || p.GetSum() != 1.5 {
				t.Errorf("the histogram is %v", m)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d of 2 metrics have arrived", found)
	}
}

// TestMetricsOutageIsLoggedOnce: an outage of the collector is logged once, and so is its end.
func TestMetricsOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	inner := &refusingMetrics{errs: []error{nil, errors.New("refused"), errors.New("refused"), nil, nil}}
	e := &loggingMetrics{Exporter: inner, log: slog.New(slog.NewTextHandler(&text, nil))}
	for range 5 {
		if err := e.Export(t.Context(), &metricdata.ResourceMetrics{}); err != nil {
			t.Error(err)
		}
	}
	if strings.Count(text.String(), "\n") != 2 || !strings.Contains(text.String(), "err=refused") || !strings.Contains(text.String(), "lost=2") {
		t.Errorf("the log has\n%s", text.String())
	}
}

// refusingMetrics answers with one error after the other.
type refusingMetrics struct {
	metric.Exporter
	errs []error
}

func (r *refusingMetrics) Export(context.Context, *metricdata.ResourceMetrics) (err error) {
	err, r.errs = r.errs[0], r.errs[1:]
	return err
}

// TestWantedMetrics: metrics are requested on their own, and a mistake names its variable.
func TestWantedMetrics(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{
		"": "false",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318":                                "false",
		"OTEL_METRICS_EXPORTER=otlp OTEL_TRACES_SAMPLER=y":                         "true",
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://c:4318/v1/metrics":             "true",
		"OTEL_METRICS_EXPORTER=none OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://c":  "false",
		"OTEL_METRICS_EXPORTER=otlp OTEL_SDK_DISABLED=true":                        "false",
		"OTEL_METRICS_EXPORTER=prometheus":                                         `OTEL_METRICS_EXPORTER: "prometheus" is not known: use otlp or none`,
		"OTEL_METRICS_EXPORTER=otlp OTEL_METRIC_EXPORT_INTERVAL=10s":               `OTEL_METRIC_EXPORT_INTERVAL: "10s" is not a whole number`,
		"OTEL_METRICS_EXPORTER=otlp OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/json": `OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: "http/json" is not spoken`,
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=hush:4318":                            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: is not a URL",
		"OTEL_METRICS_EXPORTER=otlp OTEL_EXPORTER_OTLP_METRICS_HEADERS=hush":       "OTEL_EXPORTER_OTLP_METRICS_HEADERS: is not a list",
	} {
		wanted, err := WantedMetrics(variables(env))
		got := map[bool]string{true: "true", false: "false"}[wanted]
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) || strings.Contains(got, "hush") {
			t.Errorf("%s: %s, want %s", env, got, want)
		}
	}
}
