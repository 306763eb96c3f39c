package outboxsql_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// monday is when most tests begin.
func monday() time.Time { return time.Date(2031, 3, 10, 15, 0, 0, 0, time.UTC) }

// width is the number of ids in a partition.
const width = int64(1) << 32

// partition partitions the table, on monday.
func partition(tb testing.TB, conn *pgx.Conn, schema string) {
	tb.Helper()
	if err := outboxsql.Partition(tb.Context(), conn, schema, outboxsql.PartitionOptions{Now: monday()}); err != nil {
		tb.Fatal(err)
	}
}

// partitioned returns a database with a new, partitioned table.
func partitioned(tb testing.TB) *pgx.Conn {
	tb.Helper()
	conn := testdb.Connect(tb, testenv.Database(tb))
	migrate(tb, conn, "public", outboxsql.NotifyAuto)
	partition(tb, conn, "public")
	return conn
}

func partitionNames(tb testing.TB, conn *pgx.Conn) []string {
	tb.Helper()
	return testdb.List[string](tb, conn, `SELECT substr(name, length('outbox_events_') + 1) FROM outbox_partitions() ORDER BY low`)
}

func expectNames(tb testing.TB, conn *pgx.Conn, want ...string) {
	tb.Helper()
	if got := partitionNames(tb, conn); !slices.Equal(got, want) {
		tb.Errorf("partitions %v, want %v", got, want)
	}
}

func extend(tb testing.TB, conn *pgx.Conn, at time.Time) {
	tb.Helper()
	for range 3 { // made, there for everybody, begun
		testdb.Exec(tb, conn, `SELECT outbox_partitions_extend($1, 1)`, at)
	}
}

