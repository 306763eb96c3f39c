package queue

import (
	"testing"

	"github.com/notifyd/notifyd/internal/deliveries"
)

const captured = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestTraceOfTheWriter: a trace captured at the insert becomes a header, by every kind of query,
// unless the writer set one or it is invalid.
func TestTraceOfTheWriter(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.Exec(`BEGIN`)
	d.Exec(`SET LOCAL notifyd.traceparent = '` + captured + `'`)
	d.Exec(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload, headers) VALUES
		(1, 'a', 'o', '1', '1', NULL), (2, 'a', 'o', '1', '1', '{"tenant": "a"}'), (3, 'a', 'o', '1', '1', '{"Traceparent": "own"}')`)
	d.Exec(`COMMIT`)
	d.Exec(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload, traceparent) VALUES (4, 'a', 'o', '1', '1', 'broken'), (5, 'a', 'o', '1', '1', DEFAULT)`)
	s := d.session(options())
	check := func(how string, c Claimed) {
		t.Helper()
		if len(c.Work) != 5 {
			t.Fatalf("%s: claimed %d", how, len(c.Work))
		}
		for _, w := range c.Work {
			h, want := w.Event.Headers, []string{captured, captured, "", "", ""}[w.Event.ID-1]
			if h["traceparent"] != want || len(h) != []int{1, 2, 1, 0, 0}[w.Event.ID-1] {
				t.Errorf("%s: event %d has headers %v", how, w.Event.ID, h)
			}
		}
	}
	check("by id", d.claim(s, Query{Source: SourceIDs, IDs: []int64{1, 2, 3, 4, 5}}))
	d.settle(s, &Settlement{})
	check("by sweep", d.claim(s, Query{Source: SourceSweep, Limit: 9}))
	var entries []deliveries.Entry
	for id := range int64(5) {
		e := entry(id+1, "x", deliveries.Retry)
		entries = append(entries, e)
	}
	d.settle(s, &Settlement{Deferred: []int64{1, 2, 3, 4, 5}, Put: entries})
	check("by due", d.claim(s, dueFor("x")))
}
