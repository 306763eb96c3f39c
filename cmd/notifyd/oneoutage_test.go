package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestOneOutageOneMessage: while the database is down, each surface says so once, with the time since when, and nothing about
// what follows from it.
func TestOneOutageOneMessage(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnPostgres(t, nil)
			url := server.URL("")
			if r := invoke(t, "migrate", "--database-url", url, "--mode", mode); r.code != 0 {
				t.Fatalf("%+v", r)
			}
			const text = `version: 1
database: {url: "%s"}
log: {format: json}
admin: {listen: "%s", console: true}
destinations:
  audit: {type: log}
routes:
  - {match: order.placed, to: audit}
`
			r := startReloadable(t, nil, fmt.Sprintf(text, url, "127.0.0.1:0"))
			v := visit(t, r)
			address := strings.TrimPrefix(v.base, "http://")
			untilReady(t, v.base+"/readyz")
			config := file(t, fmt.Sprintf(text, url, address))
			v.awaits("/console/", "audit")

			if err := server.Halt(t.Context(), pgserver.Fast); err != nil {
				t.Fatal(err)
			}
			const since = `since \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`
			ready := untilSays(t, v.base+"/readyz?verbose", "[-] database: the database does not answer since ", "[!] listener: not checked while the database does not answer")
			if strings.Contains(ready, "polling") {
				t.Errorf("/readyz:\n%s", ready)
			}

			got := invoke(t, "status", "-c", config)
			want := regexp.MustCompile(`(?m)^the relay at ` + regexp.QuoteMeta(address) + ` waits: the database does not answer ` + since + `$`)
			if got.code != command.ExitFailure || !want.MatchString(got.stderr) {
				t.Errorf("status: %+v", got)
			}
			got = invoke(t, "doctor", "-c", config)
			if !strings.Contains(got.stdout, "3 findings: 1 error, 0 warnings, 1 note") || !regexp.MustCompile(`note +health +The relay at .* waits: the database does not answer `+since).MatchString(got.stdout) {
				t.Errorf("doctor: %+v", got)
			}

			page := v.awaits("/console/", "The database does not answer the relay since ")
			for _, follows := range []string{"polling", "The backlog is not known", "No relay delivers", "pooler"} {
				if strings.Contains(page, follows) {
					t.Errorf("the console says %q:\n%s", follows, page)
				}
			}

			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			untilReady(t, v.base+"/readyz")
		})
	}
}

// TestRelayIsCutOff: status reaches the database and the relay does not. It says so, and not that shards have no owner.
func TestRelayIsCutOff(t *testing.T) {
	t.Parallel()
	own := databaseOf(t, "stream")
	role := query[string](t, own, "SELECT 'cutoff_' || oid FROM pg_database WHERE datname = current_database()")
	execute(t, own, fmt.Sprintf("CREATE ROLE %s LOGIN SUPERUSER", role))
	const text = `version: 1
database: {url: "%s"}
log: {format: json}
admin: {listen: "%s"}
destinations:
  audit: {type: log}
routes:
  - {match: order.placed, to: audit}
`
	d := startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf(text, as(t, own, role, ""), "127.0.0.1:0")))
	d.stderr.await(t, `"relay started"`)
	address := listenOf(d)
	untilReady(t, "http://"+address+"/readyz")
	execute(t, own, fmt.Sprintf("ALTER ROLE %s NOLOGIN", role))
	execute(t, own, fmt.Sprintf("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '%s'", role))
	execute(t, own, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '1')`)
	config := file(t, fmt.Sprintf(text, own, address))
	commandUntil(t, "the relay is cut off", func(r result) bool {
		return strings.Contains(r.stdout, "The relay at "+address+" delivers nothing: the database refuses the relay since ") && !strings.Contains(r.stdout, "No relay")
	}, "status", "-c", config)
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	execute(t, own, "DROP ROLE "+role)
}