func writeOne(tb testing.TB, conn *pgx.Conn) int64 {
	tb.Helper()
	return testdb.One[int64](tb, conn, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1') RETURNING id`)
}

func in(tb testing.TB, conn *pgx.Conn, id int64) string {
	tb.Helper()
	return testdb.One[string](tb, conn, `SELECT tableoid::regclass::text FROM outbox_events WHERE id = $1`, id)
}

// TestPartitionNew: a new table begins with id 1, today, and has some days ahead.
func TestPartitionNew(t *testing.T) {
	t.Parallel()
	conn := partitioned(t)
	expectNames(t, conn, "p20310310", "p20310311", "p20310312", "p20310313")
	if id := writeOne(t, conn); id != 1 || in(t, conn, id) != "outbox_events_p20310310" {
		t.Errorf("the first event has id %d and is in %s", id, in(t, conn, id))
	}
	partition(t, conn, "public") // does no harm
	expectNames(t, conn, "p20310310", "p20310311", "p20310312", "p20310313")
	if applied := migrate(t, conn, "public", outboxsql.NotifyKeep); len(applied) != 0 {
		t.Errorf("applied %v", applied)
	}
	if got := state(t, conn, "public").Notify; got != outboxsql.NotifyAuto {
		t.Errorf("notify mode %s", got)
	}
}

// TestPartitionDays: at the turn of the day the sequence moves to the partition of the new one;
// missing days, a clock that is set back, and ids chosen by hand do no harm.
func TestPartitionDays(t *testing.T) {
	t.Parallel()
	conn := partitioned(t)
	first := writeOne(t, conn)
	day := 24 * time.Hour
	extend(t, conn, monday())
	if id := writeOne(t, conn); id != first+1 {
		t.Errorf("id %d on the same day, want %d", id, first+1)
	}
	extend(t, conn, monday().Add(day))
	tuesday := writeOne(t, conn)
	if in(t, conn, tuesday) != "outbox_events_p20310311" || tuesday != width {
		t.Errorf("id %d in %s on Tuesday", tuesday, in(t, conn, tuesday))
	}
	extend(t, conn, monday()) // the clock goes back
	if id := writeOne(t, conn); id != tuesday+1 {
		t.Errorf("id %d after the clock has gone back, want %d", id, tuesday+1)
	}
	// No relay for ten days: the table goes on where it is, then with today.
	testdb.Exec(t, conn, `INSERT INTO outbox_events (id, event_type, payload) VALUES ($1, 'chosen', '1'), (-7, 'chosen', '1')`, 4*width+9)
	extend(t, conn, monday().Add(10*day))
	expectNames(t, conn, "p20310310", "p20310311", "p20310312", "p20310313", "p20310320", "p20310321")
	id := writeOne(t, conn)
	if in(t, conn, id) != "outbox_events_p20310320" || id != 5*width {
		t.Errorf("id %d in %s after ten days", id, in(t, conn, id))
	}
	for _, chosen := range []int64{4*width + 9, -7} {
		if got := in(t, conn, chosen); got != "outbox_events_default" {
			t.Errorf("id %d is in %s", chosen, got)
		}
	}
	// A day with more events than a partition has ids goes on in the next one.
	testdb.Exec(t, conn, `SELECT setval('outbox_events_id_seq', $1)`, 6*width-1)
	if id := writeOne(t, conn); in(t, conn, id) != "outbox_events_p20310321" {
		t.Errorf("id %d in %s after the last one of the day", id, in(t, conn, id))
	}
	extend(t, conn, monday().Add(11*day))
	if next := writeOne(t, conn); next != 6*width+1 {
		t.Errorf("id %d, want %d: ids go up one by one", next, 6*width+1)
	}
	// Odd times do not matter: they do not decide where an event goes.
	for _, at := range []string{"infinity", "-infinity", "4713-01-01 BC", "294276-01-01"} {
		testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload, created_at) VALUES ('a', '1', $1::text::timestamptz)`, at)
	}
}

// TestPartitionLikeParent: partitions have all properties of the table, including later ones, and
// so have later partitions.
func TestPartitionLikeParent(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAlways)
	testdb.Exec(t, conn, `ALTER TABLE outbox_events ADD COLUMN trace text DEFAULT 'none'`)
	testdb.Exec(t, conn, `CREATE INDEX mine ON outbox_events (aggregate_id, id) WHERE aggregate_id IS NOT NULL`)
	partition(t, conn, "public")
	testdb.Exec(t, conn, `ALTER TABLE outbox_events ADD COLUMN later int NOT NULL DEFAULT 3`)
	extend(t, conn, monday().Add(96*time.Hour))
	id := writeOne(t, conn)
	got := testdb.One[string](t, conn, `SELECT concat_ws(' ', tableoid::regclass, trace, later, state) FROM outbox_events WHERE id = $1`, id)
	if got != "outbox_events_p20310314 none 3 fresh" {
		t.Errorf("%s", got)
	}
	for _, query := range []string{
		// Each partition has an index for each of the table's, and the same settings.
		`SELECT count(*) FROM pg_inherits p WHERE inhparent = 'outbox_events'::regclass
			AND (SELECT count(*) FROM pg_index WHERE indrelid = p.inhrelid) <> (SELECT count(*) FROM pg_index WHERE indrelid = 'outbox_events'::regclass)`,
		`SELECT count(DISTINCT (SELECT array_agg(o ORDER BY o) FROM unnest(reloptions) o)) - 1 FROM pg_class WHERE oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass)`,
		`SELECT count(*) - 3 FROM pg_index WHERE indrelid = 'outbox_events'::regclass`,
	} {
		if n := testdb.One[int](t, conn, query); n != 0 {
			t.Errorf("%s: %d", query, n)
		}
	}
	refusedRow := `INSERT INTO outbox_events (event_type, payload, state) VALUES ('a', '1', 'odd')`
	if _, err := conn.Exec(t.Context(), refusedRow); sqlState(err) != "23514" {
		t.Errorf("%s: %v", refusedRow, err)
	}
	if got := state(t, conn, "public").Notify; got != outboxsql.NotifyAlways {
		t.Errorf("notify mode %s", got)
	}
}

// TestPartitionKeys: a key is good for one event of its type, in any partition, with any ON
// CONFLICT; it lives as long as the event.
func TestPartitionKeys(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	write := func(eventType, key string) error {
		_, err := conn.Exec(t.Context(), `INSERT INTO outbox_events (event_type, idempotency_key, payload) VALUES ($1, $2, '1')`, eventType, key)
		return err
	}
	mustBe := func(what string, err error, state string) {
		t.Helper()
		if (err == nil) != (state == "") || err != nil && sqlState(err) != state {
			t.Errorf("%s: %v, want %q", what, err, state)
		}
	}
	mustBe("first", write("a", "before"), "")
	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, idempotency_key, payload) SELECT 'many', i::text, '1' FROM generate_series(1, 12000) i`)
	partition(t, conn, "public")
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM outbox_keys`); n != 12001 {
		t.Errorf("%d keys were copied", n)
	}
	mustBe("a key of the old table", write("a", "before"), "23505")
	mustBe("another one", write("many", "11999"), "23505")
	mustBe("another type", write("b", "before"), "")
	mustBe("new", write("a", "k"), "")
	extend(t, conn, monday().Add(24*time.Hour))
	err := write("a", "k")
	mustBe("a key of yesterday", err, "23505")
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.ConstraintName != "outbox_events_idempotency" || pg.TableName != "outbox_events" {
		t.Errorf("the error is not that of the unique index: %+v", pg)
	}
	testdb.Exec(t, conn, `SET notifyd.duplicate = 'ignore'`)
	mustBe("ignored", write("a", "k"), "")
	mustBe("not ignored", write("a", "l"), "")
	testdb.Exec(t, conn, `RESET notifyd.duplicate`)
	if got := testdb.List[string](t, conn, `SELECT idempotency_key FROM outbox_events WHERE event_type = 'a' ORDER BY id`); !slices.Equal(got, []string{"before", "k", "l"}) {
		t.Errorf("events with the keys %v", got)
	}

	keysAtOnce(t, conn, write, mustBe)

	testdb.Exec(t, conn, `DELETE FROM outbox_events WHERE idempotency_key IN ('k', 'before')`)
	mustBe("a key that is free again", write("a", "k"), "")
	mustBe("a key that is free again", write("a", "before"), "")
	testdb.Exec(t, conn, `TRUNCATE outbox_events`)
	mustBe("after TRUNCATE", write("a", "k"), "")
}

// keysAtOnce: of two transactions with the same key the second waits for the first, and depends on
// its outcome.
func keysAtOnce(t *testing.T, conn *pgx.Conn, write func(eventType, key string) error, mustBe func(what string, err error, state string)) {
	t.Helper()
	other := testdb.Connect(t, conn.Config().ConnString())
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		testdb.Exec(t, other, "BEGIN")
		testdb.Exec(t, other, `INSERT INTO outbox_events (event_type, idempotency_key, payload) VALUES ('race', $1, '1')`, end)
		ended := make(chan error, 1)
		go func() { ended <- write("race", end) }()
		waitFor(t, other, `SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`)
		testdb.Exec(t, other, end)
		mustBe(end, <-ended, map[string]string{"COMMIT": "23505", "ROLLBACK": ""}[end])
	}
}

// waitFor waits until the query is true.
func waitFor(tb testing.TB, conn *pgx.Conn, query string) {
	tb.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(4 * time.Minute); !testdb.One[bool](tb, conn, query); <-tick.C {
		if time.Now().After(end) {
			tb.Fatalf("never: %s", query)
		}
	}
}

// drop drops a partition in which every event was done before the time.
func drop(tb testing.TB, conn *pgx.Conn, name string) string {
	tb.Helper()
	return testdb.One[string](tb, conn, `SELECT coalesce(outbox_partition_drop('outbox_events_' || $1, '2031-03-01'), 'dropped')`, name)
}

// TestPartitionDrop: a partition is dropped when every event in it was done long enough ago; the
// obstacle is named.
func TestPartitionDrop(t *testing.T) {
	t.Parallel()
	conn := partitioned(t)
	done := func(when string) int64 {
		return testdb.One[int64](t, conn, `INSERT INTO outbox_events (event_type, payload, state, processed_at, idempotency_key)
			VALUES ('a', '1', 'done', $1::text::timestamptz, 'k' || clock_timestamp()) RETURNING id`, when)
	}
	wants := func(what, name, part string) {
		t.Helper()
		if got := drop(t, conn, name); !strings.Contains(got, part) {
			t.Errorf("%s: %q, want %q", what, got, part)
		}
	}
	old := done("2031-02-28")
	wants("the day at hand", "p20310310", "new events still go into it")
	wants("a day to come", "p20310312", "new events still go into it")
	extend(t, conn, monday().Add(24*time.Hour))
	wants("the default one", "default", "no such partition")
	wants("not one at all", "x", "no such partition")
	for what, c := range map[string][3]string{
		"fresh":                   {`UPDATE outbox_events SET state = 'fresh', processed_at = NULL`, `UPDATE outbox_events SET state = 'done', processed_at = '2031-02-28'`, "event 1 is waiting"},
		"deferred":                {`UPDATE outbox_events SET state = 'deferred'`, `UPDATE outbox_events SET state = 'done'`, "event 1 is not done"},
		"done lately":             {`UPDATE outbox_events SET processed_at = '2031-03-01'`, `UPDATE outbox_events SET processed_at = '2031-02-28'`, "event 1 is not done, or was not long enough ago"},
		"without a date":          {`UPDATE outbox_events SET processed_at = NULL`, `UPDATE outbox_events SET processed_at = '2031-02-28'`, "event 1 is not done"},
		"with a dead letter":      {`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (1, 'x', 'a', 'dead')`, `DELETE FROM outbox_deliveries`, "event 1 has a delivery"},
		"with one that is parked": {`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (1, 'x', 'a', 'parked')`, `DELETE FROM outbox_deliveries`, "event 1 has a delivery"},
	} {
		testdb.Exec(t, conn, c[0])
		wants(what, "p20310310", c[2])
		testdb.Exec(t, conn, c[1])
	}
	young := done("2031-03-10")
	testdb.Exec(t, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES ($1, 'x', 'a', 'dead')`, young)
	wants("done and old", "p20310310", "dropped")
	expectNames(t, conn, "p20310311", "p20310312", "p20310313")
	if got := testdb.List[int64](t, conn, `SELECT id FROM outbox_events`); !slices.Equal(got, []int64{young}) {
		t.Errorf("events %v are left, want %d", got, young)
	}
	// Its keys go after it, those of others stay.
	if next := testdb.One[*int64](t, conn, `SELECT outbox_keys_purge($1, 10)`, old-1); next != nil {
		t.Errorf("go on from %d", *next)
	}
	if got := testdb.List[int64](t, conn, `SELECT event_id FROM outbox_keys`); !slices.Equal(got, []int64{young}) {
		t.Errorf("keys of %v are left, want %d", got, young)
	}
	// New writes to that range still succeed.
	testdb.Exec(t, conn, `INSERT INTO outbox_events (id, event_type, payload) VALUES (2, 'a', '1')`)
}

