package outboxsql_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestMigratePoolOfOne: a pool with one connection is enough.
func TestMigratePoolOfOne(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testenv.Database(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
	ctx := testenv.Within(t, time.Minute)
	for range 2 {
		if err := outboxsql.MigratePool(ctx, pool); err != nil {
			t.Fatal(err)
		}
	}
	if err := outboxsql.Check(ctx, pool, outboxsql.DefaultSchema); err != nil {
		t.Error(err)
	}
}

func TestMigrateTwice(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	s := state(t, conn, "public")
	if s.Current != 0 || s.Latest < 1 || len(s.Versions) != s.Latest || s.Notify != outboxsql.NotifyOff || s.Mode != outboxsql.ModeQueue || !s.Versions[0].AppliedAt.IsZero() {
		t.Errorf("before: %+v", s)
	}
	err := outboxsql.Check(t.Context(), conn, "public")
	if !errors.Is(err, outboxsql.ErrNotMigrated) || !strings.Contains(err.Error(), "notifyd migrate") {
		t.Errorf("before: %v, want ErrNotMigrated with the cure", err)
	}
	if applied := migrate(t, conn, "public", outboxsql.NotifyKeep); len(applied) != s.Latest || applied[0].Number != 1 || applied[0].Name == "" {
		t.Errorf("applied %+v at first", applied)
	}
	if applied := migrate(t, conn, "public", outboxsql.NotifyKeep); len(applied) != 0 {
		t.Errorf("applied %+v the second time", applied)
	}
	names := s.Versions
	s = state(t, conn, "public")
	for i, v := range s.Versions {
		if v.Name != names[i].Name || v.Number != i+1 {
			t.Errorf("the file of version %d records version %d, %q; want %q", i+1, v.Number, v.Name, names[i].Name)
		}
	}
	if s.Current != s.Latest || len(s.Versions) != s.Latest || s.Notify != outboxsql.NotifyAuto || s.Versions[0].AppliedAt.IsZero() {
		t.Errorf("after: %+v", s)
	}
	if err := outboxsql.Check(t.Context(), conn, "public"); err != nil {
		t.Errorf("after: %v", err)
	}
}

// TestMigrateAtOnce also runs with a stricter default isolation level: a snapshot older than the
// lock must not hide the winner's commit.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			first := testdb.Connect(t, url)
			testdb.Exec(t, first, fmt.Sprintf("ALTER DATABASE %s SET default_transaction_isolation = %s",
				pgx.Identifier{first.Config().Database}.Sanitize(), "'"+isolation+"'"))
			conns := make([]*pgx.Conn, 8)
			for i := range conns {
				conns[i] = testdb.Connect(t, url)
			}
			var wg sync.WaitGroup
			applied, errs := make([]int, len(conns)), make([]error, len(conns))
			for i, conn := range conns {
				wg.Go(func() {
					var versions []outboxsql.Version
					versions, errs[i] = outboxsql.Migrate(t.Context(), conn, "public", outboxsql.MigrateOptions{})
					applied[i] = len(versions)
				})
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			slices.Sort(applied)
			if applied[6] != 0 || applied[7] == 0 {
				t.Errorf("versions applied by each: %v, want by one alone", applied)
			}
		})
	}
}

