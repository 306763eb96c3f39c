package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/pgschema"
)

// ordinary is the configuration of a relay that notices new policies soon.
func ordinary(url string) string {
	return fmt.Sprintf(`version: 1
database: {url: "%s"}
log: {format: json}
relay: {poll_interval: 100ms}
destinations: {audit: {type: log}}
routes: [{match: '*', to: audit}]
`, url)
}

// restricted returns a role with the grants of a relay, its name in SQL, and the URL to connect as it.
func restricted(t *testing.T, owner string) (role, as string) {
	t.Helper()
	name, as := login(t, owner, "relay")
	got := invoke(t, "migrate", "--print-grants", "--relay", name, "--writer", name)
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	execute(t, owner, got.stdout)
	return pgx.Identifier{name}.Sanitize(), as
}

// TestRowSecurity: PostgreSQL refuses a relay whose role may not see all events, in place of hiding them. A stream would
// pass the hidden ones. Once the role may see them, all are delivered; so are those that are written while the role
// loses the right again.
func TestRowSecurity(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			owner := databaseOf(t, mode)
			role, as := restricted(t, owner)
			events := func(from, to int) {
				execute(t, owner, fmt.Sprintf(`INSERT INTO outbox_events (event_type, payload) SELECT 'order.placed', ('{"n":' || n || '}')::json FROM generate_series(%d, %d) AS n`, from, to))
			}
			events(1, 20)
			execute(t, owner, `ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY; CREATE POLICY every_other ON outbox_events USING (id % 2 = 0)`)

			d := startProcess(t, "", "run", "-c", file(t, ordinary(as)))
			d.stderr.await(t, `query would be affected by row-level security policy`)
			d.stderr.await(t, `ALTER ROLE ... BYPASSRLS`)
			if out := d.stdout.text(); out != "" {
				t.Errorf("delivered before the role sees all events:\n%s", out)
			}
			for _, args := range []string{"events list", "status"} {
				r := invoke(t, append(strings.Fields(args), "--database-url", as)...)
				if r.code != command.ExitFailure || !strings.Contains(r.stderr, "row-level security") || !strings.Contains(r.stderr, "BYPASSRLS") {
					t.Errorf("%s: %+v", args, r)
				}
			}
			execute(t, owner, "ALTER ROLE "+role+" BYPASSRLS")
			printed(t, d, 1, 20)

			execute(t, owner, "ALTER ROLE "+role+" NOBYPASSRLS")
			events(21, 40)
			execute(t, owner, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = `+"'"+strings.ReplaceAll(strings.Trim(role, `"`), `""`, `"`)+"'")
			events(41, 60)
			d.stderr.await(t, `query would be affected by row-level security policy`)
			execute(t, owner, "ALTER ROLE "+role+" BYPASSRLS")
			printed(t, d, 1, 60)
			d.endInOrder(t)
		})
	}
}

// printed waits until the destination "log" has printed the events from and to.
func printed(t *testing.T, d *process, from, to int) {
	t.Helper()
	for n := from; n <= to; n++ {
		d.stdout.await(t, fmt.Sprintf(`"n":%d}`, n))
	}
}

// TestRowSecurityOfEachTable: a policy on any table that a relay reads is refused at the start, or when the relay gets there.
func TestRowSecurityOfEachTable(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	tables := make(map[string]bool)
	for _, p := range pgschema.RelayPrivileges() {
		tables[p.Table] = true
	}
	for _, table := range []string{"outbox_events", "outbox_deliveries", "outbox_positions", "outbox_members", "outbox_routes", "outbox_replays", "outbox_pauses", "outbox_mode"} {
		if !tables[table] {
			t.Errorf("a relay reads no table %s", table)
		}
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			owner := databaseOf(t, "stream")
			_, as := restricted(t, owner)
			execute(t, owner, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '{"n" : 1}')`)
			execute(t, owner, "ALTER TABLE "+table+" ENABLE ROW LEVEL SECURITY")
			d := startDaemon(t, nil, "run", "-c", file(t, ordinary(as)))
			d.stderr.await(t, `row-level security policy for table \"`+table+`\"`)
			execute(t, owner, "ALTER TABLE "+table+" DISABLE ROW LEVEL SECURITY")
			d.end(t)
		})
	}
}
