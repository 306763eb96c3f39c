package stream

import (
	"errors"
	"math"
	"testing"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/wire"
)

// TestLargeEventIsNotRead: neither payload nor headers of an event above the limit are fetched,
// however well they are compressed.
func TestLargeEventIsNotRead(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.exec(`ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_headers_small`) // as for an event that is older
	l.exec(`INSERT INTO outbox_events (event_type, payload, headers) VALUES
		('payload', to_json(repeat('x', 100000)), '{"a": "b"}'), ('headers', '1', jsonb_build_object('x', repeat('x', 100000))),
		('fits', to_json(repeat('x', 49000)), jsonb_build_object('x', repeat('x', 900))), ('other', to_json(repeat('x', 100000)), NULL)`)
	for _, open := range []Ranges{nil, {{1, 4}}} {
		for _, skip := range [][]string{nil, {"other"}} {
			head := int64(0)
			if open != nil {
				head = 4
			}
			r := l.tail(head, open)
			_, b := r.read(Query{EventBytes: 50_000, Skip: skip})
			if want := 4 - len(skip); len(b.Events) != want || len(b.Refused) != want-1 || b.Bytes > 51_000 {
				t.Fatalf("skip %v, open %v: %d events of %d bytes, refused %v", skip, open, len(b.Events), b.Bytes, b.Refused)
			}
			for i := range b.Events {
				e := &b.Events[i]
				large, refused := errors.AsType[*wire.LargeError](b.Refused[e.ID])
				if refused != (e.Type != "fits") || refused && (len(e.Payload) > 0 || len(e.Headers) > 0 || large.Bytes < 100_000 || large.Bytes > 100_100) {
					t.Errorf("skip %v, open %v: %s: %d bytes of payload, %d headers, %v", skip, open, e.Type, len(e.Payload), len(e.Headers), large)
				}
				if !refused && len(e.Payload) != 49_002 {
					t.Errorf("an event that fits has %d bytes of payload", len(e.Payload))
				}
			}
		}
	}
}

// TestStoredRowsCount: all that is large in the event of a stored delivery counts, and what is too
// large is not read.
func TestStoredRowsCount(t *testing.T) {
	t.Parallel()
	for name, insert := range map[string]string{
		"payload":      `(event_type, payload) SELECT 'a', to_json(repeat('x', 1000))`,
		"headers":      `(event_type, payload, headers) SELECT 'a', '1', jsonb_build_object('x', repeat('x', 1000))`,
		"aggregate id": `(event_type, payload, aggregate_type, aggregate_id) SELECT 'a', '1', 'a', repeat('x', 1000)`,
	} {
		l := newLog(t)
		l.exec(`INSERT INTO outbox_events ` + insert + ` FROM generate_series(1, 100)`)
		l.exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('large', to_json(repeat('x', 100000)))`)
		l.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, available_at)
			SELECT id, 'x', 'a', 'retry', 'order/1', now() - interval '1 hour' + id * interval '1 second' FROM outbox_events`)
		limits := engine.Limits{Bytes: 10_000, EventBytes: 50_000}
		for what, query := range map[string]string{"due": sqlDue(limits.EventBytes), "lines": sqlLines(limits.EventBytes)} {
			read := func(after int64, limits engine.Limits) ([]stored, bool) {
				args := []any{"x", dueStart().at, after, 1000, false}
				if what == "lines" {
					args = []any{"x", []string{"order/1"}, 1000, false}
				}
				rows, cut, err := readRows(t.Context(), l.relay(), limits, query, args...)
				if err != nil {
					t.Fatal(err)
				}
				return rows, cut
			}
			if rows, cut := read(math.MinInt64, limits); len(rows) < 5 || len(rows) > 9 || !cut {
				t.Errorf("%s, %s: %d rows, cut %v", name, what, len(rows), cut)
			}
			rows, cut := read(math.MinInt64, engine.Limits{Bytes: 1 << 20, EventBytes: limits.EventBytes})
			if len(rows) != 101 || cut {
				t.Fatalf("%s, %s: %d rows, cut %v", name, what, len(rows), cut)
			}
			for i := range rows {
				if large, refused := errors.AsType[*wire.LargeError](rows[i].refused); refused != (i == 100) || refused && (large.Bytes != 100_002 || rows[i].event.Payload != nil) {
					t.Errorf("%s, %s: row %d: %v, %d bytes", name, what, i, rows[i].refused, len(rows[i].event.Payload))
				}
			}
		}
	}
}