// TestPartitionDropBesideWriters: a writer that has not committed keeps the partition, and no
// writer waits long behind a drop that cannot be done.
func TestPartitionDropBesideWriters(t *testing.T) {
	t.Parallel()
	conn := partitioned(t)
	late, third := testdb.Connect(t, conn.Config().ConnString()), testdb.Connect(t, conn.Config().ConnString())
	testdb.Exec(t, late, "BEGIN")
	id := writeOne(t, late)
	extend(t, conn, monday().Add(24*time.Hour)) // does not wait for it

	dropped := make(chan string, 1)
	go func() { dropped <- drop(t, conn, "p20310310") }()
	waitFor(t, third, `SELECT count(*) > 0 FROM pg_locks WHERE relation = 'outbox_events'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted`)
	testdb.Exec(t, third, `SET lock_timeout = '60s'`)
	writeOne(t, third) // while late is open: the drop has stood aside
	if got := <-dropped; !strings.Contains(got, "busy") {
		t.Errorf("beside an open transaction: %s", got)
	}
	testdb.Exec(t, late, "COMMIT")
	if got := drop(t, conn, "p20310310"); got != fmt.Sprintf("event %d is waiting", id) {
		t.Errorf("after it: %s", got)
	}
	testdb.Exec(t, conn, `UPDATE outbox_events SET state = 'done', processed_at = '2031-02-28' WHERE id = $1`, id)
	if got := drop(t, conn, "p20310310"); got != "dropped" {
		t.Errorf("done: %s", got)
	}
}

