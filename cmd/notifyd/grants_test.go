package main

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// login makes a role that may connect to the database and nothing else, and
// returns its name and the URL to connect as it.
func login(t *testing.T, owner, what string) (name, as string) {
	t.Helper()
	db := query[string](t, owner, "SELECT current_database()")
	name = what + "\"; -- " + db[len(db)-10:]
	quoted := pgx.Identifier{name}.Sanitize()
	execute(t, owner, "CREATE ROLE "+quoted+" LOGIN PASSWORD 'secret'")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.WithoutCancel(t.Context()), owner)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
		if _, err := conn.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+quoted+"; DROP ROLE "+quoted); err != nil {
			t.Errorf("drop the role of the test: %v", err)
		}
	})
	u, err := url.Parse(owner)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "secret")
	return name, u.String()
}

// strictConfig is a relay that comes by all its statements soon: leases at
// once, pauses that are short, and a purge of everything.
func strictConfig(db string, port int, keep, routes string) string {
	return fmt.Sprintf(`version: 1
database: {url: "%s"}
log: {level: debug, format: json}
admin: {listen: "127.0.0.1:0"}
relay: {lock_budget: 1ms, lease: 5s, poll_interval: 100ms}
retention: {keep: %s}
destinations:
  mail: {type: email, host: 127.0.0.1, port: %d, tls: none, from: shop@example.com, to: "{{ .Payload.email }}", subject: Hello, text: Hello,
    backoff: {initial: 10ms, max: 10ms}}
  audit: {type: log}
routes: [%s]
`, db, keep, port, routes)
}

// TestLeastPrivilege runs everything that a relay does as the role that
// --print-grants is for: several destinations, another attempt, a dead letter,
// leases and those of a relay that is gone, an event that waits for a route, the
// figures, and the purge. The application writes as the other role.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, keep := range map[string]string{"kept": "1ms", "deleted": "0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner := database(t)
			sink := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
			writer, asWriter := login(t, owner, "writer")
			relay, asRelay := login(t, owner, "relay")
			got := invoke(t, "migrate", "--print-grants", "--writer", writer, "--relay", relay)
			if got.code != 0 || got.stderr != "" {
				t.Fatalf("%+v", got)
			}
			execute(t, owner, got.stdout)
			const insert = "INSERT INTO outbox_events (event_type, payload) VALUES "
			const placed = "{match: order.placed, to: [mail, audit]}"

			first := startDaemon(t, nil, "run", "-c", file(t, strictConfig(asRelay, sink.Port(), keep, placed)))
			first.stderr.await(t, `"relay started"`)
			// Refused for now, then answered so late that it takes a lease.
			sink.Fail(smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 451}, smtpsink.Fault{Stage: smtpsink.Data, Delay: 300 * time.Millisecond})
			execute(t, asWriter, insert+`('order.placed', '{"n": 1, "email": "ann@example.com"}')`)
			mails(t, sink, 1)
			execute(t, asWriter, insert+`('order.placed', '{"n": 2, "email": "nobody"}')`) // no address: dead at once
			until(t, owner, "SELECT count(*) = 1 FROM outbox_deliveries WHERE state = 'dead'")
			execute(t, asWriter, insert+`('nowhere', '{"n": 3, "email": "ann@example.com"}')`)
			until(t, owner, "SELECT count(*) = 1 FROM outbox_deliveries WHERE state = 'unrouted'")
			if code := first.end(t); code != 0 {
				t.Errorf("exit code %d", code)
			}

			// A relay that is gone has left a lease.
			execute(t, owner, insert+`('order.placed', '{"n": 4, "email": "ann@example.com"}');
				UPDATE outbox_events SET state = 'deferred' WHERE state = 'fresh';
				INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
				SELECT max(id), 'mail', 'order.placed', 'running', 1, 1, now() + interval '1 hour' FROM outbox_events`)
			second := startDaemon(t, nil, "run", "-c", file(t, strictConfig(asRelay, sink.Port(), keep, placed+", {match: nowhere, to: mail}")))
			mails(t, sink, 3)
			until(t, owner, "SELECT array_agg(payload->>'n') = '{2}' FROM outbox_events") // the others are deleted, or purged
			address := regexp.MustCompile(`"msg":"admin server listening","listen":"([^"]+)"`).FindStringSubmatch(second.stderr.text())
			if address == nil {
				t.Fatalf("the address is not said:\n%s", second.stderr.text())
			}
			untilSays(t, "http://"+address[1]+"/metrics", "\nnotifyd_oldest_waiting_seconds 0")
			if code := second.end(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if text := first.stderr.text() + second.stderr.text(); strings.Contains(text, "permission denied") || strings.Contains(text, "SQLSTATE 42501") {
				t.Errorf("something was refused:\n%s", text)
			}
		})
	}
}

