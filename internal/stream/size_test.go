package stream

import (
	"errors"
	"math"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

// TestStoredRowsCount: all large parts of the event of a stored delivery count, and an event that is too large is not
// read.
func TestStoredRowsCount(t *testing.T) {
	t.Parallel()
	for name, insert := range map[string]string{
		"payload":      `(event_type, payload) SELECT 'a', to_json(repeat('x', 1000))`,
		"headers":      `(event_type, payload, headers) SELECT 'a', '1', jsonb_build_object('x', repeat('x', 1000))`,
		"aggregate id": `(event_type, payload, aggregate_type, aggregate_id) SELECT 'a', '1', 'a', repeat('x', 1000)`,
	} {
		l := newLog(t)
		l.Exec(`INSERT INTO outbox_events ` + insert + ` FROM generate_series(1, 100)`)
		l.Exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('large', to_json(repeat('x', 100000)))`)
		l.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, available_at)
			SELECT id, 'x', 'a', 'retry', 'order/1', now() - interval '1 hour' + id * interval '1 second' FROM outbox_events`)
		limits := engine.Limits{Bytes: 10_000, EventBytes: 50_000}
		for what, query := range map[string]string{"due": sqlDue(limits.EventBytes, &order{kept: true}), "lines": sqlQueueHeads(limits.EventBytes, &order{kept: true})} {
			read := func(after int64, limits engine.Limits) ([]deliveries.Row, bool) {
				args := []any{"x", deliveries.BeforeAll().At, after, 1000, false, pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}}
				if what == "lines" {
					args = []any{"x", []string{"order/1"}, 1000, false}
				}
				rows, cut, err := deliveries.Read(t.Context(), session.Direct(l.Relay()), limits, nil, query, args...)
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
				if large, refused := errors.AsType[*wire.LargeError](rows[i].Refused); refused != (i == 100) || refused && (large.Bytes != 100_002 || rows[i].Event.Payload != nil) {
					t.Errorf("%s, %s: row %d: %v, %d bytes", name, what, i, rows[i].Refused, len(rows[i].Event.Payload))
				}
			}
		}
	}
}