// TestPartitionObstacles: properties that would be lost are named, and kept.
func TestPartitionObstacles(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	err := outboxsql.Partition(t.Context(), conn, "public", outboxsql.PartitionOptions{})
	if !errors.Is(err, outboxsql.ErrNotMigrated) {
		t.Errorf("without tables: %v", err)
	}
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	testdb.Exec(t, conn, `CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	for _, c := range [][3]string{
		{`CREATE VIEW seen AS SELECT id FROM outbox_events`, `DROP VIEW seen`, "view seen"},
		{`CREATE TRIGGER mine AFTER INSERT ON outbox_events EXECUTE FUNCTION other()`, `DROP TRIGGER mine ON outbox_events`, "trigger mine"},
		{`CREATE TABLE child (id bigint REFERENCES outbox_events)`, `DROP TABLE child`, "foreign key child_id_fkey of child"},
		{`CREATE UNIQUE INDEX one ON outbox_events (aggregate_id)`, `DROP INDEX one`, "index one is unique"},
		{`ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY`, `ALTER TABLE outbox_events DISABLE ROW LEVEL SECURITY`, "row level security"},
		{`CREATE PUBLICATION p FOR TABLE outbox_events`, `DROP PUBLICATION p`, "publication p"},
		{`CREATE TABLE child () INHERITS (outbox_events)`, `DROP TABLE child`, "inherits"},
		{`ALTER TABLE outbox_events ADD CONSTRAINT c CHECK (id <> 7) NOT VALID`, `ALTER TABLE outbox_events DROP CONSTRAINT c`, "check c is not valid"},
		{`ALTER TABLE outbox_events ADD CONSTRAINT c CHECK (id <> 7) NO INHERIT`, `ALTER TABLE outbox_events DROP CONSTRAINT c`, "has NO INHERIT"},
		{`CREATE INDEX broken ON outbox_events (aggregate_id); UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'broken'::regclass`, `DROP INDEX broken`, "index broken is not valid"},
		{`CREATE RULE r AS ON DELETE TO outbox_events DO ALSO NOTHING`, `DROP RULE r ON outbox_events`, "rule r"},
	} {
		testdb.Exec(t, conn, c[0])
		err := outboxsql.Partition(t.Context(), conn, "public", outboxsql.PartitionOptions{})
		if !errors.Is(err, outboxsql.ErrObstacle) || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%s: %v", c[0], err)
		}
		testdb.Exec(t, conn, c[1])
	}
	partition(t, conn, "public")
}

// TestPartitionWaits: a transaction that stays open is named in the end, the interrupted call does
// no harm, and the next one continues.
func TestPartitionWaits(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	writeOne(t, conn)
	other := testdb.Connect(t, conn.Config().ConnString())
	testdb.Exec(t, other, `SET application_name = 'the open one'`)
	for _, step := range []string{"bounding", "putting"} {
		o := outboxsql.PartitionOptions{LockPatience: time.Millisecond, Now: monday()}
		o.Progress = func(what string) {
			if strings.HasPrefix(what, step) {
				testdb.Exec(t, other, "BEGIN")
				writeOne(t, other)
			}
		}
		err := outboxsql.Partition(t.Context(), conn, "public", o)
		if sqlState(err) != "55P03" || !strings.Contains(err.Error(), "the open one") {
			t.Errorf("%s: %v", step, err)
		}
		testdb.Exec(t, other, "COMMIT")
	}
	testdb.Exec(t, other, `INSERT INTO outbox_events (event_type, idempotency_key, payload) VALUES ('a', 'between', '1')`)
	_, err := conn.Exec(t.Context(), `INSERT INTO outbox_events (event_type, idempotency_key, payload) VALUES ('a', 'between', '1')`)
	if sqlState(err) != "23505" {
		t.Errorf("between the steps: %v", err)
	}
	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, idempotency_key, payload) VALUES ('a', 'between', '1') ON CONFLICT DO NOTHING`)
	partition(t, conn, "public")
	expectNames(t, conn, "before", "p20310310", "p20310311", "p20310312", "p20310313")
	if got := testdb.List[int64](t, conn, `SELECT id FROM outbox_events ORDER BY id`); !slices.Equal(got, []int64{1, 2, 3, 4}) {
		t.Errorf("events %v", got)
	}
	if id := writeOne(t, conn); id != width {
		t.Errorf("the next id is %d, want %d", id, width)
	}
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_events_bound'`); n != 0 {
		t.Error("the bound of the old table is left")
	}
}