// TestGrantFlags: --grant-writer and --grant-relay give what --print-grants prints, also to a role that comes later.
func TestGrantFlags(t *testing.T) {
	t.Parallel()
	printed, granted := database(t), testenv.Database(t)
	writer, _ := login(t, printed, "writer")
	relay, _ := login(t, printed, "relay")
	execute(t, printed, invoke(t, "migrate", "--print-grants", "--writer", writer, "--relay", relay).stdout)
	if got := invoke(t, "migrate", "--grant-writer", writer, "--grant-relay", relay, "--database-url", granted); got.code != 0 || !strings.Contains(got.stdout, " may deliver events\n") {
		t.Fatalf("%+v", got)
	}
	const rights = `SELECT string_agg(line, E'\n' ORDER BY line) FROM (
		SELECT relname || relacl::text AS line FROM pg_class WHERE relname LIKE 'outbox%'
		UNION ALL SELECT attname || attacl::text FROM pg_attribute WHERE attrelid = 'outbox_events'::regclass
		UNION ALL SELECT proname || proacl::text FROM pg_proc WHERE proname LIKE 'outbox%') AS all_rights`
	if want, got := query[string](t, printed, rights), query[string](t, granted, rights); got != want {
		t.Errorf("granted:\n%s\nprinted:\n%s", got, want)
	}
	execute(t, granted, fmt.Sprintf("DROP OWNED BY %s, %s", pgx.Identifier{writer}.Sanitize(), pgx.Identifier{relay}.Sanitize()))

	for args, want := range map[string]string{
		"--grant-relay nobody-has-this-name":            "create the role first, with CREATE ROLE",
		"--dry-run --grant-writer nobody-has-this-name": "refused now: the role does not exist: create it first, with CREATE ROLE",
		"--grant-writer public":                         "--grant-writer: public means every role",
		"--grant-relay r --print-grants":                "--grant-relay changes the outbox, --print-grants changes nothing",
	} {
		if got := invoke(t, append([]string{"migrate", "--database-url", granted}, strings.Fields(args)...)...); got.code == 0 || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestPrintGrants(t *testing.T) {
	t.Parallel()
	got := invoke(t, "migrate", "--print-grants", "--schema", "shop")
	for _, want := range []string{`GRANT USAGE ON SCHEMA "shop" TO "notifyd_writer";`, `ON "shop"."outbox_events" TO "notifyd_relay";`} {
		if got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("%s is missing in %+v", want, got)
		}
	}
	got = invoke(t, "migrate", "--print-grants", "--writer", `a"b`)
	if got.code != 0 || !strings.Contains(got.stdout, `TO "a""b";`) || strings.Contains(got.stdout, "relay") {
		t.Errorf("a writer alone: %+v", got)
	}
	for args, want := range map[string]string{
		"--writer w":                                         "--writer goes with --print-grants",
		"--print-grants --relay public":                      "--relay: public means every role, even in quotes: create a separate role",
		"--print-grants --writer=":                           "--writer: the name of a role is missing",
		"--print-grants --notify off":                        "--notify changes the outbox, --print-grants changes nothing: run them one after the other",
		"--print-grants --schema " + strings.Repeat("s", 64): "--schema: schema name",
	} {
		got := invoke(t, append([]string{"migrate"}, strings.Fields(args)...)...)
		if got.code != command.ExitUsage || got.stdout != "" || !strings.HasPrefix(got.stderr, "notifyd: "+want) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// TestDocumentedRoles runs the commands as the roles of docs/deploy.md. What a role may not do
// names the cure, and what is in another schema is found there.
func TestDocumentedRoles(t *testing.T) {
	t.Parallel()
	owner := testenv.Database(t)
	execute(t, owner, "CREATE SCHEMA events")
	if got := invoke(t, "migrate", "--schema", "events", "--database-url", owner); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	writer, asWriter := login(t, owner, "writer")
	relay, asRelay := login(t, owner, "relay")
	_, asNobody := login(t, owner, "nobody")
	execute(t, owner, invoke(t, "migrate", "--print-grants", "--schema", "events", "--writer", writer, "--relay", relay).stdout)
	in := func(databaseURL string, args ...string) result {
		return invoke(t, append(args, "--schema", "events", "--database-url", databaseURL)...)
	}
	for _, want := range []string{"1\n", "2\n"} {
		if got := in(asWriter, "publish", "order.placed", `{"n": 1}`); got.code != 0 || got.stdout != want {
			t.Errorf("the writer publishes: %+v, want id %q", got, want)
		}
	}
	in(asWriter, "publish", "order.placed", `{"n": 1}`, "--idempotency-key", "k")
	if got := in(asWriter, "publish", "order.placed", `{"n": 1}`, "--idempotency-key", "k", "--ignore-duplicate"); got.code != 0 || !strings.Contains(got.stderr, `the idempotency key "k" already`) {
		t.Errorf("a duplicate: %+v", got)
	}
	execute(t, owner, `INSERT INTO events.outbox_deliveries (event_id, destination, event_type, state, attempts) VALUES (1, 'mail', 'order.placed', 'dead', 5)`)
	for _, args := range []string{"status", "events list", "dlq list", "dlq replay 1", "positions list"} {
		if got := in(asRelay, strings.Fields(args)...); strings.Contains(got.stderr, "permission denied") {
			t.Errorf("the relay's %s: %+v", args, got)
		}
		got := in(asNobody, strings.Fields(args)...)
		if got.code != 1 || !strings.Contains(got.stderr, "lacks a privilege in schema \"events\"") || !strings.Contains(got.stderr, "--print-grants --schema events --relay 'nobody") {
			t.Errorf("%s without privileges: %+v", args, got)
		}
	}
	if got := in(asRelay, "publish", "order.placed", "1"); got.code != 1 || !strings.Contains(got.stderr, "--print-grants --schema events --writer 'relay") {
		t.Errorf("the relay publishes: %+v", got)
	}
	execute(t, owner, `UPDATE events.outbox_deliveries SET state = 'dead'`)
	if got := in(asRelay, "dlq", "edit", "1", `{"n": 2}`); got.code != 1 || !strings.Contains(got.stderr, "is not the owner of the tables: run the command as the owner") {
		t.Errorf("the relay edits: %+v", got)
	}
	if got := in(asNobody, "migrate"); got.code != 1 || !strings.Contains(got.stderr, "is not the owner of the tables: run the command as the owner") {
		t.Errorf("nobody migrates: %+v", got)
	}
	// The schema was forgotten.
	const elsewhere = `schema "public" has no tables of notifyd, and schema events has: set database.schema or --schema`
	forgetful := file(t, logConfig("database: {url: '"+asRelay+"'}\n"))
	if got := invoke(t, "status", "-c", forgetful); !strings.Contains(got.stdout, "has no tables of notifyd, and schema events has") {
		t.Errorf("status: %+v", got)
	}
	for _, args := range []string{"run", "dlq list", "events list"} {
		if got := invoke(t, append(strings.Fields(args), "-c", forgetful)...); got.code != 1 || !strings.Contains(got.ended(), elsewhere) {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if got := invoke(t, "publish", "a", "1", "--database-url", asWriter); got.code != 1 || !strings.Contains(got.stderr, elsewhere) {
		t.Errorf("publish: %+v", got)
	}
	if got := invoke(t, "doctor", "-c", forgetful); !strings.Contains(got.stdout, "has no tables of notifyd, and schema events has") {
		t.Errorf("doctor: %+v", got)
	}
	if got := invoke(t, "migrate", "--database-url", owner); got.code != 0 || !strings.Contains(got.stderr, "the database has others in schema events") {
		t.Errorf("a second outbox: %+v", got)
	}
}
