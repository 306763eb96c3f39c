package queue

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
)

// TestDueClaimsReadNoMoreWithTime: a claim of due deliveries does not step over the entries that earlier claims have
// settled, while an old snapshot keeps them in the index.
func TestDueClaimsReadNoMoreWithTime(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	const rows, room = 20_000, 500
	d.Exec(`INSERT INTO outbox_events (id, event_type, payload, state) SELECT i, 'a', '{}', 'deferred' FROM generate_series(1, $1::int) AS i`, rows)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at)
		SELECT i, 'x', 'a', 'retry', now() - interval '1 hour' + i * interval '1 millisecond' FROM generate_series(1, $1::int) AS i`, rows)
	holder, err := d.Connect(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close(context.WithoutCancel(t.Context())) }()
	if _, err := holder.Exec(t.Context(), `SET idle_in_transaction_session_timeout = 0; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox_deliveries`); err != nil {
		t.Fatal(err)
	}
	s := d.session(options())
	var from dueCursor
	var before, most int
	for claims := 0; ; claims++ {
		q := Query{Source: SourceDue, Wanted: map[string]int{"x": room}, Since: from.begin(time.Now()), asked: time.Now()}
		c := d.claim(s, q)
		from.restart = time.Now().Add(time.Hour) // only the first claim begins with the first row
		if from.claimed(time.Now(), &q, &c); len(c.Work) == 0 {
			break
		}
		st := &Settlement{}
		for i := range c.Work {
			st.Remove = append(st.Remove, deliveries.Ref{EventID: c.Work[i].Event.ID, Destination: "x"})
		}
		d.settle(s, st)
		if n := d.dueBlocks(s, q); claims == 0 {
			before = n
		} else {
			most = max(most, n)
		}
	}
	// Without since the last claim reads the entries of all claims before: 40 times as many.
	if most > 4*before {
		t.Errorf("%d blocks were read for the first claim, and %d for a later one", before, most)
	}
	d.expect("left", stored)
}

var hitBlocks = regexp.MustCompile(`Index Scan using outbox_deliveries_due.*\n.*\n(?:.*\n)*?\s+Buffers: shared hit=(\d+)`)

// dueBlocks returns how many blocks a due query reads to find its rows, which are settled by now.
func (d *db) dueBlocks(s *Session, q Query) int {
	d.Helper()
	rows, err := s.conn.Query(d.Context(), fmt.Sprintf(`EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) EXECUTE due('{x}', '{%[1]d}', '{%[2]d}', %[1]d, '{}')`, q.Wanted["x"], q.Since["x"]),
		pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		d.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.Fatal(err)
	}
	m := hitBlocks.FindStringSubmatch(strings.Join(lines, "\n"))
	if m == nil {
		d.Fatalf("no index scan:\n%s", strings.Join(lines, "\n"))
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		d.Fatal(err)
	}
	return n
}