// TestPartitionReadsNothingAlone: the table is attached without being read under the exclusive
// lock.
func TestPartitionReadsNothingAlone(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig(testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	var notices []string
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 1000)`)
	testdb.Exec(t, conn, `CREATE FUNCTION debug() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN SET LOCAL client_min_messages = debug1; END $$`)
	testdb.Exec(t, conn, `CREATE EVENT TRIGGER debug ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION debug()`)
	node := func() string {
		return testdb.One[string](t, conn, `SELECT string_agg(c.relfilenode::text, ' ' ORDER BY c.relname) FROM pg_class c
			WHERE oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = (SELECT min(tableoid::oid) FROM outbox_events) AND indisprimary) OR oid = (SELECT min(tableoid::oid) FROM outbox_events)`)
	}
	before := node()
	partition(t, conn, "public")
	if !slices.ContainsFunc(notices, func(s string) bool {
		return strings.Contains(s, `partition constraint for table "outbox_events_before" is implied by existing constraints`)
	}) {
		t.Errorf("the old table was looked through: %q", notices)
	}
	if after := node(); after != before {
		t.Errorf("files %s, before %s: something was written anew", after, before)
	}
}

// TestPartitionGrants: the roles of a plain table work after it was partitioned, and neither may do
// more than before. The functions of the owner run no object of a caller.
func TestPartitionGrants(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	writer, relay := granted(t, conn, "events", outboxsql.NotifyAuto)
	testdb.Exec(t, conn, `SET search_path = events`)
	writeOne(t, conn)
	partition(t, conn, "events")
	testdb.Exec(t, conn, `CREATE SCHEMA trap; GRANT ALL ON SCHEMA trap TO PUBLIC`)

	become(t, conn, writer)
	testdb.Exec(t, conn, `SET search_path = events`)
	testdb.Exec(t, conn, `CREATE TEMPORARY TABLE outbox_keys (event_id bigint, event_type text, idempotency_key text, PRIMARY KEY (event_type, idempotency_key))`)
	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, idempotency_key, payload) VALUES ('a', 'k', '1')`)
	for _, statement := range []string{
		`SELECT count(*) FROM events.outbox_keys`, `INSERT INTO events.outbox_keys VALUES (1, 'a', 'b')`, `SELECT outbox_partitions_extend(now(), 1)`,
		`SELECT outbox_partition_drop('outbox_events_before', now())`, `SELECT outbox_keys_purge(0, 1)`, `SELECT * FROM outbox_events_before`,
		`INSERT INTO outbox_events_default (id, event_type, payload) VALUES (-1, 'a', '1')`, `SELECT outbox_last_id()`,
	} {
		refused(t, conn, statement)
	}
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM pg_temp.outbox_keys`); n != 0 {
		t.Error("the owner's function has written to a table of the writer")
	}
	testdb.Exec(t, conn, `DROP TABLE pg_temp.outbox_keys; RESET ROLE`)
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM events.outbox_keys`); n != 1 {
		t.Errorf("%d keys", n)
	}

	become(t, conn, relay)
	extend(t, conn, monday().Add(24*time.Hour))
	if got := testdb.One[string](t, conn, `SELECT outbox_partition_drop('outbox_events_before', '2031-03-01')`); got != "event 1 is waiting" {
		t.Errorf("drop: %s", got)
	}
	testdb.Exec(t, conn, `UPDATE outbox_events SET state = 'done', processed_at = '2031-02-01' WHERE id = 1`)
	testdb.Exec(t, conn, `DELETE FROM outbox_events WHERE id > 1`)
	if got := testdb.One[*string](t, conn, `SELECT outbox_partition_drop('outbox_events_before', '2031-03-01')`); got != nil {
		t.Errorf("drop: %s", *got)
	}
	for _, statement := range []string{`DROP TABLE outbox_events_p20310310`, `TRUNCATE outbox_events`, `DELETE FROM outbox_keys`, `SELECT setval('outbox_events_id_seq', 1)`} {
		refused(t, conn, statement)
	}
	testdb.Exec(t, conn, "RESET ROLE")
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM events.outbox_keys`); n != 0 {
		t.Errorf("%d keys are left of events that were deleted", n)
	}
}
