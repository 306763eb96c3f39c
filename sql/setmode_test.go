package outboxsql_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/modelock"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// setMode changes the mode and fails the test if it cannot.
func setMode(tb testing.TB, conn *pgx.Conn, mode outboxsql.Mode, o outboxsql.ModeOptions) {
	tb.Helper()
	if err := outboxsql.SetMode(tb.Context(), conn, "public", mode, o); err != nil {
		tb.Fatalf("%s: %v", mode, err)
	}
	if s := state(tb, conn, "public"); s.Mode != mode || s.Becoming != "" {
		tb.Fatalf("state %+v, want %s", s, mode)
	}
}

// openIDs are the events that a first destination of the stream would get.
const openIDs = `SELECT e.id FROM outbox_events AS e, outbox_mode AS m WHERE e.id > m.origin_head
	UNION ALL SELECT e.id FROM outbox_mode AS m, unnest(m.origin_open) AS s JOIN outbox_events AS e ON e.id >= lower(s) AND e.id < upper(s)
	ORDER BY id`

const freshIDs = `SELECT id FROM outbox_events WHERE state = 'fresh' ORDER BY id`

// same fails the test unless both lists have the same ids.
func same(tb testing.TB, what string, got, want []int64) {
	tb.Helper()
	if slices.Equal(got, want) {
		return
	}
	has := make(map[int64]int)
	for _, id := range want {
		has[id]++
	}
	for _, id := range got {
		has[id]--
	}
	var wrong []string
	for id, n := range has {
		if n != 0 && len(wrong) < 10 {
			wrong = append(wrong, fmt.Sprintf("%d: %+d", id, n))
		}
	}
	tb.Errorf("%s: %d ids, want %d; missing or too many: %v", what, len(got), len(want), wrong)
}

// tables runs a test on a plain table, on one that was partitioned later, and on one that was
// partitioned before its first event.
func tables(t *testing.T, test func(t *testing.T, conn *pgx.Conn)) {
	t.Helper()
	for name, days := range map[string]bool{"plain": false, "partitioned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := testdb.Connect(t, testenv.Database(t))
			migrate(t, conn, "public", outboxsql.NotifyAuto)
			if days {
				writeOne(t, conn)
				partition(t, conn, "public")
				testdb.Exec(t, conn, `DELETE FROM outbox_events`)
			}
			test(t, conn)
		})
	}
}

// crowd writes during a change until stop is called, which returns the committed ids: plain
// transactions, rolled back ones, with savepoints, and with ids that are drawn before they are
// inserted.
func crowd(t *testing.T, url string) (stop func() []int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	var mu sync.Mutex
	var committed []int64
	for w := range 3 {
		conn := testdb.Connect(t, url)
		all.Go(func() {
			pace := time.NewTicker(2 * time.Millisecond) // without one, the writers take the machine from the change
			defer pace.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				<-pace.C
				ids, err := writeSome(context.WithoutCancel(ctx), conn, n%5)
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				mu.Lock()
				committed = append(committed, ids...)
				mu.Unlock()
			}
		})
	}
	return func() []int64 {
		cancel()
		all.Wait()
		slices.Sort(committed)
		return committed
	}
}

// writeSome writes in one of five ways and returns the ids of what is committed.
func writeSome(ctx context.Context, conn *pgx.Conn, way int) (ids []int64, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	insert := func() {
		var id int64
		if err == nil {
			err = tx.QueryRow(ctx, `INSERT INTO outbox_events (event_type, payload) VALUES ('late', '1') RETURNING id`).Scan(&id)
			ids = append(ids, id)
		}
	}
	do := func(sql string, args ...any) {
		if err == nil {
			_, err = tx.Exec(ctx, sql, args...)
		}
	}
	switch way {
	case 0:
		insert()
	case 1:
		insert()
		do(`SAVEPOINT s`)
		insert()
		do(`ROLLBACK TO s`)
		insert()
		if err == nil {
			ids = append(ids[:1], ids[2:]...)
		}
	case 2:
		insert()
		return nil, err
	case 3:
		var id int64
		if err := tx.QueryRow(ctx, `SELECT nextval(pg_get_serial_sequence('outbox_events', 'id'))`).Scan(&id); err != nil {
			return nil, err
		}
		do(`SELECT pg_sleep(0.001)`)
		do(`INSERT INTO outbox_events (id, event_type, payload) VALUES ($1, 'late', '1')`, id)
		ids = append(ids, id)
	default:
		insert()
		insert()
	}
	if err != nil {
		return nil, err
	}
	return ids, tx.Commit(ctx)
}

