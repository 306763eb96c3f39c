package outboxsql_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// granted migrates a schema, creates a writer and a relay with odd names, and runs the printed
// grants. Only Grants quotes the names.
func granted(t *testing.T, conn *pgx.Conn, schema string, notify outboxsql.NotifyMode) (writer, relay string) {
	t.Helper()
	migrate(t, conn, schema, notify)
	db := conn.Config().Database
	names := []string{`W"; DROP ROLE x; --` + "\n" + db, `Ré lay$$'\` + db}
	for i := range names {
		names[i] = cut(names[i])
		quoted := pgx.Identifier{names[i]}.Sanitize()
		testdb.Exec(t, conn, "CREATE ROLE "+quoted)
		t.Cleanup(func() {
			if _, err := conn.Exec(context.WithoutCancel(t.Context()), "RESET ROLE; DROP OWNED BY "+quoted+"; DROP ROLE "+quoted); err != nil {
				t.Errorf("drop the role of the test: %v", err)
			}
		})
	}
	script, err := outboxsql.Grants(schema, outboxsql.Roles{Writer: names[0], Relay: names[1]})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // as after an upgrade
		testdb.Exec(t, conn, script)
	}
	return names[0], names[1]
}

// cut returns the last part of what PostgreSQL has room for, which is the
// unique one, behind the first few bytes, which are the odd ones.
func cut(name string) string {
	const head, room = 22, 63
	if len(name) <= room {
		return name
	}
	return name[:head] + name[len(name)-(room-head):]
}

func become(t *testing.T, conn *pgx.Conn, role string) {
	t.Helper()
	testdb.Exec(t, conn, "SET ROLE "+pgx.Identifier{role}.Sanitize())
}

// refused fails the test unless the statement is refused for lack of privilege.
func refused(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), statement); sqlState(err) != "42501" {
		t.Errorf("%s: %v, want it refused", statement, err)
	}
}

func TestGrantsWriter(t *testing.T) {
	t.Parallel()
	for _, notify := range []outboxsql.NotifyMode{outboxsql.NotifyAuto, outboxsql.NotifyAlways, outboxsql.NotifyOff} {
		t.Run(string(notify), func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			conn := testdb.Connect(t, url)
			writer, _ := granted(t, conn, "Odd \"schema\"", notify)
			testdb.Exec(t, conn, "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA \"Odd \"\"schema\"\"\" FROM PUBLIC")
			become(t, conn, writer)
			testdb.Exec(t, conn, `SET search_path = "Odd ""schema"""`)

			testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`)
			testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload) SELECT 'many', '1' FROM generate_series(1, 70)`)
			all := outbox.Event{
				Type: "a", AggregateType: "order", AggregateID: "7", IdempotencyKey: "k", AvailableAt: time.Unix(1<<31, 0),
				Headers: map[string]string{"h": "v"}, Payload: map[string]int{"n": 1},
			}
			other := all
			other.IdempotencyKey = "l"
			writeAll(t, conn, all)
			all.IdempotencyKey = "m"
			writeAll(t, conn, all, other)
			all.IgnoreDuplicate, other.IgnoreDuplicate = true, true // needs no right to read
			writeAll(t, conn, all)
			writeAll(t, conn, all, other)
			writeAll(t, conn, outbox.Event{Type: "a", Payload: []byte{0, 255}, ContentType: "application/x-protobuf"})
			writeAll(t, conn, outbox.Event{Type: "a", Payload: []byte(nil), ContentType: "application/x-protobuf"}, outbox.Event{Type: "a", Payload: 1})

			if id := testdb.One[int64](t, conn, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1') RETURNING id`); id < 1 {
				t.Errorf("id %d", id)
			}
			for _, statement := range []string{
				"SELECT payload FROM outbox_events", "SELECT event_type FROM outbox_events", "INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1') RETURNING payload",
				"UPDATE outbox_events SET payload = '2'", "DELETE FROM outbox_events", "TRUNCATE outbox_events",
				"INSERT INTO outbox_events (event_type, payload, state) VALUES ('a', '1', 'done')",
				"INSERT INTO outbox_events (event_type, payload, created_at) VALUES ('a', '1', '2001-01-01')",
				"SELECT FROM outbox_deliveries", "INSERT INTO outbox_deliveries (event_id, event_type, state) VALUES (1, 'a', 'retry')",
				"SELECT FROM outbox_migrations", "CREATE TABLE mine ()", "SELECT nextval('outbox_events_id_seq')",
				"ALTER TABLE outbox_events DISABLE TRIGGER ALL",
			} {
				refused(t, conn, statement)
			}
			testdb.Exec(t, conn, "RESET ROLE")
			if n := testdb.One[int](t, conn, "SELECT count(*) FROM outbox_events"); n != 78 {
				t.Errorf("%d events, want 78", n)
			}
		})
	}
}

