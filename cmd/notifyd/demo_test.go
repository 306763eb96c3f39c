package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/cmd/internal/demo"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// lastLine returns the last line of what was printed, as JSON.
func lastLine(t *testing.T, stdout string) (line map[string]float64) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &line); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	return line
}

func TestDemo(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"queue", "stream"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			checkDemo(t, commandIn(t, vars{"DATABASE_URL": testenv.Database(t)}, "demo", "--orders", "3", "-o", "json", "--mode", mode))
		})
	}
}

func checkDemo(t *testing.T, got result) {
	t.Helper()
	line := lastLine(t, got.stdout)
	want := []string{"duplicates", "events", "lost", "mails", "orders", "p50_ms", "p99_ms", "rolled_back"}
	if keys := slices.Sorted(maps.Keys(line)); !slices.Equal(keys, want) {
		t.Errorf("got the keys %v, want %v", keys, want)
	}
	if got.code != 0 || line["orders"] != 3 || line["mails"] != 3 || line["events"] != 6 || line["rolled_back"] < 1 || line["lost"] != 0 {
		t.Errorf("got %+v", got)
	}
	if strings.Count(got.stdout, "\n") != 1 {
		t.Errorf("with -o json, standard output has more than the result: %s", got.stdout)
	}
}

func TestDemoLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range []string{"queue", "stream"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			checkLeavesNothing(t, mode)
		})
	}
}

func checkLeavesNothing(t *testing.T, mode string) {
	t.Helper()
	url := database(t) // of a user with waiting events
	publishTo(t, url, "order.placed", order)
	const events = `SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace) || ' ' || string_agg(e::text, ' ') FROM outbox_events AS e`
	waiting := query[string](t, url, events)
	const schemas = `SELECT string_agg(nspname, ' ' ORDER BY nspname) FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp'`
	before := query[string](t, url, schemas)
	got := invoke(t, "demo", "--orders", "3", "--database-url", url, "--mode", mode)
	if got.code != 0 || got.stderr != "" {
		t.Errorf("got %+v", got)
	}
	for _, want := range []string{
		"; --database-url), schema notifyd_demo_", "\nthe first mail, as received:\n\n    ", "    Subject: Your order ",
		"\norders            3\n", "\nmails             3\n", "\nlost              0\n", "\nlost=0 duplicates=0 mails=3 orders=3\n",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is missing in:\n%s", want, got.stdout)
		}
	}
	if strings.ContainsAny(got.stdout, "\x1b\r") {
		t.Errorf("control characters where there is no terminal: %q", got.stdout)
	}
	if after := query[string](t, url, schemas); after != before {
		t.Errorf("schemas before: %s\nand after: %s", before, after)
	}
	if after := query[string](t, url, events); after != waiting {
		t.Errorf("events before: %s\nand after: %s", waiting, after)
	}
}

// TestDemoTellsLoss gives the demo a database that swallows events.
func TestDemoTellsLoss(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	execute(t, url, `
		CREATE FUNCTION public.swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
		CREATE FUNCTION public.sabotage() RETURNS event_trigger LANGUAGE plpgsql AS $$
		DECLARE made record;
		BEGIN
			FOR made IN SELECT schema_name FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%.demo_orders' LOOP
				EXECUTE format('CREATE TRIGGER swallow BEFORE INSERT ON %I.outbox_events FOR EACH ROW
					WHEN (NEW.event_type = ''stock.reserved'') EXECUTE FUNCTION public.swallow()', made.schema_name);
			END LOOP;
		END $$;
		CREATE EVENT TRIGGER sabotage ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.sabotage()`)
	got := invoke(t, "demo", "--orders", "2", "-o", "json", "--database-url", url)
	line := lastLine(t, got.stdout)
	if got.code != 1 || line["lost"] != 4 || line["mails"] != 2 { // two handler calls and two lines in the log
		t.Errorf("got %+v", got)
	}
	if !strings.HasSuffix(got.stderr, "\nnotifyd: not everything arrived as it should have\n") {
		t.Errorf("got %+v", got)
	}
}

func TestDemoVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r    demo.Result
		want error
	}{
		{demo.Result{Orders: 2, Mails: 2}, nil},
		{demo.Result{Orders: 2, Mails: 2, Lost: 1}, errDemo},
		{demo.Result{Orders: 2, Mails: 2, Phantoms: 1}, errDemo},
	} {
		if got := verdict(c.r); got != c.want { //nolint:errorlint // it is returned as it is
			t.Errorf("%+v: got %v", c.r, got)
		}
	}
}

func TestDemoKeep(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range []string{"queue", "stream"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			checkKeeps(t, mode)
		})
	}
}