// fill makes a queue in which about a third of n events is done, a third is deferred
// with rows in all states, and a third is fresh, the last hundredth all fresh.
func fill(tb testing.TB, conn *pgx.Conn, n int) {
	tb.Helper()
	testdb.Exec(tb, conn, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, state, processed_at, available_at)
		SELECT 'type.' || i % 4, 'order', i % 1000, '1', s, CASE s WHEN 'done' THEN now() END, CASE WHEN i % 50 = 0 THEN now() + interval '1 hour' END
		FROM (SELECT i, CASE WHEN i > $1 * 99 / 100 THEN 'fresh' ELSE (ARRAY['fresh', 'deferred', 'done'])[1 + i / 7 % 3] END AS s FROM generate_series(1, $1::int) AS i) AS e`, n)
	testdb.Exec(tb, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, ordering_key, available_at, last_error, lease_owner, lease_token, lease_until)
		SELECT id, CASE WHEN s IN ('delayed', 'unrouted') THEN '' ELSE 'd' || id % 2 END, event_type, CASE s WHEN 'delayed' THEN 'retry' ELSE s END, 3, NULL,
			CASE s WHEN 'delayed' THEN now() + interval '1 hour' ELSE now() END, 'no', x, x + 0, CASE WHEN x IS NOT NULL THEN now() + interval '1 hour' END
		FROM (SELECT *, CASE s WHEN 'running' THEN 7 END AS x FROM (
			SELECT *, (ARRAY['retry', 'retry', 'dead', 'delayed', 'unrouted', 'running'])[1 + id % 6] AS s FROM outbox_events WHERE state = 'deferred') AS e) AS e`)
	testdb.Exec(tb, conn, `UPDATE outbox_events AS e SET state = 'done', processed_at = now() FROM outbox_deliveries AS d WHERE d.event_id = e.id AND d.state = 'dead'`)
}

// storedRows are the stored deliveries, and keyedRows the form that a stream gives to those of a
// queue.
const (
	storedRows = `SELECT format('%s %s %s %s %s', event_id, destination, state, attempts, ordering_key)
	FROM outbox_deliveries WHERE destination <> '' OR last_error = 'no' ORDER BY event_id, destination`
	keyedRows = `SELECT format('%s %s %s %s %s', event_id, destination, CASE d.state WHEN 'running' THEN 'retry' ELSE d.state END, attempts,
		CASE WHEN d.state IN ('retry', 'running') AND destination <> '' AND coalesce(e.available_at <= now(), true) THEN 'order/' || aggregate_id END)
	FROM outbox_deliveries AS d JOIN outbox_events AS e ON e.id = event_id WHERE destination <> '' OR last_error = 'no' ORDER BY event_id, destination`
)

