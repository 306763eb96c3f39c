//go:build unix

package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/lab/testenv"
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
		execute(t, url, `INSERT INTO outbox_events (event_type, payload, headers) VALUES ('order.placed', '{}', '{"traceparent": "00-`+writersTrace+`-00f067aa0ba902b7-01"}')`)
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
	delivered, latency, trace := 0.0, uint64(0), ""
	for _, m := range got.GetScopeMetrics()[0].GetMetrics() {
		switch m.GetName() {
		case "notifyd_deliveries_total":
			for _, p := range m.GetSum().GetDataPoints() {
				if attributes(p.GetAttributes())["outcome"] == "delivered" {
					delivered += p.GetAsDouble()
				}
			}
		case "notifyd_commit_to_ack_seconds":
			p := m.GetHistogram().GetDataPoints()[0]
			latency = p.GetCount()
			for _, e := range p.GetExemplars() {
				trace = hex.EncodeToString(e.GetTraceId())
			}
		}
	}
	if delivered != 1 || latency != 1 || trace != writersTrace {
		t.Errorf("the last metrics have %v delivered, %d latencies, and the trace %q", delivered, latency, trace)
	}
}

// writersTrace is the id of a trace.
const writersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"

// TestExemplars: a scrape in the format of OpenMetrics has the trace of an event with its latency. One in the text format,
// which has no place for it, has the latency.
func TestExemplars(t *testing.T) {
	t.Parallel()
	url := database(t)
	port, err := freeport.Pick(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	startReloadable(t, nil, "version: 1\ndatabase: {url: '"+url+"'}\nadmin: {listen: '"+address+"'}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n")
	execute(t, url, `INSERT INTO outbox_events (event_type, payload, headers) VALUES ('order.placed', '{}', '{"traceparent": "00-`+writersTrace+`-00f067aa0ba902b7-01"}')`)
	untilDone(t, url)
	for accept, want := range map[string]string{"application/openmetrics-text": `{trace_id="` + writersTrace + `"}`, "text/plain": `notifyd_commit_to_ack_seconds_count{destination="audit"} 1`} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", accept)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close() // it was read
		if err != nil || !strings.Contains(string(body), want) || accept == "text/plain" && strings.Contains(string(body), writersTrace) {
			t.Errorf("%s: %v:\n%s", accept, err, body)
		}
	}
}
