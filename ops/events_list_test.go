package ops_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/ops"
)

// ids returns the ids that a list finds on all its pages, which are in order.
func (d *eventsDB) ids(f ops.EventFilter, limit int) (all []int64) {
	d.Helper()
	for pages := 0; ; pages++ {
		page, err := d.store.Events(d.Context(), f, limit)
		if err != nil {
			d.Fatalf("%+v: %v", f, err)
		}
		for i := range page.Events {
			all = append(all, page.Events[i].ID)
		}
		if f.Upto = page.Next; f.Upto == nil {
			break
		}
		if pages == 100 {
			d.Fatalf("%+v: the pages do not end", f)
		}
	}
	if !slices.IsSortedFunc(all, func(a, b int64) int { return int(b - a) }) {
		d.Errorf("%+v: %d are not in order", f, all)
	}
	return all
}

// TestListOfQueue finds events by each filter, a page at a time.
func TestListOfQueue(t *testing.T) {
	t.Parallel()
	allTables(t, false, func(t *testing.T, d *eventsDB) {
		t.Helper()
		d.exec(`INSERT INTO outbox_events (id, event_type, payload, state, processed_at, aggregate_type, aggregate_id, created_at)
			SELECT i, CASE WHEN i % 2 = 0 THEN 'order.paid' ELSE 'order.placed' END, '1', 'done', now(), 'order', (i % 3)::text, now() - (3001 - i) * interval '1 min' FROM generate_series(1, 3000) i`)
		d.exec(`UPDATE outbox_events SET state = 'fresh', processed_at = NULL WHERE id IN (10, 2999)`)
		d.exec(`UPDATE outbox_events SET state = 'deferred', processed_at = NULL WHERE id IN (11, 2000)`)
		d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (11, 'mail', 'a', 'retry'), (11, 'hook', 'a', 'dead'), (12, 'mail', 'a', 'dead'),
			(2000, 'mail', 'a', 'retry'), (2001, 'mail', 'a', 'dead'), (4000, 'mail', 'a', 'dead'), (4001, 'mail', 'a', 'retry')`)
		for _, limit := range []int{1, 2, 50} {
			for want, f := range map[string]ops.EventFilter{
				"[2999 2000 11 10]":     {State: ops.Waiting},
				"[2001 12 11]":          {State: ops.Dead},
				"[12]":                  {State: ops.Dead, Type: "order.paid"},
				"[3000 2997 2994]":      {AggregateType: "order", AggregateID: "0", NewerThan: 7*time.Minute + 30*time.Second},
				"[3000 2998]":           {Type: "order.paid", State: ops.Done, NewerThan: 3*time.Minute + 30*time.Second},
				"[]":                    {Type: "nothing.*"},
				"[2999 2998 2997 2996]": {Type: "order.*", Since: time.Now().Add(-5*time.Minute - 30*time.Second), Upto: new(int64(2999))},
			} {
				if got := fmt.Sprint(d.ids(f, limit)); got != want {
					t.Errorf("limit %d, %+v: %s, want %s", limit, f, got, want)
				}
			}
		}
		if got := d.ids(ops.EventFilter{State: ops.Done}, 700); len(got) != 2994 {
			t.Errorf("%d are done", len(got))
		}
		if got := d.ids(ops.EventFilter{}, 700); len(got) != 3000 || got[0] != 3000 {
			t.Errorf("%d events", len(got))
		}
		page, err := d.store.Events(t.Context(), ops.EventFilter{Type: "order.placed", State: ops.Done, AggregateID: "7", Search: 1500}, 1)
		if err != nil || len(page.Events) != 0 || page.Searched != 1500 || page.Next == nil || *page.Next != 1500 {
			t.Errorf("a search that ends before the table: %+v, %v", page, err)
		}
		for _, f := range []ops.EventFilter{{State: "fresh"}, {Type: "a*b"}, {AggregateID: "\x00"}, {NewerThan: -1}, {Search: -1}, {AggregateType: "\xff"}} {
			if _, err := d.store.Events(t.Context(), f, 1); !errors.Is(err, ops.ErrInvalid) {
				t.Errorf("%+v: %v", f, err)
			}
		}
	})
}

// TestListOfStream: what waits is what a position has not passed, or a row.
func TestListOfStream(t *testing.T) {
	t.Parallel()
	allTables(t, true, func(t *testing.T, d *eventsDB) {
		t.Helper()
		d.exec(`INSERT INTO outbox_events (id, event_type, payload) SELECT i, 'order.placed', '1' FROM generate_series(1, 3000) i`)
		if got := d.ids(ops.EventFilter{State: ops.Waiting}, 700); len(got) != 3000 {
			t.Errorf("%d wait while nobody reads", len(got))
		}
		d.exec(`INSERT INTO outbox_positions (destination, head, open) VALUES ('', 3000, '{}'), ('mail', 2998, '{[1500,1502)}'), ('hook', 2000, '{}')`)
		d.exec(`INSERT INTO outbox_routes (destination, since, patterns, others, head) VALUES ('mail', 1, '{*}', '{}', 0), ('hook', 1, '{}', '{*}', 0)`)
		d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (7, 'mail', 'order.placed', 'retry'), (8, 'mail', 'order.placed', 'dead')`)
		for _, limit := range []int{1, 2, 50} {
			for want, f := range map[string]ops.EventFilter{
				"[3000 2999 1501 1500 7]": {State: ops.Waiting},
				"[8]":                     {State: ops.Dead},
			} {
				if got := fmt.Sprint(d.ids(f, limit)); got != want {
					t.Errorf("limit %d, %+v: %s, want %s", limit, f, got, want)
				}
			}
		}
		if got := d.ids(ops.EventFilter{State: ops.Done}, 700); len(got) != 2994 {
			t.Errorf("%d are done", len(got))
		}
	})
}