func TestMigrateIntoSchema(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, schema := range []string{"relay", `Odd "name"; it's`, "pg", "näme", strings.Repeat("x", 49)} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			conn := testdb.Connect(t, url)
			before := testdb.One[string](t, conn, "SHOW search_path")
			migrate(t, conn, schema, outboxsql.NotifyAuto)
			migrate(t, conn, schema, outboxsql.NotifyAuto)
			if err := outboxsql.Check(t.Context(), conn, schema); err != nil {
				t.Error(err)
			}
			tables := testdb.List[string](t, conn, `SELECT relname::text FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = 'r' ORDER BY 1`,
				pgx.Identifier{schema}.Sanitize())
			if want := []string{"outbox_audit", "outbox_calls", "outbox_deliveries", "outbox_events", "outbox_limits", "outbox_members", "outbox_migrations", "outbox_mode", "outbox_pauses", "outbox_positions", "outbox_relays", "outbox_replays", "outbox_routes", "outbox_server"}; !slices.Equal(tables, want) {
				t.Errorf("tables %v, want %v", tables, want)
			}
			if n := testdb.One[int](t, conn, `SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace`); n != 0 {
				t.Errorf("%d relations in public", n)
			}
			if after := testdb.One[string](t, conn, "SHOW search_path"); after != before {
				t.Errorf("search_path is %s after it, was %s", after, before)
			}
			if len(pgschema.Channel(schema)) > 63 {
				t.Errorf("channel %s is too long", pgschema.Channel(schema))
			}
			ears := listen(t, url, schema)
			id := testdb.One[int64](t, conn, "INSERT INTO "+pgx.Identifier{schema, "outbox_events"}.Sanitize()+
				" (event_type, payload) VALUES ('a', '1') RETURNING id")
			ears.expect(t, "notifications on "+pgschema.Channel(schema), fmt.Sprint(id))
		})
	}
}

func TestTwoSchemasInOneDatabase(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "one", outboxsql.NotifyAlways)
	migrate(t, conn, "two", outboxsql.NotifyOff)
	if s := state(t, conn, "one"); s.Notify != outboxsql.NotifyAlways {
		t.Errorf("notify mode of one is %s", s.Notify)
	}
	if s := state(t, conn, "two"); s.Notify != outboxsql.NotifyOff || s.Current != s.Latest {
		t.Errorf("two: %+v", s)
	}
	if err := outboxsql.Check(t.Context(), conn, "public"); !errors.Is(err, outboxsql.ErrNotMigrated) {
		t.Errorf("public: %v", err)
	}
}

