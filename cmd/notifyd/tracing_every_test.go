//go:build testall

package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/destinations"
)

// TestEveryTrace: whatever the destination, what arrives there names the span of
// its attempt.
func TestEveryTrace(t *testing.T) {
	t.Parallel()
	e, collected := startEverything(t, "traced"), startCollector(t)
	d := startTraced(t, collected.URL, file(t, e.config()))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of the daemon:\n%s", d.stderr.text())
		}
	})
	execute(t, e.database, `BEGIN; SET LOCAL notifyd.traceparent = '`+writer+`';
		INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('order.placed', 'order', '7', '`+order+`'); COMMIT`)
	until(t, e.database, "SELECT count(*) = 1 AND bool_and(state = 'done') FROM outbox_events")
	e.arrived()
	d.stdout.await(t, "\n")
	e.traces["log"] = traceOf(d.stdout.text())
	d.endInOrder(t)
	spans := collected.received()
	if len(spans) != len(destinations.Registry("", nil, nil)) {
		t.Errorf("%d spans", len(spans))
	}
	for _, s := range spans {
		name := attributes(s.GetAttributes())["messaging.destination.name"]
		if e.traces[name] != traceparentOf(s) || !strings.Contains(e.traces[name], writerTrace) {
			t.Errorf("%s got %q, its span is %s", name, e.traces[name], traceparentOf(s))
		}
	}
}
