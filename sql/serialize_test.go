package outboxsql_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// lineLock finds the locks of writers that stand in line, in pg_locks.
const lineLock = `locktype = 'relation' AND mode = 'ShareUpdateExclusiveLock' AND relation IN (SELECT oid FROM pg_class WHERE relname = 'outbox_mode')`

func serialize(tb testing.TB, conn *pgx.Conn, schema string, on bool) {
	tb.Helper()
	if err := outboxsql.SerializeWriters(tb.Context(), conn, schema, on, outboxsql.SerializeOptions{}); err != nil {
		tb.Fatal(err)
	}
}

// inLine returns a database with a table whose writers are serialized.
func inLine(t *testing.T, partitioned bool) (url string, conn *pgx.Conn) {
	t.Helper()
	url = testenv.Database(t)
	conn = testdb.Connect(t, url)
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	serialize(t, conn, "public", true)
	if partitioned {
		if err := outboxsql.Partition(t.Context(), conn, "public", outboxsql.PartitionOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return url, conn
}

// TestLineStays: the line of writers is turned on and off again, and no other change of the table
// takes it away or brings it back.
func TestLineStays(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "shop", outboxsql.NotifyAuto)
	expect := func(want bool, what string) {
		t.Helper()
		if got := state(t, conn, "shop"); got.Serialized != want || got.Notify != outboxsql.NotifyAuto {
			t.Errorf("%s: serialized is %v, notify %s", what, got.Serialized, got.Notify)
		}
	}
	expect(false, "a new table")
	for _, on := range []bool{true, true, false, false, true} {
		serialize(t, conn, "shop", on)
		expect(on, "set")
	}
	changes := []struct {
		what string
		do   func() error
	}{
		{"migrate", func() error {
			_, err := outboxsql.Migrate(t.Context(), conn, "shop", outboxsql.MigrateOptions{})
			return err
		}},
		{"mode stream", func() error {
			return outboxsql.SetMode(t.Context(), conn, "shop", outboxsql.ModeStream, outboxsql.ModeOptions{})
		}},
		{"partition", func() error { return outboxsql.Partition(t.Context(), conn, "shop", outboxsql.PartitionOptions{}) }},
		{"partition again", func() error { return outboxsql.Partition(t.Context(), conn, "shop", outboxsql.PartitionOptions{}) }},
		{"mode queue", func() error {
			return outboxsql.SetMode(t.Context(), conn, "shop", outboxsql.ModeQueue, outboxsql.ModeOptions{})
		}},
		{"migrate again", func() error {
			_, err := outboxsql.Migrate(t.Context(), conn, "shop", outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto})
			return err
		}},
	}
	for _, c := range changes {
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		expect(true, c.what)
	}
	testdb.Exec(t, conn, `ALTER TABLE shop.outbox_events DISABLE TRIGGER outbox_events_serialize`)
	expect(false, "disabled")
	serialize(t, conn, "shop", true)
	expect(true, "turned on when it was disabled")
	serialize(t, conn, "shop", false)
	for _, c := range changes {
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		expect(false, "off, then "+c.what)
	}
}

// TestNoLineInPartition: a table becomes partitioned without a line if it had none.
func TestNoLineInPartition(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	if err := outboxsql.Partition(t.Context(), conn, "public", outboxsql.PartitionOptions{}); err != nil {
		t.Fatal(err)
	}
	if state(t, conn, "public").Serialized {
		t.Error("writers are serialized")
	}
}

