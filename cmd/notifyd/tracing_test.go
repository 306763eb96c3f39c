package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	writerTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	writerSpan  = "00f067aa0ba902b7"
	writer      = "00-" + writerTrace + "-" + writerSpan + "-01"
)

// spans is a receiver of OTLP that keeps all spans.
type spans struct {
	*httptest.Server
	mu  sync.Mutex
	all []*otlp.Span
	of  map[string]string // the resource
}

func startCollector(t *testing.T) *spans {
	t.Helper()
	s := &spans{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := &collector.ExportTraceServiceRequest{}
		if err != nil || proto.Unmarshal(body, request) != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, resource := range request.GetResourceSpans() {
			s.of = attributes(resource.GetResource().GetAttributes())
			for _, scope := range resource.GetScopeSpans() {
				s.all = append(s.all, scope.GetSpans()...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(s.Close)
	return s
}

// received returns what has come, by event, and in the order in which it began.
func (s *spans) received() []*otlp.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.all)
	id := func(s *otlp.Span) string { return attributes(s.GetAttributes())["notifyd.event.id"] }
	slices.SortFunc(all, func(a, b *otlp.Span) int {
		return cmp.Or(cmp.Compare(id(a), id(b)), cmp.Compare(a.GetStartTimeUnixNano(), b.GetStartTimeUnixNano()))
	})
	return all
}

func attributes(list []*common.KeyValue) map[string]string {
	all := make(map[string]string)
	for _, a := range list {
		all[a.GetKey()] = a.GetValue().GetStringValue()
		if n, ok := a.GetValue().GetValue().(*common.AnyValue_IntValue); ok {
			all[a.GetKey()] = fmt.Sprint(n.IntValue)
		}
	}
	return all
}

// traceparentOf returns what a span passes on.
func traceparentOf(s *otlp.Span) string {
	return fmt.Sprintf("00-%x-%x-01", s.GetTraceId(), s.GetSpanId())
}

// startTraced runs the daemon as a process, for the SDK reads the environment of
// that. Spans leave when it ends, and not before.
func startTraced(t *testing.T, endpoint, path string, more ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + endpoint, "OTEL_BSP_SCHEDULE_DELAY=600000"}, more...)
	return startProgram(t, strings.NewReader(""), "env", append(args, self, "run", "-c", path, "--log-format", "json")...)
}

// endInOrder lets the daemon stop, and say its last.
func (p *process) endInOrder(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.stderr.text())
	}
}

// TestTracing: the trace of any SQL client goes on in a span per attempt, and
// from there to the destination, also after a reload.
func TestTracing(t *testing.T) {
	t.Parallel()
	type request struct{ id, parent string }
	requests := make(chan request, 10)
	var once sync.Once
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { w.WriteHeader(http.StatusInternalServerError) }) // the first attempt fails
		requests <- request{r.Header.Get("Webhook-Id"), r.Header.Get("Traceparent")}
	}))
	defer hook.Close()
	url, collected := database(t), startCollector(t)
	config := func(concurrency int) string {
		return fmt.Sprintf(`version: 1
database: {url: "%s"}
destinations: {hook: {type: webhook, url: "%s", concurrency: %d, backoff: {initial: 1ms}}}
routes: [{match: "*", to: hook}]
`, url, hook.URL, concurrency)
	}
	path := file(t, config(1))
	d := startTraced(t, collected.URL, path, "OTEL_SERVICE_NAME=shop-relay")
	d.stderr.await(t, `"relay started"`)
	insert := func(headers string) {
		t.Helper()
		execute(t, url, `BEGIN; SET LOCAL notifyd.traceparent = '`+writer+`';
			INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, headers) VALUES ('order.placed', 'order', '7', '{}', `+headers+`); COMMIT`)
	}
	insert("NULL")
	sent := []request{<-requests, <-requests}
	if err := os.WriteFile(path, []byte(config(2)), 0o600); err != nil {
		t.Fatal(err)
	}
	d.signal(t, syscall.SIGHUP)
	d.stderr.await(t, saidDelivers)
	insert(`'{"tenant": "a"}'`)
	publishTo(t, url, "order.placed", "{}") // without a trace
	sent = append(sent, <-requests, <-requests)
	until(t, url, "SELECT bool_and(state = 'done') FROM outbox_events")
	d.endInOrder(t)

	all := collected.received()
	if len(all) != 4 || collected.of["service.name"] != "shop-relay" || collected.of["service.version"] == "" {
		t.Fatalf("%d spans of %v", len(all), collected.of)
	}
	for i, s := range all {
		id := attributes(s.GetAttributes())["messaging.message.id"]
		if id != []string{"1", "1", "2", "3"}[i] || !slices.Contains(sent, request{"notifyd-" + id + "-hook", traceparentOf(s)}) {
			t.Errorf("span %d is of event %s and %s, the destination got %v", i, id, traceparentOf(s), sent)
		}
		want := ""
		if i == 0 {
			want = "500"
		}
		checkAttempt(t, s, want)
		checkParent(t, s, i < 3)
	}
}

