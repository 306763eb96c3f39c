package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	got := invoke(t, "migrate", "status", "--database-url", url)
	if got.code != 1 || got.stdout != "VERSION  NAME                   APPLIED\n1        events and deliveries  no\nnotify: off\nmode: queue\n" ||
		!strings.Contains(got.stderr, "run `notifyd migrate`") {
		t.Errorf("status before: %+v", got)
	}
	want := result{0, "applied version 1: events and deliveries\nschema public is at version 1, notify auto\n", ""}
	if got := invoke(t, "migrate", "--database-url", url); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for _, c := range []struct{ args, notify string }{
		{"migrate --notify always", "always"}, // also without "up"
		{"migrate up --notify off", "off"},
		{"migrate up", "off"}, // as it is
		{"migrate", "off"},
		{"migrate --notify=auto", "auto"},
	} {
		want := result{0, "schema public is at version 1, notify " + c.notify + "\n", ""}
		if got := commandIn(t, vars{"DATABASE_URL": url}, strings.Fields(c.args)...); got != want {
			t.Errorf("%s: got  %+v\nwant %+v", c.args, got, want)
		}
	}
	if got := invoke(t, "migrate", "status", "--database-url", url); got.code != 0 || !strings.HasSuffix(got.stdout, "Z\nnotify: auto\nmode: queue\n") {
		t.Errorf("status after: %+v", got)
	}
}

// TestMigrateSchema takes URL and schema from the file, and a flag over it.
func TestMigrateSchema(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: '%s', schema: shop}\n", url))
	for schema, args := range map[string][]string{
		"shop": {"migrate", "-c", path}, "other": {"migrate", "up", "-c", path, "--schema", "other"},
	} {
		want := result{0, "applied version 1: events and deliveries\nschema " + schema + " is at version 1, notify auto\n", ""}
		if got := invoke(t, args...); got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		if got := invoke(t, "publish", "x", "-c", path, "--schema", schema); got != (result{0, "1\n", ""}) {
			t.Errorf("publish into %s: %+v", schema, got)
		}
	}
}

func TestMigratePrint(t *testing.T) {
	t.Parallel()
	got := invoke(t, "migrate", "print", "--schema", "shop", "--notify", "always")
	for _, want := range []string{"\nCREATE SCHEMA IF NOT EXISTS \"shop\";\n", "SET LOCAL notifyd.notify = 'always';", "\nCOMMIT;\n"} {
		if !strings.Contains(got.stdout, want) || got.code != 0 {
			t.Errorf("%q is missing in %+v", want, got)
		}
	}
	url := testenv.Database(t)
	execute(t, url, got.stdout)
	if got := invoke(t, "migrate", "status", "--database-url", url, "--schema", "shop"); got.code != 0 || !strings.Contains(got.stdout, "notify: always") {
		t.Errorf("status after the printed SQL: %+v", got)
	}
}

// TestMigrateGivesUp: after --timeout it names the transaction that keeps it from its lock.
func TestMigrateGivesUp(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	if got := invoke(t, "migrate", "--database-url", url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	holder, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close(context.WithoutCancel(t.Context())) }()
	if _, err := holder.Exec(t.Context(), `BEGIN; INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`); err != nil {
		t.Fatal(err)
	}
	got := invoke(t, "migrate", "--notify", "always", "--timeout", "1ns", "--database-url", url)
	if got.code != 1 || !strings.Contains(got.stderr, fmt.Sprintf("pid %d,", holder.PgConn().PID())) || !strings.Contains(got.stderr, "end that transaction, and repeat the command") {
		t.Errorf("with an open transaction: %+v", got)
	}
	if got := invoke(t, "migrate", "--timeout", "0"); got.code != command.ExitUsage {
		t.Errorf("--timeout 0: %+v", got)
	}
}

func TestMigrateMistakes(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 64)
	for _, c := range []struct{ args, want string }{
		{"migrate --notify loud", "notifyd: --notify: unknown notify mode \"loud\": use auto, always or off\nsee notifyd migrate --help\n"},
		{"migrate up --notify loud", "notifyd: --notify: unknown notify mode \"loud\": use auto, always or off\nsee notifyd migrate up --help\n"},
		{"migrate print --notify loud", "notifyd: --notify: unknown notify mode \"loud\": use auto, always or off\nsee notifyd migrate print --help\n"},
		{"migrate --mode log", "notifyd: --mode: unknown mode \"log\": use queue or stream\nsee notifyd migrate --help\n"},
		{"migrate --mode=", "notifyd: --mode: unknown mode \"\": use queue or stream\nsee notifyd migrate --help\n"},
		{"migrate --print-grants --mode stream", "notifyd: --mode changes the outbox, --print-grants changes nothing: run them one after the other\nsee notifyd migrate --help\n"},
		{"migrate --schema " + long, "notifyd: --schema: schema name \"" + long + "\" has 64 bytes, at most 49 fit into a notification channel\nsee notifyd migrate --help\n"},
		{"migrate stauts", "notifyd: unknown command \"stauts\" for notifyd migrate (did you mean status?)\nsee notifyd migrate --help\n"},
	} {
		if got := invoke(t, strings.Fields(c.args)...); got != (result{64, "", c.want}) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.args, got, c.want)
		}
	}
}