// TestWritersStandInLine: whatever a writer uses, it draws ids only when the one before it has ended.
func TestWritersStandInLine(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	ways := map[string]func(ctx context.Context, conn *pgx.Conn) error{
		"insert": func(ctx context.Context, conn *pgx.Conn) error { _, err := conn.Exec(ctx, insertOne); return err },
		"many": func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', to_json(i) FROM generate_series(1, 100) i`)
			return err
		},
		"key": func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `INSERT INTO outbox_events (event_type, payload, idempotency_key) VALUES ('a', '1', 'k') ON CONFLICT DO NOTHING`)
			return err
		},
		"copy": func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.PgConn().CopyFrom(ctx, strings.NewReader("a\t1\nb\t2\n"), `COPY outbox_events (event_type, payload) FROM STDIN`)
			return err
		},
		"with": func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `WITH i AS (INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1') RETURNING id) SELECT id FROM i`)
			return err
		},
	}
	for name, write := range ways {
		for what, partitioned := range map[string]bool{"plain": false, "partitioned": true} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				url, conn := inLine(t, partitioned)
				first, second := testdb.Connect(t, url), testdb.Connect(t, url)
				testdb.Exec(t, first, `BEGIN`)
				testdb.Exec(t, first, insertOne)
				testdb.Exec(t, first, `SAVEPOINT a`)
				testdb.Exec(t, first, insertOne)
				testdb.Exec(t, first, `ROLLBACK TO a`) // the lock of the first insert stays
				done := make(chan error, 1)
				go func() { done <- write(t.Context(), second) }()
				awaitLock(t, conn, second.PgConn().PID(), lineLock)
				testdb.Exec(t, first, insertOne)
				last := testdb.One[int64](t, first, `SELECT max(id) FROM outbox_events`)
				testdb.Exec(t, first, `COMMIT`)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if next := testdb.List[int64](t, conn, `SELECT id FROM outbox_events ORDER BY id OFFSET 2`); len(next) == 0 || next[0] != last+1 {
					t.Errorf("after %d: %v", last, next)
				}
				if locks := testdb.One[int](t, conn, `SELECT count(*)::int FROM pg_locks WHERE `+lineLock+`
					AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); locks != 0 {
					t.Errorf("%d locks are left", locks)
				}
			})
		}
	}
}

// TestLineOfTheOwner: a role that may only connect, a writer and a relay cannot keep writers waiting, nor a partition
// from being created, but by the privileges that they have.
func TestLineOfTheOwner(t *testing.T) {
	t.Parallel()
	url, conn := inLine(t, true)
	stranger, writer, relay := role(t, conn), role(t, conn), role(t, conn)
	bare := func(quoted string) string { return strings.Trim(quoted, `"`) }
	grants, err := outboxsql.Grants("public", outboxsql.Roles{Writer: bare(writer), Relay: bare(relay)})
	if err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, conn, grants)
	for _, r := range []string{stranger, writer, relay} {
		other := testdb.Connect(t, url)
		testdb.Exec(t, other, `SET ROLE `+r)
		tables := []string{"outbox_mode", "outbox_migrations", "outbox_positions"}
		if r == relay {
			tables = tables[:2] // by the last one relays begin destinations
		}
		for _, table := range tables {
			_, err := other.Exec(t.Context(), `BEGIN; LOCK TABLE `+table+` IN SHARE UPDATE EXCLUSIVE MODE`)
			if testdb.SQLState(err) != "42501" {
				t.Errorf("%s locks %s: %v", r, table, err)
			}
			testdb.Exec(t, other, `ROLLBACK`)
		}
		// The locks of an earlier version.
		testdb.Exec(t, other, `SELECT pg_try_advisory_lock((s << 32) | 'outbox_events'::regclass::oid::bigint) FROM unnest('{1853122167,1853122160}'::bigint[]) AS s`)
	}
	testdb.Exec(t, conn, `SET lock_timeout = '10s'`)
	testdb.Exec(t, conn, insertOne)
	if made := testdb.List[string](t, conn, `SELECT * FROM outbox_partitions_extend(now() + interval '30 days', 3)`); len(made) == 0 {
		t.Error("no partition was created")
	}
}

// TestLinesApart: each schema has a line of its own.
func TestLinesApart(t *testing.T) {
	t.Parallel()
	url, conn := inLine(t, false)
	migrate(t, conn, "other", outboxsql.NotifyAuto)
	serialize(t, conn, "other", true)
	holder := openWriter(t, url)
	testdb.Exec(t, conn, `INSERT INTO other.outbox_events (event_type, payload) VALUES ('a', '1')`)
	testdb.Exec(t, holder, `ROLLBACK`)
}