// TestListIsBounded: no search reads more of a large table than it says, with
// statistics that say that the table is empty, and with good ones.
func TestListIsBounded(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			t.Parallel()
			allTables(t, stream, func(t *testing.T, d *eventsDB) {
				t.Helper()
				const all, search = 60_000, 3000
				d.exec(`ALTER TABLE outbox_deliveries SET (autovacuum_enabled = false)`)
				d.exec(`ANALYZE`)
				d.exec(`INSERT INTO outbox_events (id, event_type, payload, state, aggregate_id) SELECT i, 'a', '1', CASE WHEN i % 4 = 0 THEN 'fresh' ELSE 'done' END, i::text FROM generate_series(1, $1::int) i`, all)
				d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key) SELECT i, 'mail', 'a', 'parked', 'k' || i % 10 FROM generate_series(1, $1::int) i WHERE i % 3 = 0`, all)
				if stream {
					d.exec(`INSERT INTO outbox_positions (destination, head) VALUES ('mail', 0)`)
				}
				filters := []ops.EventFilter{
					{}, {Type: "b"}, {AggregateID: "x"}, {State: ops.Dead}, {State: ops.Waiting, Type: "b"}, {State: ops.Done, Type: "b"}, {NewerThan: time.Nanosecond},
				}
				for i, f := range slices.Concat(filters, filters) {
					if i == len(filters) {
						d.exec(`ANALYZE`)
					}
					f.Search = search
					seq, index := d.reads(func(watched ops.DB) {
						store, err := ops.New(watched, ops.Config{Schema: eventSchema})
						if err != nil {
							t.Fatal(err)
						}
						if _, err := store.Events(t.Context(), f, 100); err != nil {
							t.Errorf("%+v: %v", f, err)
						}
					})
					if most := int64(8 * search); seq > 0 || index > most || index == 0 {
						t.Errorf("%+v: %d rows without an index, %d with one, want at most %d", f, seq, index, most)
					}
				}
			})
		})
	}
}

// reads returns how many rows of the two large tables do reads in its one transaction, without an
// index and with one.
func (d *eventsDB) reads(do func(ops.DB)) (seq, index int64) {
	d.Helper()
	do(counted{d.pool, func(tx pgx.Tx, sign int64) {
		var s, i int64 // what the session has read so far and not reported: that of earlier transactions, too
		if err := tx.QueryRow(d.Context(), `SELECT coalesce(sum(seq_tup_read), 0)::bigint, coalesce(sum(idx_tup_fetch), 0)::bigint
			FROM pg_stat_xact_user_tables WHERE relname ~ '^outbox_(events|deliveries)'`).Scan(&s, &i); err != nil {
			d.Error(err)
		}
		seq, index = seq+sign*s, index+sign*i
	}})
	return seq, index
}

// counted is a database whose transactions are looked at when they begin and before they end.
type counted struct {
	ops.DB

	look func(tx pgx.Tx, sign int64)
}

// BeginTx implements events.DB.
func (c counted) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	tx, err := c.DB.BeginTx(ctx, o)
	if err == nil {
		c.look(tx, -1)
	}
	return countedTx{tx, c.look}, err
}

type countedTx struct {
	pgx.Tx

	look func(tx pgx.Tx, sign int64)
}

// Rollback implements pgx.Tx.
func (t countedTx) Rollback(ctx context.Context) error {
	t.look(t.Tx, 1)
	return t.Tx.Rollback(ctx)
}
