package stream

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/routes"
)

// TestMove: all waiting rows of an aggregate get the shard of its events, also those whose events are missing. A row that a
// person has tried at once, in the middle, is not passed over. Dead letters stay as they are.
func TestMove(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	long := strings.Repeat("ä", 300) // its name is shortened in rows
	l.Exec(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload)
		SELECT i, 'a', 'order', CASE i % 20 WHEN 5 THEN $1::text ELSE nullif((i % 20)::text, '0') END, '1' FROM generate_series(1, 6000) AS i`, long)
	l.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, available_at, shard)
		SELECT id, 'x', 'a', CASE WHEN id % 3 = 0 THEN 'dead' WHEN id % 3 = 1 AND aggregate_id IS NOT NULL THEN 'parked' ELSE 'retry' END,
			CASE WHEN id > 5900 THEN '#7#order:1' WHEN aggregate_id = $1::text THEN $2 ELSE 'order/' || aggregate_id END,
			now() + id * interval '1 minute', 9 FROM outbox_events`, long, dispatch.OrderingKey(&delivery.Event{AggregateType: "order", AggregateID: long}))
	l.Exec(`DELETE FROM outbox_events WHERE id % 7 = 0 OR id % 20 IN (3, 4)`) // of two aggregates, all
	a := &layoutChange{w: &Wanted{Wanted: routes.Wanted{Destination: "x"}, Shards: 3}}
	pages := 0
	for _, page := range movePages() {
		for p := newMoveCursor(); !p.done; pages++ {
			err := pgx.BeginFunc(t.Context(), l.Conn, func(tx pgx.Tx) error { return a.move(context.WithoutCancel(t.Context()), tx, page, &p, nil) })
			if err != nil {
				t.Fatal(err)
			}
			l.Exec(`UPDATE outbox_deliveries SET available_at = now() WHERE event_id = 5840 AND state = 'retry'`) // without an aggregate, and far behind
		}
	}
	if n := testdb.One[int](t, l.Conn, `SELECT count(*)::int FROM outbox_deliveries WHERE state <> 'dead' AND shard NOT BETWEEN 1 AND 3`); n > 0 || pages < 6 {
		t.Errorf("%d rows are in no shard after %d pages", n, pages)
	}
	if n := testdb.One[int](t, l.Conn, `SELECT count(*)::int FROM outbox_deliveries WHERE state = 'dead' AND shard <> 9`); n > 0 {
		t.Errorf("%d dead letters are in other shards", n)
	}
	wrong := testdb.List[string](t, l.Conn, `SELECT format('%s: %s', key, shards) FROM (SELECT coalesce(ordering_key, 'none') AS key, string_agg(DISTINCT shard::text, ' ') AS shards
		FROM outbox_deliveries WHERE ordering_key IS NOT NULL AND state <> 'dead' GROUP BY ordering_key) AS k WHERE length(shards) > 1 OR key LIKE '#%' AND shards <> '1'
		UNION ALL SELECT format('event %s: %s', e.id, d.shard) FROM outbox_events AS e JOIN outbox_deliveries AS d ON d.event_id = e.id
			WHERE d.state <> 'dead' AND d.ordering_key NOT LIKE '#%' AND d.shard <> 1 + `+pgschema.Hash("e.")+` % 3`)
	if len(wrong) > 0 {
		t.Errorf("%d aggregates or events are in other shards, such as %s", len(wrong), strings.Join(wrong[:min(5, len(wrong))], ", "))
	}
}

// TestCombine: the positions of several shards combine into the positions of others: the ids that all have passed, the
// highest id that any has read, and the ids that are done beyond.
func TestCombine(t *testing.T) {
	t.Parallel()
	at := func(head int64, open string) shardPosition {
		r, err := idset.Parse(open)
		if err != nil {
			t.Fatal(err)
		}
		return shardPosition{Watermark: idset.Watermark{Head: head, Open: r}}
	}
	behind, ahead := at(100, "{[90,92)}"), at(1000, "{[95,96),[700,800)}")
	read, passed, former := combine([]shardPosition{behind, ahead})
	if read.Head != 1000 || read.Open.String() != "{[700,800)}" || passed.Head != 100 || passed.Open.String() != "{[90,92),[95,96)}" {
		t.Errorf("read %+v, passed %+v", read, passed)
	}
	for _, c := range []struct {
		id, hash int64
		want     bool
	}{{91, 0, false}, {91, 1, true}, {95, 0, true}, {95, 1, false}, {101, 0, false}, {101, 1, true}, {750, 1, false}, {1001, 1, false}} {
		if former.Done(c.id, c.hash) != c.want {
			t.Errorf("%d with hash %d is done: %t", c.id, c.hash, !c.want)
		}
	}
	// The next change, while the new shards have not reached the position of a former one.
	next := at(200, "{}")
	next.former = former
	read, passed, former = combine([]shardPosition{next})
	if read.Head != 1000 || passed.Head != 200 || !former.Done(500, 1) || former.Done(500, 0) {
		t.Errorf("read %+v, passed %+v, former %v", read, passed, former)
	}
	text := former.String()
	if again, err := position.ParseFormer(text); err != nil || again.String() != text {
		t.Errorf("%s is read as %s, %v", text, again, err)
	}
	next = at(1000, "{}")
	next.former = former
	if _, _, former = combine([]shardPosition{next}); len(former) > 0 {
		t.Errorf("%v is left over", former)
	}
	// However many ranges there are, nothing is read again.
	var many idset.Set
	for i := range int64(5000) {
		many = append(many, idset.Range{From: 1 + 2*i, To: 1 + 2*i})
	}
	_, passed, former = combine([]shardPosition{{Watermark: idset.Watermark{Head: 20_000, Open: many}}})
	if passed.Head != 20_000 || !slices.Equal(many, passed.Open) || len(former) > 0 {
		t.Errorf("%d ranges up to %d are left of %d, and %d former shards", len(passed.Open), passed.Head, len(many), len(former))
	}
}