// TestLineIsOurs: nothing in a writer's search_path comes between it and the line, and it needs no
// privilege but INSERT.
func TestLineIsOurs(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "shop", outboxsql.NotifyOff)
	serialize(t, conn, "shop", true)
	role := role(t, conn)
	testdb.Exec(t, conn, `CREATE SCHEMA trap;
		CREATE FUNCTION trap.format(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'caught'; END $$;
		CREATE FUNCTION trap.format(text, name) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'caught'; END $$;
		CREATE TABLE trap.outbox_mode ();
		REVOKE ALL ON ALL FUNCTIONS IN SCHEMA shop FROM public;
		GRANT USAGE ON SCHEMA shop, trap TO `+role+`; GRANT INSERT ON shop.outbox_events TO `+role)
	testdb.Exec(t, conn, `SET ROLE `+role)
	testdb.Exec(t, conn, `SET search_path = trap, pg_catalog, shop`)
	testdb.Exec(t, conn, `BEGIN`)
	testdb.Exec(t, conn, insertOne)
	held := testdb.One[int](t, conn, `SELECT count(*)::int FROM pg_locks WHERE pid = pg_backend_pid() AND `+lineLock)
	testdb.Exec(t, conn, `ROLLBACK`)
	testdb.Exec(t, conn, `RESET ROLE; RESET search_path`)
	if held != 1 {
		t.Errorf("the writer holds %d locks", held)
	}
}

// TestCommitOrderIsIDOrder: writers roll back, stay open and use savepoints, and whoever looks sees
// ids come into view in their order.
func TestCommitOrderIsIDOrder(t *testing.T) {
	t.Parallel()
	url, conn := inLine(t, false)
	const writers, each = 16, 25
	done := make(chan error, writers)
	for w := range writers {
		writer := testdb.Connect(t, url)
		go func() { done <- lineWriter(t.Context(), writer, w, each) }()
	}
	var seen []int64
	for ended := 0; ended < writers; {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			ended++
		default:
		}
		all := testdb.List[int64](t, conn, `SELECT id FROM outbox_events ORDER BY id`)
		if len(all) < len(seen) || !slices.Equal(all[:len(seen)], seen) {
			t.Fatalf("an id has come into view below %d", seen[len(seen)-1])
		}
		seen = all
	}
	if len(seen) < writers*each/2 {
		t.Errorf("%d events", len(seen))
	}
}

// lineWriter writes in every way that ends a transaction.
func lineWriter(ctx context.Context, conn *pgx.Conn, w, n int) error {
	for i := range n {
		statements := [][]string{
			{insertOne},
			{"BEGIN", insertOne, insertOne, "ROLLBACK"},
			{"BEGIN", "SAVEPOINT a", insertOne, "ROLLBACK TO a", insertOne, "COMMIT"},
			{"BEGIN", insertOne, "SAVEPOINT a", insertOne, "ROLLBACK TO a", "SELECT pg_sleep(0.002)", insertOne, "COMMIT"},
		}[(w+i)%4]
		for _, s := range statements {
			if _, err := conn.Exec(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestPreparedHoldsLine: a prepared transaction holds up writers until it is committed, and its ids
// come first.
func TestPreparedHoldsLine(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, map[string]string{"max_prepared_transactions": "5"})
	url := server.URL("postgres")
	conn, second := testdb.Connect(t, url), testdb.Connect(t, url)
	migrate(t, conn, "public", outboxsql.NotifyOff)
	serialize(t, conn, "public", true)
	testdb.Exec(t, conn, `BEGIN; INSERT INTO outbox_events (event_type, payload) VALUES ('prepared', '1'); PREPARE TRANSACTION 'p'`)
	done := make(chan error, 1)
	go func() { _, err := second.Exec(t.Context(), insertOne); done <- err }()
	awaitLock(t, conn, second.PgConn().PID(), lineLock)
	testdb.Exec(t, conn, `COMMIT PREPARED 'p'`)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := testdb.List[string](t, conn, `SELECT event_type FROM outbox_events ORDER BY id`); !slices.Equal(got, []string{"prepared", "order.created"}) {
		t.Error(got)
	}
}