// TestMigrateMode makes a stream of a new table in one go, and of a table in use;
// the way back reads the routes, and goes on where it was interrupted.
func TestMigrateMode(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	url := testenv.Database(t)
	flags := []string{"--database-url", url}
	got := invoke(t, append([]string{"migrate", "--partitions", "daily", "--mode", "stream"}, flags...)...)
	if got.code != 0 || !strings.HasSuffix(got.stdout, "\nschema public is at version 1, notify auto, mode stream, partitions daily\n") {
		t.Errorf("a new table: %+v", got)
	}
	if got := invoke(t, append([]string{"migrate", "--mode", "stream"}, flags...)...); got.stdout != "schema public is at version 1, notify auto, mode stream, partitions daily\n" {
		t.Errorf("again: %+v", got)
	}
	if got := invoke(t, append([]string{"migrate", "status"}, flags...)...); got.code != 0 || !strings.HasSuffix(got.stdout, "\nmode: stream\n") {
		t.Errorf("status: %+v", got)
	}
	execute(t, url, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 10);
		INSERT INTO outbox_positions (destination, head) VALUES ('x', 10), ('y', 5)`)
	got = invoke(t, append([]string{"migrate", "--mode", "queue"}, flags...)...)
	if got.code != 1 || !strings.Contains(got.stderr, "some have received event 6 and others have not") {
		t.Errorf("without routes: %+v", got)
	}
	path := file(t, "version: 1\ndatabase: {url: '"+url+"'}\ndestinations: {x: {type: log}, y: {type: log, order: none}}\nroutes: [{match: '*', to: [x, y]}]\n")
	execute(t, url, `UPDATE outbox_mode SET becoming = 'queue'`)
	if got := invoke(t, append([]string{"migrate", "status"}, flags...)...); !strings.HasSuffix(got.stdout, "\nmode: stream, on its way to a queue: run notifyd migrate --mode queue to its end\n") {
		t.Errorf("status in between: %+v", got)
	}
	got = invoke(t, "migrate", "--mode", "queue", "-c", path)
	if got.code != 0 || !strings.HasSuffix(got.stdout, "\nmaking the table a queue\nschema public is at version 1, notify auto, partitions daily\n") {
		t.Errorf("with routes: %+v", got)
	}
	if n := query[string](t, url, `SELECT (SELECT count(*) FROM outbox_events WHERE state = 'deferred') || ' ' || count(*) FROM outbox_deliveries WHERE destination = 'y' AND state = 'retry'`); n != "5 5" {
		t.Errorf("deferred, and left for y: %s", n)
	}
}

// TestMigrateDryRun: a dry run names the steps, what waits and who is in the way, and changes nothing.
func TestMigrateDryRun(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	dry := func(args ...string) result {
		return invoke(t, append([]string{"migrate", "--dry-run", "--database-url", url}, args...)...)
	}
	got := dry("--mode", "stream", "--partitions", "daily")
	if got.code != 0 || !strings.Contains(got.stdout, "would create the tables at version 1, as a stream\n") || query[bool](t, url, "SELECT to_regclass('outbox_events') IS NOT NULL") {
		t.Errorf("without tables: %+v", got)
	}

	if got := invoke(t, "migrate", "--database-url", url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	execute(t, url, "INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 3)")
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), "SET application_name = 'the shop'; BEGIN; INSERT INTO outbox_events (event_type, payload) VALUES ('a', '2')"); err != nil {
		t.Fatal(err)
	}
	const state = "SELECT mode || (SELECT count(*) FROM pg_trigger WHERE tgname = 'outbox_events_serialize') || (SELECT relkind::text FROM pg_class WHERE relname = 'outbox_events') FROM outbox_mode"
	before := query[string](t, url, state)
	got = dry("--mode", "stream", "--partitions", "daily", "--serialize-writers", "on", "--notify", "always", "--grant-relay", "postgres")
	for _, want := range []string{
		"would renew functions", "would change notify from auto to always\n", "its 3 events become the first partition; there is no way back", "  asks first, without --yes\n",
		"would make outbox_events a stream\n  locks: keeps relays away", "would serialize writers", "would let role \"postgres\" deliver events\n",
		"waiting: 3 events and 0 stored deliveries; dead letters: 0\n", "would wait for: pid ", "'the shop'", "nothing was changed\n",
	} {
		if got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("%q is missing in %+v", want, got)
		}
	}
	if after := query[string](t, url, state); after != before {
		t.Errorf("a dry run made %s of %s", after, before)
	}

	if got := invoke(t, "migrate", "--partitions", "daily", "--database-url", url); got.code != command.ExitUsage || !strings.Contains(got.stderr, "--yes says that this is to be done") {
		t.Errorf("partitions, unasked: %+v", got)
	}
	execute(t, url, "CREATE VIEW reader AS SELECT * FROM outbox_events")
	if got := dry("--partitions", "daily", "-o", "json"); got.code != 1 || !strings.Contains(got.stdout, `"refused": "outbox_events cannot be partitioned as it is: the view public.reader reads it`) {
		t.Errorf("with an obstacle: %+v", got)
	}
}