func checkKeeps(t *testing.T, mode string) {
	t.Helper()
	url := testenv.Database(t)
	d := startDaemon(t, nil, "demo", "--keep", "--orders", "1", "--database-url", url, "--mode", mode)
	d.stdout.await(t, "LIMIT 5\"\n\n")
	d.stdout.await(t, "\n  export MAIL_PORT=")
	// The invitation holds: an event of one's own becomes a mail.
	_, insert, _ := strings.Cut(d.stdout.text(), ` -c "`)
	insert, look, _ := strings.Cut(insert, "\"\n")
	execute(t, url, strings.ReplaceAll(insert, `\"`, `"`))
	d.stdout.await(t, "mail for you@example.com: Your order 1\n")
	_, look, _ = strings.Cut(look, ` -c "`)
	look, _, _ = strings.Cut(look, `"`)
	if n := query[int](t, url, "SELECT count(*)::int FROM ("+look+") AS shown"); n != map[string]int{"queue": 3, "stream": 4}[mode] {
		t.Errorf("%s shows %d rows", look, n)
	}
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d: %s", code, d.stderr.text())
	}
}

func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nil, "demo", "--orders", "1000000", "--database-url", testenv.Database(t))
	d.stdout.await(t, "mail server on")
	if code := d.end(t); code != 1 || d.stderr.text() != "notifyd: the demo was interrupted\n" {
		t.Errorf("exit code %d: %s", code, d.stderr.text())
	}
}

func TestDemoMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want result
	}{
		{"--orders 0", result{64, "", "notifyd: --orders 0 is below 1\nsee notifyd demo --help\n"}},
		{"--mode log", result{64, "", "notifyd: --mode: unknown mode \"log\": use queue or stream\nsee notifyd demo --help\n"}},
		{"--database-url nonsense", result{64, "", "notifyd: --database-url: " + notURL("failed to parse as keyword/value (invalid keyword/value)") + "\nsee notifyd demo --help\n"}},
		{"--database-url postgres://u:marker@127.0.0.1:1/db", result{1, "", "notifyd: failed to connect to `user=u database=db`: " +
			"127.0.0.1:1 (127.0.0.1): dial error: dial tcp 127.0.0.1:1: connect: connection refused: start the server, or fix the connection string\n"}},
	} {
		if got := invoke(t, append([]string{"demo"}, strings.Fields(c.args)...)...); got != c.want {
			t.Errorf("%s: got  %+v\nwant %+v", c.args, got, c.want)
		}
	}
}

// TestDemoDatabases: a named database is used, and no other is looked for.
func TestDemoDatabases(t *testing.T) {
	t.Parallel()
	const flag, env = "postgres://127.0.0.1/flag", "postgres://127.0.0.1/env"
	for _, c := range []struct {
		flag string
		env  vars
		want []demo.Database
	}{
		{flag, vars{"DATABASE_URL": env, "PGHOST": "h"}, []demo.Database{{URL: flag, Place: "--database-url"}}},
		{"", vars{"DATABASE_URL": env, "PGHOST": "h"}, []demo.Database{{URL: env, Place: "$DATABASE_URL"}}},
		{"", vars{"PGDATABASE": "d"}, []demo.Database{{Place: "the environment variables PG*"}}},
		{"", vars{"PGUSER": "ann", "PGHOST": ""}, demo.Local()},
	} {
		got, err := demoDatabases(&command.App{Lookup: c.env.lookup}, c.flag)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q, %v: got %v, %v", c.flag, c.env, got, err)
		}
	}
}

// TestDemoWithout: where no database is found it says where it has looked, and what to do.
func TestDemoWithout(t *testing.T) {
	t.Parallel()
	err := demoError(t.Context(), &demo.NotFoundError{Tried: []demo.Tried{
		{Database: demo.Database{Place: "socket in /x", Guessed: true}, Err: fmt.Errorf("dial: %w", syscall.ENOENT)},
		{Database: demo.Database{Place: "localhost:5432", Guessed: true}, Err: &pgconn.PgError{Message: `role "ann" does not exist`}},
		{Database: demo.Database{Place: "z", Guessed: true}, Err: errors.New("one\n\ttwo")},
	}})
	want := "the demo needs a PostgreSQL, and there is none that it may use:\n  socket in /x: no server\n  localhost:5432: role \"ann\" does not exist\n  z: one two\ndo one of these:\n  make demo "
	if text := err.Error(); !strings.HasPrefix(text, want) || !strings.Contains(text, "\n  notifyd demo --database-url URL ") || !strings.Contains(text, "\n  docker run ") {
		t.Errorf("%s\nwant %s", text, want)
	}
}

// TestWidth: a file is not a terminal.
func TestWidth(t *testing.T) {
	t.Parallel()
	f, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if widthOf(f, &command.App{Lookup: vars{"TERM": "xterm"}.lookup}) != nil {
		t.Error("a file has a width")
	}
}
