package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// rolesOfTables is a database with the roles of an outbox, and a daemon that runs as one of them.
type rolesOfTables struct {
	*reloadable

	writer, relay, stranger string // their names
	asOwner                 string // URLs to connect as each of them
	asWriter, asRelay       string
	asStranger              string
}

// startRoles makes the roles by `notifyd migrate --grant-writer --grant-relay`, and starts a daemon as the relay.
func startRoles(t *testing.T, settings string, flags ...string) *rolesOfTables {
	t.Helper()
	s := &rolesOfTables{asOwner: testenv.Database(t)}
	s.writer, s.asWriter = login(t, s.asOwner, "writer")
	s.relay, s.asRelay = login(t, s.asOwner, "relay")
	s.stranger, s.asStranger = login(t, s.asOwner, "stranger")
	got := invoke(t, append([]string{"migrate", "--database-url", s.asOwner, "--grant-writer", s.writer, "--grant-relay", s.relay}, flags...)...)
	if got.code != command.ExitOK {
		t.Fatalf("%+v", got)
	}

	if settings == "" {
		settings = "destinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n"
	}
	s.reloadable = startReloadable(t, nil, "version: 1\ndatabase: {url: \""+s.asRelay+"\"}\nlog: {format: json}\n"+settings)
	s.stderr.await(t, `"relay started"`)
	return s
}

// delivers writes an event as the writer, and waits until the destination log has it.
func (s *rolesOfTables) delivers(t *testing.T, payload string) {
	t.Helper()
	execute(t, s.asWriter, `SET lock_timeout = '1min'; INSERT INTO outbox_events (event_type, payload) VALUES ('a', '"`+payload+`"')`)
	s.stdout.await(t, payload)
}

// endsInOrder stops the daemon, which has been refused nothing.
func (s *rolesOfTables) endsInOrder(t *testing.T) {
	t.Helper()
	if code := s.end(t); code != command.ExitOK {
		t.Errorf("exit code %d", code)
	}
	for line := range strings.Lines(s.stderr.text()) {
		if strings.Contains(line, `"level":"ERROR"`) || strings.Contains(line, "permission denied") || strings.Contains(line, "42501") {
			t.Errorf("the daemon says: %s", line)
		}
	}
}

// refuses fails the test unless each statement is refused for lack of a privilege.
func refuses(t *testing.T, as string, statements ...string) {
	t.Helper()
	conn := testdb.Connect(t, as)
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); testdb.SQLState(err) != "42501" {
			t.Errorf("%s: %v, want it refused", statement, err)
		}
		testdb.Exec(t, conn, `ROLLBACK`)
	}
}

// untilWaits waits until another session waits for this one.
func untilWaits(t *testing.T, owner string, holder *pgx.Conn) {
	t.Helper()
	until(t, owner, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid)))`, int32(holder.PgConn().PID()))
}

// background runs a statement that is to wait, and returns a function that waits for its end.
func background(t *testing.T, as, statement string) (ended func()) {
	t.Helper()
	conn, done := testdb.Connect(t, as), make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), statement)
		done <- err
	}()
	return func() {
		t.Helper()
		if err := testenv.Receive(t, patience, "the end of "+statement, done); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

// tablesOf returns the tables of an outbox and its views.
func tablesOf(t *testing.T, owner string) []string {
	t.Helper()
	conn := testdb.Connect(t, owner)
	testdb.Exec(t, conn, `SET search_path = pg_catalog`)
	return testdb.List[string](t, conn, `SELECT relname::text FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v') AND relname LIKE 'outbox%' ORDER BY relname`)
}