// TestMigrateModeAbandons: a stream that becomes a queue has no place for what a destination waits for that is not
// configured any more.
func TestMigrateModeAbandons(t *testing.T) {
	t.Parallel()
	url := databaseOf(t, "stream")
	execute(t, url, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 10);
		INSERT INTO outbox_positions (destination, head, open) VALUES ('x', 10, '{}'), ('gone', 5, '{[2,4)}'), ('idle', 10, '{}')`)
	path := file(t, "version: 1\ndatabase: {url: '"+url+"'}\ndestinations: {x: {type: log}}\nroutes: [{match: '*', to: [x]}]\n")
	got := invoke(t, "migrate", "--mode", "queue", "-c", path)
	if got.code != command.ExitFailure || !strings.Contains(got.stderr, "gone, which has come to event 5 (7 events wait)") || strings.Contains(got.stderr, "idle") || !strings.Contains(got.stderr, "--yes") {
		t.Errorf("without an answer: %+v", got)
	}
	if n := query[int](t, url, `SELECT count(*) FROM outbox_positions, outbox_mode WHERE mode = 'stream' AND becoming IS NULL`); n != 3 {
		t.Errorf("%d positions are left", n)
	}
	got = invoke(t, "migrate", "--mode", "queue", "-c", path, "--yes")
	if got.code != command.ExitOK || !strings.Contains(got.stdout, "dropping the positions of gone, which has come to event 5 (7 events wait)\n") {
		t.Errorf("with --yes: %+v", got)
	}
	if n := query[int](t, url, `SELECT count(*) FROM outbox_events WHERE state = 'done'`); n != 10 {
		t.Errorf("%d events are done", n)
	}
}

// TestSerializeWriters: the flag takes on and off, and migrate, its status, notifyd status and doctor
// say what has come of it.
func TestSerializeWriters(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	url := testenv.Database(t)
	config := file(t, "version: 1\ndatabase: {url: '"+url+"'}\nadmin: {listen: ''}\ndestinations: {x: {type: log, order: total}}\nroutes: [{match: '*', to: [x]}]\n")
	if got := invoke(t, "migrate", "--database-url", url, "--serialize-writers", "maybe"); got.code != command.ExitUsage || !strings.Contains(got.stderr, "must be one of on, off") {
		t.Errorf("an unknown word: %+v", got)
	}
	for _, flags := range [][]string{{"--mode", "stream", "--serialize-writers", "on"}, {"--serialize-writers", "on"}, {}} {
		got := invoke(t, append([]string{"migrate", "-c", config}, flags...)...)
		if got.code != 0 || !strings.HasSuffix(got.stdout, ", mode stream, writers serialized\n") {
			t.Errorf("%v: %+v", flags, got)
		}
	}
	if got := invoke(t, "migrate", "status", "-c", config); got.code != 0 || !strings.HasSuffix(got.stdout, "\nmode: stream\nwriters: serialized\n") {
		t.Errorf("status of the tables: %+v", got)
	}
	if got := invoke(t, "status", "-c", config); !strings.Contains(got.stdout, ", stream, writers serialized\n") {
		t.Errorf("status: %+v", got)
	}
	const note = "writers write side by side"
	if got := invoke(t, "doctor", "-c", config); strings.Contains(got.stdout, note) || !strings.Contains(got.stdout, "Writers are serialized") {
		t.Errorf("doctor: %+v", got)
	}
	if got := invoke(t, "migrate", "-c", config, "--serialize-writers", "off"); got.code != 0 || !strings.HasSuffix(got.stdout, ", mode stream\n") {
		t.Errorf("off: %+v", got)
	}
	if got := invoke(t, "doctor", "-c", config); !strings.Contains(got.stdout, note) || !strings.Contains(got.stdout, "notifyd migrate --serialize-writers on") {
		t.Errorf("doctor without the line: %+v", got)
	}
}