// TestQueueToStream: the fresh events are open, and those written during the change. Stored
// deliveries are unchanged, without leases.
func TestQueueToStream(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		const n = 100_000
		fill(t, conn, n)
		testdb.Exec(t, conn, `INSERT INTO outbox_positions (destination, head) VALUES ('old', 1000000000); INSERT INTO outbox_routes (destination, since, patterns, head) VALUES ('old', 1, '{*}', 1)`)
		fresh, rows := testdb.List[int64](t, conn, freshIDs), testdb.List[string](t, conn, keyedRows)
		testdb.Exec(t, conn, `DELETE FROM outbox_positions`) // would be ahead of the sequence
		stop := crowd(t, conn.Config().ConnString())
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		late := stop()
		aside := testdb.List[int64](t, conn, `SELECT event_id FROM outbox_deliveries WHERE destination = '' AND last_error IS NULL ORDER BY 1`)
		now := testdb.List[int64](t, conn, freshIDs)
		all := append(slices.Clone(fresh), late...)
		slices.Sort(all)
		both := append(slices.Clone(now), aside...)
		slices.Sort(both)
		same(t, "fresh or put aside", both, all)
		same(t, "open", testdb.List[int64](t, conn, openIDs), now)
		if got := testdb.List[string](t, conn, storedRows); !slices.Equal(got, rows) {
			t.Errorf("%d stored deliveries have become %d others", len(rows), len(got))
		}
		if n := testdb.One[int](t, conn, `SELECT count(*) FROM outbox_deliveries WHERE state = 'running'`); n > 0 {
			t.Errorf("%d leases are left", n)
		}
		// n / 21 ranges, of which 4,000 fit.
		ranges := testdb.One[int](t, conn, `SELECT count(*) FROM outbox_mode, unnest(origin_open)`)
		if ranges != 4000 || len(aside) == 0 || slices.Max(aside) >= testdb.One[int64](t, conn, `SELECT lower(origin_open) FROM outbox_mode`) {
			t.Errorf("%d ranges, %d events aside", ranges, len(aside))
		}
		noFreshIndex(t, conn)
		if n := testdb.One[int](t, conn, `SELECT (SELECT count(*) FROM outbox_positions) + (SELECT count(*) FROM outbox_routes)`); n > 0 {
			t.Errorf("%d positions and routes are left of before", n)
		}
		before := testdb.One[string](t, conn, `SELECT m::text FROM outbox_mode AS m`)
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		if after := testdb.One[string](t, conn, `SELECT m::text FROM outbox_mode AS m`); after != before {
			t.Error("done again, it changes something")
		}
	})
}

func noFreshIndex(tb testing.TB, conn *pgx.Conn) {
	tb.Helper()
	if names := testdb.List[string](tb, conn, `SELECT indexrelid::regclass::text FROM pg_index WHERE pg_get_expr(indpred, indrelid) LIKE '%fresh%'`); len(names) > 0 {
		tb.Errorf("indexes of fresh events: %v", names)
	}
}

