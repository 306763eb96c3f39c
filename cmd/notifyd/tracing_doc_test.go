//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestTracingPage runs docs/tracing.md: variables and relay, SQL and the command. The
// spans that the collector gets are those of the page's events.
func TestTracingPage(t *testing.T) {
	t.Parallel()
	collected := startCollector(t)
	s := newStage(t, database(t), "http://localhost:4318", collected.URL)
	s.write("notifyd.yaml", s.own.Replace(auditOnly))
	written := func(column string) act {
		return act{after: func(string) {
			equal(t, s.url, `SELECT `+column+` FROM outbox_events ORDER BY id DESC LIMIT 1`, writer)
		}}
	}
	s.follow("docs/tracing.md", map[string]act{
		"notifyd run": {run: func(step) { s.start() }},
		"sql 1":       written("traceparent"),
		"sql 2":       written("traceparent"),
		`notifyd publish order.placed '{"order": 7}' --header traceparent=` + writer: written("headers->>'traceparent'"),
	})
	until(t, s.url, "SELECT count(*) = 3 AND bool_and(state = 'done') FROM outbox_events")
	s.stop() // which sends the last spans
	all := collected.received()
	if len(all) != 3 || collected.of["service.name"] != "shop-relay" || collected.of["deployment.environment.name"] != "production" {
		t.Errorf("%d spans of %v", len(all), collected.of)
	}
	for _, span := range all {
		if !strings.Contains(traceparentOf(span), writerTrace) || span.GetName() != "deliver audit" {
			t.Errorf("the span %s of %s", span.GetName(), traceparentOf(span))
		}
	}
	for _, st := range steps(testenv.ReadFile(t, root+"docs/tracing.md")) {
		if st.language == "go" && !strings.Contains(testenv.ReadFile(t, root+"observe/oteltrace/example_test.go"), st.text) {
			t.Errorf("the example of the package is not\n%s", st.text)
		}
	}
}
