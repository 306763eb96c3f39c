//go:build unix

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/notifyd/notifyd/internal/testenv"
)

// TestMetricsOverOTLP: a daemon sends its metrics to a receiver of OTLP, the last ones when it stops. One that is down is
// logged once, and delays neither a delivery nor the end.
func TestMetricsOverOTLP(t *testing.T) {
	t.Parallel()
	requests := make(chan *collector.ExportMetricsServiceRequest, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := &collector.ExportMetricsServiceRequest{}
		if err != nil || proto.Unmarshal(body, request) != nil || r.URL.Path != "/v1/metrics" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		requests <- request
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(server.Close)
	refusing := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(refusing.Close)
	for name, endpoint := range map[string]string{"up": server.URL, "down": refusing.URL} {
		url := database(t)
		path := file(t, "version: 1\ndatabase: {url: '"+url+"'}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n")
		d := startTraced(t, endpoint, path, "OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=otlp", "OTEL_METRIC_EXPORT_INTERVAL=50", "OTEL_SERVICE_NAME=shop-relay")
		d.stderr.await(t, `"relay started"`)
		publishTo(t, url, "order.placed", "{}")
		until(t, url, "SELECT bool_and(state = 'done') FROM outbox_events")
		if name == "down" {
			d.stderr.await(t, "metrics not sent")
		} else {
			testenv.Receive(t, patience, "metrics while the daemon runs", requests)
		}
		d.endInOrder(t)
		if n := strings.Count(d.stderr.text(), "metrics not sent"); name == "down" && n != 1 || name == "up" && n != 0 {
			t.Errorf("%s: the outage is logged %d times:\n%s", name, n, d.stderr.text())
		}
	}
	close(requests)
	var last *collector.ExportMetricsServiceRequest
	for last = range requests {
	}
	got := last.GetResourceMetrics()[0]
	if of := attributes(got.GetResource().GetAttributes()); of["service.name"] != "shop-relay" {
		t.Errorf("the resource is %v", of)
	}
	delivered, latency := 0.0, uint64(0)
	for _, m := range got.GetScopeMetrics()[0].GetMetrics() {
		switch m.GetName() {
		case "notifyd_deliveries_total":
			for _, p := range m.GetSum().GetDataPoints() {
				if attributes(p.GetAttributes())["outcome"] == "delivered" {
					delivered += p.GetAsDouble()
				}
			}
		case "notifyd_commit_to_ack_seconds":
			latency = m.GetHistogram().GetDataPoints()[0].GetCount()
		}
	}
	if delivered != 1 || latency != 1 {
		t.Errorf("the last metrics have %v delivered, and %d latencies", delivered, latency)
	}
}