func TestRefusedSettings(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	for _, c := range []struct {
		schema string
		notify outboxsql.NotifyMode
		want   string
	}{
		{"", outboxsql.NotifyAuto, "no name"},
		{strings.Repeat("x", 50), outboxsql.NotifyAuto, "at most 49"},
		{"a\x00b", outboxsql.NotifyAuto, "zero bytes"},
		{"a\xffb", outboxsql.NotifyAuto, "UTF-8"},
		{"public", "loud", "use auto, always or off"},
		{"public", "auto'; DROP TABLE x; --", "unknown notify mode"},
	} {
		if _, err := outboxsql.Migrate(t.Context(), conn, c.schema, outboxsql.MigrateOptions{Notify: c.notify}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Migrate(%q, %q) = %v, want %q", c.schema, c.notify, err, c.want)
		}
		if _, err := outboxsql.Script(c.schema, c.notify); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Script(%q, %q) = %v, want %q", c.schema, c.notify, err, c.want)
		}
	}
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM pg_class WHERE relname LIKE 'outbox%'`); n != 0 {
		t.Errorf("%d relations were made", n)
	}
}

func TestTooNew(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAlways)
	testdb.Exec(t, conn, `INSERT INTO outbox_migrations (version, name) VALUES (999, 'from the future')`)
	before := catalog(t, conn, "public")
	_, err := outboxsql.Migrate(t.Context(), conn, "public", outboxsql.MigrateOptions{Notify: outboxsql.NotifyOff})
	for _, err := range []error{err, outboxsql.Check(t.Context(), conn, "public")} {
		if !errors.Is(err, outboxsql.ErrTooNew) || !strings.Contains(err.Error(), "999") || !strings.Contains(err.Error(), "upgrade notifyd") {
			t.Errorf("%v, want ErrTooNew with the cure", err)
		}
	}
	if after := catalog(t, conn, "public"); !slices.Equal(before, after) {
		t.Errorf("changed from\n%s\nto\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	s := state(t, conn, "public")
	if last := s.Versions[len(s.Versions)-1]; s.Current != 999 || last.Number != 999 || last.Name != "from the future" {
		t.Errorf("state %+v", s)
	}
}

// TestNextVersion: a notifyd with one more version runs that one alone, and records it; the notifyd
// before it then refuses the schema.
func TestNextVersion(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	// It fails if it runs twice.
	const next = `CREATE TABLE outbox_next (id bigint PRIMARY KEY);
		INSERT INTO outbox_migrations (version, name) VALUES (2, 'next');`
	migrateNext := func(schema string) (numbers []int) {
		t.Helper()
		applied, err := outboxsql.MigrateNext(t.Context(), conn, schema, "next", next)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range applied {
			numbers = append(numbers, v.Number)
		}
		return numbers
	}
	migrate(t, conn, "public", outboxsql.NotifyAlways)
	// What version 1 would undo.
	testdb.Exec(t, conn, `COMMENT ON TABLE outbox_audit IS 'ours'; DROP INDEX outbox_audit_event`)
	before := catalog(t, conn, "public")
	if got := migrateNext("public"); !slices.Equal(got, []int{2}) {
		t.Errorf("applied versions %v to version 1, want 2 alone", got)
	}
	if got := migrateNext("public"); len(got) > 0 {
		t.Errorf("applied versions %v again", got)
	}
	if got := testdb.List[string](t, conn, `SELECT version || ' ' || name FROM outbox_migrations ORDER BY version`); !slices.Equal(got, []string{"1 events and deliveries", "2 next"}) {
		t.Errorf("recorded %q", got)
	}
	after := slices.DeleteFunc(catalog(t, conn, "public"), func(line string) bool { return strings.Contains(line, "outbox_next") })
	if !slices.Equal(before, after) {
		t.Errorf("version 2 changed\n%s\nto\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	_, err := outboxsql.Migrate(t.Context(), conn, "public", outboxsql.MigrateOptions{})
	for _, err := range []error{err, outboxsql.Check(t.Context(), conn, "public")} {
		if !errors.Is(err, outboxsql.ErrTooNew) || !strings.Contains(err.Error(), "is at version 2, this notifyd knows 1") {
			t.Errorf("the notifyd before it: %v, want ErrTooNew", err)
		}
	}
	if got := migrateNext("fresh"); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("applied versions %v to nothing, want both", got)
	}
}

// TestFilesRestore: the files, run again by hand, restore what is missing, and give a stream or a
// partitioned table no index that it must not have.
func TestFilesRestore(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			eachKind(t, func(t *testing.T, conn *pgx.Conn) {
				t.Helper()
				if err := outboxsql.SetMode(t.Context(), conn, "public", mode, outboxsql.ModeOptions{}); err != nil {
					t.Fatal(err)
				}
				want := catalog(t, conn, "public")
				testdb.Exec(t, conn, `DROP INDEX outbox_deliveries_due, outbox_replays_running; DROP TABLE outbox_pauses;
					DROP TRIGGER outbox_deliveries_fingerprint ON outbox_deliveries`)
				runFiles(t, conn)
				if got := catalog(t, conn, "public"); !slices.Equal(got, want) {
					t.Errorf("restored\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			})
		})
	}
}

// TestDroppedTable: migrate makes dropped tables again. New events get ids behind those of stored deliveries and positions,
// which belong to the dropped ones.
func TestDroppedTable(t *testing.T) {
	t.Parallel()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			conn := testdb.Connect(t, testenv.Database(t))
			migrate(t, conn, "public", outboxsql.NotifyAuto)
			setMode(t, conn, mode, outboxsql.ModeOptions{})
			want := catalog(t, conn, "public")
			last := testdb.One[int64](t, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (57, 'x', 'a', 'dead') RETURNING event_id`)
			if mode == outboxsql.ModeStream {
				last = testdb.One[int64](t, conn, `INSERT INTO outbox_positions (destination, head) VALUES ('x', 90) RETURNING head`)
			}
			testdb.Exec(t, conn, `DROP TABLE outbox_events, outbox_members, outbox_pauses, outbox_server CASCADE`)

			var said []string
			o := outboxsql.MigrateOptions{Progress: func(step string) { said = append(said, step) }}
			if _, err := outboxsql.Migrate(t.Context(), conn, "public", o); err != nil {
				t.Fatal(err)
			}
			if got := catalog(t, conn, "public"); !slices.Equal(got, want) {
				t.Errorf("restored\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if len(said) != 1 || !strings.Contains(said[0], "outbox_events, outbox_members, outbox_pauses, outbox_server") {
				t.Errorf("said %q", said)
			}
			if id := testdb.One[int64](t, conn, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1') RETURNING id`); id != last+1 {
				t.Errorf("the next id is %d, want %d", id, last+1)
			}

			testdb.Exec(t, conn, `DROP TABLE outbox_mode CASCADE`)
			if _, err := outboxsql.Migrate(t.Context(), conn, "public", o); err == nil || !strings.Contains(err.Error(), "restore its row from a backup") {
				t.Errorf("without the mode: %v", err)
			}
		})
	}
}

