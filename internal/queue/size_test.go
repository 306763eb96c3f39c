package queue

import (
	"errors"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/wire"
)

// TestBytesCountTheRow: whatever is large in a row counts towards the bytes of a claim, as it is in
// memory and not as it is stored.
func TestBytesCountTheRow(t *testing.T) {
	t.Parallel()
	for name, insert := range map[string]string{
		"payload":      `(event_type, payload) SELECT 'a', to_json(repeat('x', 1000))`,
		"headers":      `(event_type, payload, headers) SELECT 'a', '1', jsonb_build_object('x', repeat('x', 1000))`,
		"aggregate id": `(event_type, payload, aggregate_type, aggregate_id) SELECT 'a', '1', 'a', repeat('x', 1000)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t)
			d.Exec(`INSERT INTO outbox_events ` + insert + ` FROM generate_series(1, 100)`)
			s := d.session(options())
			for _, q := range []Query{
				{Source: SourceSweep, Limit: 100, Bytes: 10_000},
				{Source: SourceIDs, IDs: testdb.List[int64](d, d.Conn, `SELECT id FROM outbox_events`), Bytes: 10_000},
			} {
				c := d.claim(s, q)
				if n := len(c.Work); n < 5 || n > 9 || c.Bytes > q.Bytes || c.Bytes < n*1000 || !c.Cut {
					t.Errorf("%v: %d events of %d bytes, cut %v", q, n, c.Bytes, c.Cut)
				}
				d.settle(s, &Settlement{})
			}
			d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT id, 'x', 'a', 'retry' FROM outbox_events`)
			due := dueFor("x")
			due.Wanted["x"], due.Bytes = 100, 10_000
			if c := d.claim(s, due); len(c.Work) < 5 || len(c.Work) > 9 || !c.Cut {
				t.Errorf("due: %d events of %d bytes, cut %v", len(c.Work), c.Bytes, c.Cut)
			}
		})
	}
}

// TestLargeEventIsNotRead: neither payload nor headers of an event above the limit are fetched,
// however well they are compressed.
func TestLargeEventIsNotRead(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.Exec(`ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_headers_small`) // as for an event that is older
	d.Exec(`INSERT INTO outbox_events (event_type, payload, headers) VALUES
		('payload', to_json(repeat('x', 100000)), '{"a": "b"}'), ('headers', '1', jsonb_build_object('x', repeat('x', 100000))),
		('fits', to_json(repeat('x', 49000)), jsonb_build_object('x', repeat('x', 900))), ('small', '1', NULL)`)
	ids := testdb.List[int64](d, d.Conn, `SELECT id FROM outbox_events ORDER BY id`)
	o := options()
	o.EventBytes = 50_000
	s := d.session(o)
	check := func(what string, work []Work) {
		t.Helper()
		if len(work) != len(ids) {
			t.Fatalf("%s: %d events", what, len(work))
		}
		for i := range work {
			w, e := &work[i], &work[i].Event
			if large, refused := errors.AsType[*wire.LargeError](w.Refused); refused != (i < 2) {
				t.Errorf("%s: %s: refused with %v", what, e.Type, w.Refused)
			} else if refused && (len(e.Payload) > 0 || len(e.Headers) > 0 || large.Bytes < 100_000 || large.Bytes > 100_100) {
				t.Errorf("%s: %s: %d bytes of payload and %d headers were read; %v", what, e.Type, len(e.Payload), len(e.Headers), large)
			}
			if i == 2 && (len(e.Payload) != 49_002 || e.Headers["x"] != strings.Repeat("x", 900)) {
				t.Errorf("%s: an event that fits has %d bytes of payload", what, len(e.Payload))
			}
		}
	}
	c := d.claim(s, Query{Source: SourceSweep, Limit: 10})
	if check("sweep", c.Work); c.Bytes > 51_000 {
		t.Errorf("%d bytes were read", c.Bytes)
	}
	d.settle(s, &Settlement{})
	check("sweep but some", d.claim(s, Query{Source: SourceSweep, Limit: 10, Skip: []string{"other"}}).Work)
	d.settle(s, &Settlement{})
	check("ids", d.claim(s, Query{Source: SourceIDs, IDs: ids}).Work)
	d.settle(s, &Settlement{})
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at)
		SELECT id, 'x', event_type, 'retry', now() - interval '1 hour' + id * interval '1 second' FROM outbox_events`)
	due := dueFor("x")
	due.Wanted["x"] = 10
	check("due", d.claim(s, due).Work)
}
