package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestUpgradesPage runs the commands and the SQL of docs/upgrades.md on a copy. The tests of integration/copies do the rest of the
// page: dumps, pg_upgrade, logical replication.
func TestUpgradesPage(t *testing.T) {
	t.Parallel()
	url := database(t)
	if got := commandIn(t, vars{"DATABASE_URL": url}, "migrate", "--partitions", "daily"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	var adopted int
	for _, f := range fences(testenv.ReadFile(t, root+"docs/upgrades.md")) {
		switch f.language {
		case "sql":
			if !strings.Contains(f.text, "ALTER DATABASE") { // no session may use it
				execute(t, url, f.text)
			}
		case "":
			for line := range strings.Lines(f.text) {
				execute(t, url, `UPDATE outbox_mode SET home = '1/2/3/elsewhere'`)
				execute(t, url, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`)
				if got := commandIn(t, vars{"DATABASE_URL": url}, "status", "--exit-code"); got.code == 0 || !strings.Contains(got.stdout, "The outbox is a copy: its home is database elsewhere") || !strings.Contains(got.stdout, "notifyd adopt") {
					t.Errorf("status: %+v", got)
				}
				command, _, _ := strings.Cut(line, " #")
				args := words(strings.TrimPrefix(strings.TrimSpace(command), "notifyd "))
				dry := strings.Contains(command, "--dry-run")
				if !dry {
					if got := commandIn(t, vars{"DATABASE_URL": url}, args...); got.code == 0 || !strings.Contains(got.stderr, "--yes") {
						t.Errorf("without --yes: %+v", got)
					}
					args = append(args, "--yes")
				}
				got := commandIn(t, vars{"DATABASE_URL": url}, args...)
				if got.code != 0 || !strings.Contains(got.stdout, "home: database elsewhere (oid 2, table 3) of server 1\nhere: database ") || strings.Contains(got.stdout, "adopted: ") == dry {
					t.Errorf("%s: %+v", line, got)
				}
				if home := query[bool](t, url, `SELECT home = outbox_place(tableoid) FROM outbox_mode`); home == dry {
					t.Errorf("%s: at home: %v", line, home)
				}
				adopted++
			}
		case "sh":
			if f.text != "pg_repack --no-kill-backend --dbname shop --table outbox_events --table outbox_deliveries\n" {
				t.Errorf("TestRepack of integration/copies does not run %s", f.text)
			}
		default:
			t.Errorf("nothing checks a block of %q", f.language)
		}
	}
	if n := query[int](t, url, `SELECT count(*) FROM outbox_events WHERE state = 'fresh'`); n != 0 || adopted != 3 {
		t.Errorf("%d events wait after %d commands", n, adopted)
	}
	migrated := commandIn(t, vars{"DATABASE_URL": url}, "migrate")
	if home := query[bool](t, url, `SELECT home = outbox_place(tableoid) FROM outbox_mode`); !home || migrated.code != 0 {
		t.Errorf("a home that was removed is not written by migrate: %+v", migrated)
	}
	execute(t, url, `UPDATE outbox_mode SET home = '1/2/3/elsewhere'`)
	if got := commandIn(t, vars{"DATABASE_URL": url}, "migrate"); got.code != 0 || query[string](t, url, `SELECT home FROM outbox_mode`) != "1/2/3/elsewhere" {
		t.Errorf("migrate adopts: %+v", got)
	}
	got := commandIn(t, vars{"DATABASE_URL": url}, "adopt", "--dry-run", "-o", "json")
	if got.code != 0 || !strings.Contains(got.stdout, `"from": "1/2/3/elsewhere"`) {
		t.Errorf("adopt as JSON: %+v", got)
	}
}