// TestQueueToStreamRanges: a range goes from one fresh event to the next as long as no marked one
// is in between; a backlog at the end needs none.
func TestQueueToStreamRanges(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		first := testdb.One[int64](t, conn, `SELECT outbox_last_id()`)
		testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 100000)`)
		mark := func(where string) {
			t.Helper()
			testdb.Exec(t, conn, `UPDATE outbox_events SET state = 'done' WHERE id - $1 `+where, first)
		}
		testdb.Exec(t, conn, `DELETE FROM outbox_events WHERE id - $1 BETWEEN 20 AND 25 OR id - $1 BETWEEN 60000 AND 69999`, first)
		mark(`IN (1, 2, 10, 11, 40, 90000)`)
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		want := fmt.Sprintf("%d {[%d,%d),[%d,%d),[%d,%d)}", first+90000, first+3, first+10, first+12, first+40, first+41, first+90000)
		if got := testdb.One[string](t, conn, `SELECT origin_head || ' ' || origin_open FROM outbox_mode`); got != want {
			t.Errorf("origin %s, want %s", got, want)
		}
		same(t, "open", testdb.List[int64](t, conn, openIDs), testdb.List[int64](t, conn, freshIDs))
	})
}

// TestNewStream: on a table without events, and on one without done events.
func TestNewStream(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		const origin = `SELECT origin_head || ' ' || origin_open FROM outbox_mode`
		if got := testdb.One[string](t, conn, origin); got != "0 {}" {
			t.Errorf("a new stream begins at %s", got)
		}
		writeOne(t, conn)
		setMode(t, conn, outboxsql.ModeQueue, outboxsql.ModeOptions{})
		if got := testdb.List[int64](t, conn, freshIDs); len(got) != 1 {
			t.Errorf("waiting in the queue: %v", got)
		}
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		if got := testdb.One[string](t, conn, origin); got != "0 {}" {
			t.Errorf("a stream of which nothing is delivered begins at %s", got)
		}
		migrate(t, conn, "public", outboxsql.NotifyKeep)
		noFreshIndex(t, conn)
		if len(testdb.List[int64](t, conn, openIDs)) != 1 {
			t.Error("its event is not open")
		}
	})
}

// TestQueueToStreamLate: the change waits for a transaction that drew an id below the last mark and
// has not ended, whatever it did with the id; it is named in the end.
func TestQueueToStreamLate(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, late := range map[string]string{
		"inserted":    `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`,
		"drawn":       `SELECT nextval(pg_get_serial_sequence('outbox_events', 'id'))`,
		"rolled back": `SAVEPOINT s; INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1'); ROLLBACK TO s`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tables(t, func(t *testing.T, conn *pgx.Conn) {
				t.Helper()
				other := testdb.Connect(t, conn.Config().ConnString())
				testdb.Exec(t, other, `SET application_name = 'the late one'`)
				testdb.Exec(t, other, `BEGIN`)
				testdb.Exec(t, other, late, pgx.QueryExecModeSimpleProtocol)
				id := testdb.One[int64](t, conn, `SELECT outbox_last_id()`)
				testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload, state) VALUES ('a', '1', 'done')`)
				err := outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{LockPatience: time.Millisecond})
				if err == nil || !strings.Contains(err.Error(), "the late one") {
					t.Errorf("beside a transaction that may have an id below the mark: %v", err)
				}
				if s := state(t, conn, "public"); s.Mode != outboxsql.ModeQueue || s.Becoming != "" {
					t.Errorf("state %+v", s)
				}
				if name == "drawn" {
					testdb.Exec(t, other, `INSERT INTO outbox_events (id, event_type, payload) VALUES ($1, 'a', '1')`, id)
				}
				testdb.Exec(t, other, `COMMIT`)
				setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
				same(t, "open", testdb.List[int64](t, conn, openIDs), testdb.List[int64](t, conn, freshIDs))
			})
		})
	}
}

// TestSetModeBesideRelays: relays are named, and nothing is changed. Relays that start during the
// change wait.
func TestSetModeBesideRelays(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	err := outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{})
	if !errors.Is(err, outboxsql.ErrNotMigrated) {
		t.Errorf("without tables: %v", err)
	}
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	relay := testdb.Connect(t, conn.Config().ConnString())
	testdb.Exec(t, relay, `SET application_name = 'notifyd/maintenance'`)
	if err := modelock.Hold(t.Context(), relay, "public", outboxsql.ModeQueue); err != nil {
		t.Fatal(err)
	}
	pid := testdb.One[int](t, relay, `SELECT pg_backend_pid()`)
	err = outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{})
	if !errors.Is(err, outboxsql.ErrRelays) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d,", pid)) || !strings.Contains(err.Error(), "notifyd/maintenance") {
		t.Errorf("beside a relay: %v", err)
	}
	beside := testdb.Connect(t, conn.Config().ConnString())
	done := make(chan error, 1)
	go func() {
		_, err := beside.Exec(t.Context(), `DO $$ BEGIN
			WHILE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '%pg_try_advisory_lock%' AND query NOT LIKE '%pg_stat_activity%')
			LOOP PERFORM pg_sleep(0.01); PERFORM pg_stat_clear_snapshot(); END LOOP;
			PERFORM pg_terminate_backend(`+strconv.Itoa(pid)+`);
		END $$`)
		done <- err
	}()
	// A relay that goes away meanwhile is waited for.
	setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
	if err := <-done; err != nil {
		t.Error(err)
	}
	setMode(t, conn, outboxsql.ModeQueue, outboxsql.ModeOptions{})
	relay = testdb.Connect(t, conn.Config().ConnString())
	if err := modelock.Hold(t.Context(), relay, "public", outboxsql.ModeQueue); err != nil {
		t.Fatal(err)
	}
	setMode(t, conn, outboxsql.ModeQueue, outboxsql.ModeOptions{}) // which it is
	testdb.Exec(t, relay, `SELECT pg_advisory_unlock_all()`)
	setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
	if err := modelock.Hold(t.Context(), relay, "public", outboxsql.ModeStream); err != nil {
		t.Errorf("after it: %v", err)
	}
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	if err := outboxsql.SetMode(t.Context(), conn, "public", "log", outboxsql.ModeOptions{}); err == nil {
		t.Error("an unknown mode is accepted")
	}
}