// checkAttempt examines the span of an attempt at a webhook, which failed with a
// message that has the given text, if any.
func checkAttempt(t *testing.T, s *otlp.Span, failure string) {
	t.Helper()
	has := attributes(s.GetAttributes())
	for key, want := range map[string]string{
		"messaging.system": "notifyd", "messaging.operation.type": "send", "messaging.destination.name": "hook",
		"notifyd.destination.type": "webhook", "notifyd.event.type": "order.placed", "server.address": "127.0.0.1",
	} {
		if has[key] != want {
			t.Errorf("%s is %q, want %q", key, has[key], want)
		}
	}
	if s.GetName() != "deliver hook" || s.GetKind() != otlp.Span_SPAN_KIND_PRODUCER || s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() {
		t.Errorf("the span is %v", s)
	}
	failed := failure != ""
	if (s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR) != failed || (has["error.type"] != "") != failed ||
		failed && !strings.Contains(s.GetStatus().GetMessage(), failure) {
		t.Errorf("status %v, error.type %q; failed: %t", s.GetStatus(), has["error.type"], failed)
	}
}

// checkParent examines whether a span belongs to the writer's trace, as it should
// or should not.
func checkParent(t *testing.T, s *otlp.Span, writers bool) {
	t.Helper()
	is := fmt.Sprintf("%x %x", s.GetTraceId(), s.GetParentSpanId())
	switch {
	case !writers && (strings.Contains(is, writerTrace) || len(s.GetParentSpanId()) != 0 || len(s.GetLinks()) != 0):
		t.Errorf("the event without a trace got that of %s, links %v", is, s.GetLinks())
	case writers && (is != writerTrace+" "+writerSpan || len(s.GetLinks()) != 1 || fmt.Sprintf("%x", s.GetLinks()[0].GetSpanId()) != writerSpan):
		t.Errorf("the span is of %s, links %v", is, s.GetLinks())
	}
}

// TestCollectorAway: deliveries and the end of the daemon do not depend on it.
func TestCollectorAway(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(nil)
	gone.Close()
	url := database(t)
	d := startTraced(t, gone.URL, file(t, "version: 1\ndatabase: {url: '"+url+"'}\ndestinations: {a: {type: log}}\nroutes: [{match: '*', to: a}]\n"))
	publishTo(t, url, "order.placed", "{}", "--header", "traceparent="+writer)
	d.stdout.await(t, writerTrace)
	until(t, url, "SELECT bool_and(state = 'done') FROM outbox_events")
	began := time.Now()
	d.endInOrder(t)
	if text := d.stderr.text(); !strings.Contains(text, "spans not sent") && !strings.Contains(text, "last spans not sent") {
		t.Errorf("after %v the lost spans are not logged:\n%s", time.Since(began), text)
	}
}

// TestTracingMistakes: a wrong variable ends the daemon before it has done anything.
func TestTracingMistakes(t *testing.T) {
	t.Parallel()
	env := vars{"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318", "OTEL_TRACES_SAMPLER": "often", "OTEL_EXPORTER_OTLP_HEADERS": "hush"}
	got := commandIn(t, env, "run", "-c", file(t, "version: 1\ndatabase: {url: 'postgres://127.0.0.1:1/none'}\ndestinations: {a: {type: log}}\nroutes: [{match: '*', to: a}]\n"))
	if got.code != command.ExitConfig || strings.Contains(got.stderr, "hush") || strings.Contains(got.stderr, "see notifyd") {
		t.Errorf("%+v", got)
	}
	for _, want := range []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT: is not a URL like http://collector:4318\n",
		"OTEL_EXPORTER_OTLP_HEADERS: is not a list", `OTEL_TRACES_SAMPLER: "often" is not known: use always_on`,
	} {
		if !strings.Contains(got.ended(), want) {
			t.Errorf("%q is not said in\n%s", want, got.stderr)
		}
	}
}