func writeAll(t *testing.T, conn *pgx.Conn, events ...outbox.Event) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		return outbox.WriteTo(t.Context(), tx, `Odd "schema"`, events...)
	})
	if err != nil {
		t.Errorf("%d event(s): %v", len(events), err)
	}
}

// TestGrantsRelay lists what a relay may not do. The tests of the whole system show what it must be
// able to do.
func TestGrantsRelay(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	_, relay := granted(t, conn, "relay", outboxsql.NotifyAuto)
	become(t, conn, relay)
	testdb.Exec(t, conn, "SET search_path = relay")
	for _, statement := range []string{
		"INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')", "UPDATE outbox_events SET payload = '2'",
		"UPDATE outbox_events SET event_type = 'b'", "TRUNCATE outbox_events", "TRUNCATE outbox_deliveries", "DELETE FROM outbox_migrations",
		"DELETE FROM outbox_audit", "UPDATE outbox_audit SET actor = 'x'",
		"INSERT INTO outbox_migrations (version, name) VALUES (99, 'x')", "CREATE TABLE mine ()", "ALTER TABLE outbox_events ADD mine int",
		"DROP TRIGGER outbox_events_notify ON outbox_events", "CREATE OR REPLACE FUNCTION outbox_notify_auto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
	} {
		if _, err := conn.Exec(t.Context(), statement); sqlState(err) != "42501" {
			t.Errorf("%s: %v, want it refused", statement, err)
		}
	}
	if err := outboxsql.Check(t.Context(), conn, "relay"); err != nil {
		t.Error(err)
	}
}

// TestGrantsCoverEveryTable: a new table, or a new column that writers set, must get its
// privileges.
func TestGrantsCoverEveryTable(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	tables := testdb.List[string](t, conn, `SELECT relname::text FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm') AND NOT relispartition ORDER BY relname`)
	known := outboxsql.GrantedTables()
	slices.Sort(known)
	if !slices.Equal(tables, known) {
		t.Errorf("tables:\n%v\nin tableGrants:\n%v", tables, known)
	}
	insert := testdb.One[string](t, conn, `SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute
		WHERE attrelid = 'outbox_events'::regclass AND attnum > 0 AND NOT attisdropped
		AND attname NOT IN ('id', 'created_at', 'processed_at', 'state',
			'traceparent')`) // its default reads a setting, which checks it; other writers have headers
	script, err := outboxsql.Grants("public", outboxsql.Roles{Writer: "w"})
	if err != nil {
		t.Fatal(err)
	}
	for column := range strings.SplitSeq(insert, ", ") {
		if !strings.Contains(script, column) {
			t.Errorf("a writer may not set the column %s: say why in this test, or add it to tableGrants", column)
		}
	}
	if strings.Contains(script, "outbox_deliveries") || strings.Contains(strings.ReplaceAll(script, "SELECT (id)", ""), "SELECT") {
		t.Errorf("a writer alone gets\n%s", script)
	}
}

// TestFunctionsOfOwnerAreGranted: a role that may only connect runs no function with the rights of the owner. A role that reads the mode,
// such as a relay from before, keeps what it needs.
func TestFunctionsOfOwnerAreGranted(t *testing.T) {
	t.Parallel()
	for _, partitioned := range []bool{false, true} {
		conn := testdb.Connect(t, testenv.Database(t))
		writer, relay := granted(t, conn, "events", outboxsql.NotifyAuto)
		reader := role(t, conn)
		testdb.Exec(t, conn, "GRANT USAGE ON SCHEMA events TO "+reader+"; GRANT SELECT ON events.outbox_mode TO "+reader+"; GRANT EXECUTE ON FUNCTION events.outbox_place(oid) TO PUBLIC")
		if partitioned {
			if err := outboxsql.Partition(t.Context(), conn, "events", outboxsql.PartitionOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		migrate(t, conn, "events", outboxsql.NotifyAuto)
		open := testdb.List[string](t, conn, `SELECT p.proname FROM pg_proc AS p
			WHERE p.pronamespace = 'events'::regnamespace AND p.prosecdef AND p.prorettype <> 'trigger'::regtype
			AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a WHERE a.grantee = 0)`)
		if len(open) > 0 {
			t.Errorf("partitioned %t: everyone may run %v", partitioned, open)
		}
		become(t, conn, writer)
		refused(t, conn, "SELECT events.outbox_place(0)")
		for _, name := range []string{strings.Trim(reader, `"`), relay} {
			testdb.Exec(t, conn, "RESET ROLE")
			become(t, conn, name)
			testdb.Exec(t, conn, "SELECT events.outbox_place(tableoid) FROM events.outbox_mode")
		}
		testdb.Exec(t, conn, "RESET ROLE")
	}
}

func TestGrantsMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		roles outboxsql.Roles
		want  string
	}{
		"everybody": {outboxsql.Roles{Writer: "public"}, "writer: public means every role"},
		"none":      {outboxsql.Roles{Relay: "none"}, "relay: PostgreSQL reserves the name none"},
		"long":      {outboxsql.Roles{Relay: strings.Repeat("r", 64)}, "has 64 bytes, PostgreSQL keeps 63"},
		"zero":      {outboxsql.Roles{Writer: "w\x00"}, "is not UTF-8 text without zero bytes"},
		"not UTF-8": {outboxsql.Roles{Writer: "w\xff"}, "is not UTF-8 text without zero bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if script, err := outboxsql.Grants("public", c.roles); err == nil || script != "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, %v; want %q", script, err, c.want)
			}
		})
	}
	if _, err := outboxsql.Grants(strings.Repeat("s", 64), outboxsql.Roles{Relay: "r"}); err == nil {
		t.Error("a schema that cannot be is taken")
	}
}