// catalog describes everything in a schema, one line per thing.
func catalog(tb testing.TB, conn *pgx.Conn, schema string) []string {
	tb.Helper()
	return testdb.List[string](tb, conn, `
		WITH r AS (SELECT oid, relname FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = 'r')
		SELECT format('column %s.%s %s %s %s %s %s', relname, attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
			pg_get_expr(adbin, adrelid), col_description(r.oid, attnum)) AS line
		FROM r JOIN pg_attribute a ON attrelid = r.oid AND attnum > 0 LEFT JOIN pg_attrdef d ON adrelid = r.oid AND adnum = attnum
		UNION ALL SELECT format('table %s %s', relname, obj_description(oid, 'pg_class')) FROM r
		UNION ALL SELECT format('index %s', replace(pg_get_indexdef(indexrelid), quote_ident($1::name::text) || '.', '')) FROM pg_index JOIN r ON r.oid = indrelid
		UNION ALL SELECT format('constraint %s %s %s', relname, conname, pg_get_constraintdef(c.oid)) FROM pg_constraint c JOIN r ON r.oid = conrelid
		UNION ALL SELECT format('trigger %s %s', replace(pg_get_triggerdef(t.oid), quote_ident($1::name::text) || '.', ''), tgenabled)
			FROM pg_trigger t JOIN r ON r.oid = tgrelid WHERE NOT tgisinternal
		UNION ALL SELECT format('function %s %s %s', proname, prosrc, obj_description(oid, 'pg_proc')) FROM pg_proc WHERE pronamespace = $1::regnamespace
		ORDER BY 1`, schema)
}