// TestWritersRole: a writer keeps others waiting by an open transaction, where writers are serialized or have the same key, and later
// events of its aggregate by one that fails. It reads ids, and reads and changes nothing else.
func TestWritersRole(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		for _, serialized := range []string{"on", "off"} {
			t.Run(mode+" "+serialized, func(t *testing.T) {
				t.Parallel()
				s := startRoles(t, "", "--mode", mode, "--serialize-writers", serialized)
				s.delivers(t, "before-all")
				begun := testdb.Connect(t, s.asWriter)
				testdb.Exec(t, begun, `BEGIN`)
				id := testdb.One[int64](t, begun, `INSERT INTO outbox_events (event_type, payload, idempotency_key) VALUES ('a', '"of-the-first"', 'k') RETURNING id`)
				key := map[string]string{"on": "other", "off": "k"}[serialized]
				ended := background(t, s.asWriter, `INSERT INTO outbox_events (event_type, payload, idempotency_key) VALUES ('a', '"of-the-second"', '`+key+`') ON CONFLICT DO NOTHING`)
				untilWaits(t, s.asOwner, begun)
				testdb.Exec(t, begun, `ROLLBACK`)
				ended()
				s.stdout.await(t, "of-the-second")

				refuses(t, s.asWriter,
					`SELECT payload FROM outbox_events`, `SELECT event_type FROM outbox_events`, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1') RETURNING payload`,
					`COPY outbox_events TO STDOUT`, `SELECT id FROM outbox_events FOR UPDATE`,
					`UPDATE outbox_events SET payload = '2'`, `UPDATE outbox_events SET state = 'done'`, `DELETE FROM outbox_events`, `TRUNCATE outbox_events`,
					`INSERT INTO outbox_events (event_type, payload, state) VALUES ('a', '1', 'done')`,
					`INSERT INTO outbox_events (event_type, payload, created_at) VALUES ('a', '1', '2001-01-01')`,
					`INSERT INTO outbox_events (id, event_type, payload) OVERRIDING SYSTEM VALUE VALUES (1, 'a', '1')`,
					`INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1') ON CONFLICT (id) DO UPDATE SET payload = '2'`,
					`SELECT nextval('outbox_events_id_seq')`, `SELECT setval('outbox_events_id_seq', 1)`,
					`ALTER TABLE outbox_events DISABLE TRIGGER ALL`, `CREATE TRIGGER mine AFTER INSERT ON outbox_events EXECUTE FUNCTION outbox_notify_auto()`,
					`BEGIN; LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE`)
				for _, table := range tablesOf(t, s.asOwner) {
					if table != "outbox_events" {
						refuses(t, s.asWriter, `SELECT FROM `+table, `BEGIN; LOCK TABLE `+table+` IN ACCESS SHARE MODE`)
					}
					if table != "outbox_events" && table != "outbox_last_id" { // a view
						refuses(t, s.asWriter, `INSERT INTO `+table+` DEFAULT VALUES`, `DELETE FROM `+table, `TRUNCATE `+table)
					}
				}
				if n := query[int](t, s.asWriter, `SELECT count(*) FROM outbox_events WHERE id = $1`, id); n != 0 {
					t.Errorf("event %d of a transaction that was rolled back", id)
				}
				s.delivers(t, "after-all")
				if n := query[int](t, s.asOwner, `SELECT count(*) FROM outbox_events`); n != 3 {
					t.Errorf("%d events", n)
				}
				s.endsInOrder(t)
			})
		}
	}
}