// TestTriggerTrustsNoSearchPath: another role has put operators and types before those of
// PostgreSQL in the writer's search_path. None may run.
func TestTriggerTrustsNoSearchPath(t *testing.T) {
	t.Parallel()
	for _, notify := range []outboxsql.NotifyMode{outboxsql.NotifyAuto, outboxsql.NotifyAlways} {
		t.Run(string(notify), func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			conn, ears := testdb.Connect(t, url), listen(t, url, "shop")
			migrate(t, conn, "shop", notify)
			testdb.Exec(t, conn, `CREATE SCHEMA trap; CREATE TABLE trap.outbox_inserted (id text)`)
			testdb.Exec(t, conn, `CREATE FUNCTION trap.sprung(value anyelement) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'the trap is sprung'; END $$;
				CREATE DOMAIN trap.text AS pg_catalog.text CHECK (trap.sprung(VALUE))`)
			for operator, kinds := range map[string][][3]string{
				"||": {{"name", "name", "text"}, {"name", "text", "text"}, {"text", "text", "text"}},
				"=":  {{"name", "name", "boolean"}, {"name", "text", "boolean"}, {"text", "text", "boolean"}},
				">":  {{"int", "int", "boolean"}}, "<<": {{"bigint", "int", "bigint"}}, "|": {{"bigint", "bigint", "bigint"}},
			} {
				for i, k := range kinds {
					for j := range k[:2] {
						k[j] = "pg_catalog." + strings.NewReplacer("bigint", "int8", "int", "int4").Replace(k[j])
					}
					f := fmt.Sprintf("trap.f%x_%d", operator, i)
					testdb.Exec(t, conn, fmt.Sprintf(`CREATE FUNCTION %s(a %s, b %s) RETURNS pg_catalog.%s LANGUAGE plpgsql AS $$ BEGIN RAISE 'the trap %s is sprung'; END $$;
						CREATE OPERATOR trap.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = %s)`,
						f, k[0], k[1], strings.NewReplacer("bigint", "int8", "boolean", "bool").Replace(k[2]), operator, operator, k[0], k[1], f))
				}
			}
			for _, name := range []string{"pg_notify(text, text)", "pg_try_advisory_lock_shared(bigint)", "array_length(bigint[], int)"} {
				testdb.Exec(t, conn, "CREATE FUNCTION trap."+name+" RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'the trap is sprung'; END $$")
			}
			testdb.Exec(t, conn, "SET search_path = trap, pg_catalog, shop")
			if _, err := conn.Exec(t.Context(), "SELECT 2 > 1"); err == nil || !strings.Contains(err.Error(), "sprung") {
				t.Fatalf("the trap does not work: %v", err)
			}
			writer := func(statement string) {
				t.Helper()
				testdb.Exec(t, conn, statement, pgx.QueryExecModeSimpleProtocol)
			}
			writer(insertOne)
			writer(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 65)`)
			if heard := ears.heard(t); len(heard) != 2 || heard[1] != "" {
				t.Errorf("heard %q", heard)
			}
		})
	}
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef
		AND NOT EXISTS (SELECT FROM unnest(proconfig) AS c WHERE c LIKE 'search\_path=pg_catalog, %pg_temp')`); n != 0 {
		t.Errorf("%d functions run as their owner, with the search_path of the caller", n)
	}
}
