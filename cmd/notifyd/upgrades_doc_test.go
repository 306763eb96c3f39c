//go:build unix

package main

import (
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
)

// TestUpgradesPage types docs/upgrades.md on a copy. The tests of integration/copies do the rest of the
// page: dumps, pg_upgrade, logical replication, pg_repack.
func TestUpgradesPage(t *testing.T) {
	t.Parallel()
	const elsewhere = "1/2/3/shop"
	s := newStage(t, database(t))
	s.types("notifyd migrate --partitions daily --yes", act{}, 0)
	atHome := func(want string) {
		t.Helper()
		equal(t, s.url, `SELECT (home = outbox_place(tableoid))::text FROM outbox_mode`, want)
	}
	copied := func() {
		execute(t, s.url, `UPDATE outbox_mode SET home = '`+elsewhere+`'`)
		publishTo(t, s.url, "a", "1")
		s.types("notifyd status --exit-code", act{code: command.ExitFailure, says: `(?s)The outbox is a copy: its home is database shop.*notifyd adopt`}, 0)
	}
	adopted := act{before: func() {
		copied()
		s.types("notifyd adopt </dev/null", act{code: command.ExitUsage, says: "--yes"}, 0)
	}, as: "%s --yes", after: func(string) { atHome("true") }}
	skipped := act{run: func(step) {}} // no session may use the database
	s.follow("docs/upgrades.md", map[string]act{
		"notifyd adopt --dry-run":                           {before: copied, after: func(string) { atHome("false") }},
		`notifyd adopt --reason "upgrade to PostgreSQL 18"`: adopted,
		"notifyd adopt --discard-waiting":                   adopted,
		"sql 1":                                             skipped,
		"sql 5":                                             skipped,
		"pg_repack --no-kill-backend --dbname shop --table outbox_events --table outbox_deliveries": {run: func(step) {}}, // TestRepack of integration/copies runs it
	})
	equal(t, s.url, `SELECT count(*)::text FROM outbox_events WHERE state = 'fresh'`, "0")

	s.types("notifyd migrate", act{}, 0) // the page has removed the home
	atHome("true")
	execute(t, s.url, `UPDATE outbox_mode SET home = '`+elsewhere+`'`)
	s.types("notifyd migrate", act{}, 0)
	equal(t, s.url, `SELECT home FROM outbox_mode`, elsewhere)
	s.types("notifyd adopt --dry-run -o json", act{says: `"from": "` + elsewhere + `"`}, 0)
}