// TestWaysToMigrate compares the result of Migrate with that of its script, and with the files run
// by hand.
func TestWaysToMigrate(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	for _, notify := range []outboxsql.NotifyMode{outboxsql.NotifyKeep, outboxsql.NotifyAuto, outboxsql.NotifyAlways, outboxsql.NotifyOff} {
		migrated, scripted, byHand := "m"+string(notify), "s"+string(notify), "h"+string(notify)
		migrate(t, conn, migrated, notify)
		script, err := outboxsql.Script(scripted, notify)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := conn.PgConn().Exec(t.Context(), script).ReadAll(); err != nil {
				t.Fatalf("script: %v", err)
			}
		}
		hand := testdb.Connect(t, conn.Config().ConnString())
		testdb.Exec(t, hand, "CREATE SCHEMA "+byHand)
		testdb.Exec(t, hand, "SET search_path = "+byHand)
		if notify != outboxsql.NotifyKeep {
			testdb.Exec(t, hand, "SET notifyd.notify = '"+string(notify)+"'")
		}
		runFiles(t, hand)
		runFiles(t, hand)

		want := catalog(t, conn, migrated)
		for _, schema := range []string{scripted, byHand} {
			if got := catalog(t, conn, schema); !slices.Equal(got, want) {
				t.Errorf("%s differs from %s:\n%s\nwant\n%s", schema, migrated, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if err := outboxsql.Check(t.Context(), conn, schema); err != nil {
				t.Errorf("%s: %v", schema, err)
			}
			if got, want := state(t, conn, schema).Notify, state(t, conn, migrated).Notify; got != want {
				t.Errorf("%s: notify %s, want %s", schema, got, want)
			}
			if got, want := state(t, conn, schema).Versions[0].Name, state(t, conn, migrated).Versions[0].Name; got != want {
				t.Errorf("%s: version 1 is called %q, want %q", schema, got, want)
			}
			if applied := migrate(t, conn, schema, outboxsql.NotifyKeep); len(applied) != 0 {
				t.Errorf("%s: %d versions left to apply", schema, len(applied))
			}
		}
	}
}

// runFiles runs the files as psql -f does: each statement by itself.
func runFiles(tb testing.TB, conn *pgx.Conn) {
	tb.Helper()
	for _, name := range []string{"schema.sql", "functions.sql", "triggers.sql"} {
		runFile(tb, conn, name)
	}
}

func runFile(tb testing.TB, conn *pgx.Conn, name string) {
	tb.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	for _, statement := range statements(string(text)) {
		if _, err := conn.PgConn().Exec(tb.Context(), statement).ReadAll(); err != nil {
			tb.Fatalf("%s: %v\n%s", name, err, statement)
		}
	}
}

// statements splits one of the files: a statement ends with a line that ends in
// a semicolon, outside of a body between lines of dollar quotes.
func statements(text string) []string {
	var list []string
	var b strings.Builder
	inBody := false
	for line := range strings.Lines(text) {
		b.WriteString(line)
		if strings.Count(line, "$")%4 == 2 {
			inBody = !inBody
		}
		if !inBody && strings.HasSuffix(strings.TrimSpace(line), ";") {
			list = append(list, b.String())
			b.Reset()
		}
	}
	return list
}

func TestNotifyModes(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	const drop = `DROP TRIGGER outbox_events_notify ON outbox_events`
	for i, c := range []struct {
		before       string
		notify, want outboxsql.NotifyMode
	}{
		{"", outboxsql.NotifyKeep, outboxsql.NotifyAuto},
		{"", outboxsql.NotifyAlways, outboxsql.NotifyAlways},
		{"", outboxsql.NotifyKeep, outboxsql.NotifyAlways},
		{"", outboxsql.NotifyOff, outboxsql.NotifyOff},
		{"", outboxsql.NotifyKeep, outboxsql.NotifyOff},
		{"", outboxsql.NotifyOff, outboxsql.NotifyOff},
		{"", outboxsql.NotifyAuto, outboxsql.NotifyAuto},
		{drop, outboxsql.NotifyKeep, outboxsql.NotifyOff},
		{"", outboxsql.NotifyAuto, outboxsql.NotifyAuto},
		{`ALTER TABLE outbox_events DISABLE TRIGGER outbox_events_notify`, outboxsql.NotifyKeep, outboxsql.NotifyOff},
		{"", outboxsql.NotifyAuto, outboxsql.NotifyAuto},
		{`ALTER TABLE outbox_events DISABLE TRIGGER outbox_events_notify`, outboxsql.NotifyOff, outboxsql.NotifyOff},
		{"", outboxsql.NotifyAlways, outboxsql.NotifyAlways},
	} {
		if c.before != "" {
			testdb.Exec(t, conn, c.before)
		}
		migrate(t, conn, "public", c.notify)
		if got := state(t, conn, "public").Notify; got != c.want {
			t.Errorf("step %d: notify mode is %q after %q, want %q", i, got, c.notify, c.want)
		}
	}
	// A mistake in a run by hand is refused as well.
	testdb.Exec(t, conn, `SET notifyd.notify = 'loud'`)
	text, err := os.ReadFile("triggers.sql")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.PgConn().Exec(t.Context(), string(text)).ReadAll(); err == nil || !strings.Contains(err.Error(), "unknown notify mode 'loud'") {
		t.Errorf("triggers.sql with an unknown mode: %v", err)
	}
	if got := state(t, conn, "public").Notify; got != outboxsql.NotifyAlways {
		t.Errorf("notify mode is %q after a refusal", got)
	}
}

// TestKeepTakesNoLock: a second migration must not wait for writers.
func TestKeepTakesNoLock(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, writer := testdb.Connect(t, url), testdb.Connect(t, url)
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	testdb.Exec(t, writer, `BEGIN`)
	testdb.Exec(t, writer, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`)
	testdb.Exec(t, conn, `SET lock_timeout = '100ms'`)
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	migrate(t, conn, "public", outboxsql.NotifyKeep)
}

func TestEverythingHasAComment(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	silent := testdb.List[string](t, conn, `
		SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
			AND coalesce(obj_description(c.oid, 'pg_class'), '') = ''
		UNION ALL
		SELECT c.relname || '.' || a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
			WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND coalesce(col_description(c.oid, a.attnum), '') = ''
		UNION ALL
		SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND coalesce(obj_description(p.oid, 'pg_proc'), '') = ''
		ORDER BY 1`)
	if len(silent) > 0 {
		t.Errorf("no comment on %v", silent)
	}
}

// TestRefusedRows: rows that the relay could not handle are refused.
func TestRefusedRows(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	for name, insert := range map[string]string{
		"no type":        `(payload) VALUES ('1')`,
		"empty type":     `(event_type, payload) VALUES ('', '1')`,
		"endless type":   `(event_type, payload) SELECT string_agg(md5(i::text), ''), '1' FROM generate_series(1, 200) i`,
		"no payload":     `(event_type) VALUES ('a')`,
		"headers a list": `(event_type, payload, headers) VALUES ('a', '1', '[]')`,
		"headers null":   `(event_type, payload, headers) VALUES ('a', '1', 'null')`,
		"long aggregate": `(event_type, payload, aggregate_type, aggregate_id) VALUES ('a', '1', 'a', repeat('a', 1025))`,
		"long kind":      `(event_type, payload, aggregate_type, aggregate_id) VALUES ('a', '1', repeat('a', 1025), 'a')`,
		"large headers":  `(event_type, payload, headers) VALUES ('a', '1', jsonb_build_object('a', repeat('a', 65536)))`,
		"long numbers":   `(event_type, payload, headers) VALUES ('a', '1', '{"a": 1e70000}')`,
		"unknown state":  `(event_type, payload, state) VALUES ('a', '1', 'new')`,
	} {
		_, err := conn.Exec(t.Context(), `INSERT INTO outbox_events `+insert)
		if code := sqlState(err); code != "23502" && code != "23514" {
			t.Errorf("%s: %v, want a violated constraint", name, err)
		}
	}
}

// TestMigrateAsOwnerOfTheSchema: a role that was given a schema needs no more.
func TestMigrateAsOwnerOfTheSchema(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	role := role(t, conn)
	testdb.Exec(t, conn, "CREATE SCHEMA relay AUTHORIZATION "+role)
	testdb.Exec(t, conn, "SET ROLE "+role)
	migrate(t, conn, "relay", outboxsql.NotifyKeep)
	migrate(t, conn, "relay", outboxsql.NotifyKeep)
	if err := outboxsql.Check(t.Context(), conn, "relay"); err != nil {
		t.Error(err)
	}
}