// TestRelaysRole: the role of the relay locks the tables that it may change, and so keeps writers waiting. It writes no event, changes
// no payload and no table, and removes no entry of the audit.
func TestRelaysRole(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := startRoles(t, "", "--mode", mode, "--serialize-writers", "on")
			s.delivers(t, "before-all")
			refuses(t, s.asRelay,
				`INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`, `UPDATE outbox_events SET payload = '2'`, `UPDATE outbox_events SET event_type = 'b'`,
				`UPDATE outbox_events SET headers = NULL`, `UPDATE outbox_events SET aggregate_id = 'x'`,
				`TRUNCATE outbox_events`, `TRUNCATE outbox_deliveries`, `DELETE FROM outbox_migrations`, `INSERT INTO outbox_migrations (version, name) VALUES (99, 'x')`,
				`DELETE FROM outbox_audit`, `UPDATE outbox_audit SET actor = 'x'`, `TRUNCATE outbox_audit`, `UPDATE outbox_mode SET mode = 'queue'`,
				`CREATE TABLE public.mine ()`, `ALTER TABLE outbox_events ADD mine int`, `DROP TABLE outbox_audit`, `DROP TRIGGER outbox_events_notify ON outbox_events`,
				`CREATE OR REPLACE FUNCTION outbox_notify_auto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'`,
				`CREATE TRIGGER mine AFTER INSERT ON outbox_deliveries EXECUTE FUNCTION outbox_notify_auto()`,
				`BEGIN; LOCK TABLE outbox_mode IN SHARE UPDATE EXCLUSIVE MODE`, `BEGIN; LOCK TABLE outbox_migrations IN SHARE UPDATE EXCLUSIVE MODE`)
			if got := invoke(t, "migrate", "--database-url", s.asRelay, "--serialize-writers", "off"); got.code == command.ExitOK {
				t.Errorf("the relay migrates: %+v", got)
			}

			holder := testdb.Connect(t, s.asRelay)
			testdb.Exec(t, holder, `BEGIN`)
			testdb.Exec(t, holder, `LOCK TABLE outbox_events IN SHARE ROW EXCLUSIVE MODE`)
			ended := background(t, s.asWriter, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '"behind-the-lock"')`)
			untilWaits(t, s.asOwner, holder)
			testdb.Exec(t, holder, `ROLLBACK`)
			ended()
			s.stdout.await(t, "behind-the-lock")
			s.endsInOrder(t)
		})
	}
}

// TestStrangersRunNothing: a role that may only connect has put functions and operators into a schema that is before those of PostgreSQL in
// the search_path of each session, runs what it can find, and takes each lock that it can. None of its code runs as another role,
// and no writer waits.
func TestStrangersRunNothing(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			total := map[string]string{"stream": ", order: total"}[mode]
			s := startRoles(t, "admin: {listen: '127.0.0.1:0', console: true}\ndestinations: {audit: {type: log"+total+"}}\nroutes: [{match: '*', to: audit}]\n", "--mode", mode, "--serialize-writers", "on")
			traps(t, s)
			const sprung = `SELECT is_called FROM trap.sprung`
			owner := testdb.Connect(t, s.asOwner)
			for what, as := range map[string]string{"a writer": s.asWriter, "the relay": s.asRelay, "the owner": s.asOwner} {
				if _, err := testdb.Connect(t, as).Exec(t.Context(), `SELECT 2 > 1`); err == nil || !strings.Contains(err.Error(), "sprung") || !testdb.One[bool](t, owner, sprung) {
					t.Fatalf("the trap of %s does not work: %v", what, err)
				}
				testdb.Exec(t, owner, `ALTER SEQUENCE trap.sprung RESTART`)
			}
			s.reloads <- struct{}{} // new sessions
			s.stderr.await(t, saidReloaded)
			second := startReloadable(t, nil, testenv.ReadFile(t, s.path))
			second.stderr.await(t, `"relay started"`)

			// An open transaction of a stranger, in front of an id that no event has.
			idle := testdb.Connect(t, s.asStranger)
			testdb.Exec(t, idle, `BEGIN`, pgx.QueryExecModeSimpleProtocol)
			testdb.Exec(t, idle, `SELECT pg_catalog.pg_current_xact_id()`)
			execute(t, s.asWriter, `BEGIN; INSERT INTO public.outbox_events (event_type, payload) VALUES ('a', '1'); ROLLBACK`)
			held := takesAll(t, s)

			execute(t, s.asWriter, `INSERT INTO public.outbox_events (event_type, payload) SELECT 'a', '2' FROM generate_series(1, 65)`)
			execute(t, s.asWriter, `SET lock_timeout = '1min'; INSERT INTO public.outbox_events (event_type, payload) VALUES ('a', '"the-last"')`)
			testenv.Await(t, "the last event", func() bool { return strings.Contains(s.stdout.text()+second.stdout.text(), "the-last") })
			testdb.Exec(t, held, `SELECT pg_catalog.pg_advisory_unlock_all()`)
			for _, flags := range [][]string{{}, {"--notify", "always"}, {"--partitions", "daily", "--yes"}} {
				if got := invoke(t, append([]string{"migrate", "--database-url", s.asOwner}, flags...)...); got.code != command.ExitOK {
					t.Errorf("migrate %q: %+v", flags, got)
				}
			}
			for _, args := range []string{"status", "doctor", "events list", "events show 1", "dlq list", "dlq replay --all --yes", "positions list", "plan", "reload", "pause audit", "resume audit", "publish a"} {
				as := map[bool]string{true: s.asWriter, false: s.asRelay}[args == "publish a"]
				invoke(t, append(strings.Fields(args), "-c", file(t, strings.ReplaceAll(testenv.ReadFile(t, s.path), s.asRelay, as)))...)
				if testdb.One[bool](t, owner, sprung) {
					t.Fatalf("%s: code of the stranger has run", args)
				}
			}
			v := visit(t, second)
			for _, page := range []string{"", "destinations", "events", "events/70", "dead", "relays", "position?name=audit"} {
				_, _ = v.get("/console/" + page)
			}
			if testdb.One[bool](t, owner, sprung) {
				t.Error("code of the stranger has run")
			}
			second.end(t)
			s.end(t)
			if strings.Contains(s.stderr.text()+second.stderr.text(), "sprung") {
				t.Errorf("code of the stranger has run:\n%s%s", s.stderr.text(), second.stderr.text())
			}
		})
	}
}

// traps makes functions, operators and tables of the stranger, and has all sessions of the database find them first.
func traps(t *testing.T, s *rolesOfTables) {
	t.Helper()
	stranger := pgx.Identifier{s.stranger}.Sanitize()
	execute(t, s.asOwner, `CREATE SCHEMA trap AUTHORIZATION `+stranger+`; GRANT USAGE ON SCHEMA trap TO public`)
	conn := testdb.Connect(t, s.asStranger)
	const body = ` LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_catalog.nextval('trap.sprung'); RAISE 'the trap is sprung'; END $$`
	testdb.Exec(t, conn, `CREATE SEQUENCE trap.sprung; GRANT ALL ON SEQUENCE trap.sprung TO public`)
	long := strings.NewReplacer("bigint", "int8", "integer", "int4", "boolean", "bool")
	for operator, kinds := range map[string][][3]string{
		"||": {{"name", "name", "text"}, {"name", "text", "text"}, {"text", "text", "text"}},
		"=":  {{"name", "name", "boolean"}, {"name", "text", "boolean"}, {"text", "text", "boolean"}, {"integer", "integer", "boolean"}, {"bigint", "bigint", "boolean"}, {"oid", "oid", "boolean"}},
		">":  {{"integer", "integer", "boolean"}, {"bigint", "bigint", "boolean"}},
		"<<": {{"bigint", "integer", "bigint"}},
		"|":  {{"bigint", "bigint", "bigint"}},
	} {
		for i, k := range kinds {
			left, right, result := "pg_catalog."+long.Replace(k[0]), "pg_catalog."+long.Replace(k[1]), "pg_catalog."+long.Replace(k[2])
			name := fmt.Sprintf("trap.f%x_%d", operator, i)
			testdb.Exec(t, conn, fmt.Sprintf(`CREATE FUNCTION %s(a %s, b %s) RETURNS %s`, name, left, right, result)+body)
			testdb.Exec(t, conn, fmt.Sprintf(`CREATE OPERATOR trap.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = %s)`, operator, left, right, name))
		}
	}
	for _, name := range []string{
		"pg_notify(text, text)", "pg_try_advisory_lock_shared(bigint)", "pg_try_advisory_xact_lock_shared(bigint)", "array_length(bigint[], int)", "now()", "clock_timestamp()",
		"format(text, text)", "current_setting(text, boolean)", "count(bigint)", "coalesce_(text)", "max(bigint)", "set_config(text, text, boolean)",
	} {
		testdb.Exec(t, conn, `CREATE FUNCTION trap.`+name+` RETURNS boolean`+body)
	}
	for _, table := range []string{"outbox_inserted", "outbox_mode", "outbox_events", "outbox_deliveries", "outbox_positions", "pg_class"} {
		testdb.Exec(t, conn, `CREATE TABLE trap.`+table+` (id bigint, mode text); GRANT ALL ON trap.`+table+` TO public`, pgx.QueryExecModeSimpleProtocol)
	}
	name := pgx.Identifier{conn.Config().Database}.Sanitize()
	execute(t, s.asOwner, `ALTER DATABASE `+name+` SET search_path = trap, pg_catalog, public`)
}

// takesAll calls each function of the outbox and locks each table as the stranger, which is refused. The returned session holds
// the advisory locks that relays and writers use, so far as they are free.
func takesAll(t *testing.T, s *rolesOfTables) *pgx.Conn {
	t.Helper()
	owner := testdb.Connect(t, s.asOwner)
	testdb.Exec(t, owner, `SET search_path = pg_catalog`)
	calls := testdb.List[string](t, owner, `SELECT concat('public.', p.proname, '(', (SELECT string_agg('NULL::' || format_type(a, NULL), ', ') FROM unnest(p.proargtypes) AS a), ')')
		FROM pg_proc AS p WHERE p.pronamespace = 'public'::regnamespace AND p.prosecdef AND p.prorettype <> 'trigger'::regtype`)
	if len(calls) == 0 {
		t.Error("the outbox has no function that runs as its owner")
	}
	for _, call := range calls {
		refuses(t, s.asStranger, `SELECT `+call)
	}
	tables := slices.DeleteFunc(tablesOf(t, s.asOwner), func(name string) bool { return name == "outbox_last_id" })
	for _, table := range tables {
		refuses(t, s.asStranger, `BEGIN; LOCK TABLE public.`+table+` IN ACCESS SHARE MODE`, `BEGIN; LOCK TABLE public.`+table+` IN SHARE UPDATE EXCLUSIVE MODE`)
	}

	conn := testdb.Connect(t, s.asStranger)
	for space := 1853122150; space < 1853122175; space++ {
		for _, table := range tables {
			testdb.Exec(t, conn, fmt.Sprintf(`SELECT pg_catalog.pg_try_advisory_lock((%d::pg_catalog.int8 OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) 'public.%s'::pg_catalog.regclass::pg_catalog.oid::pg_catalog.int8)`, space, table))
		}
	}
	return conn
}
