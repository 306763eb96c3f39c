//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
)

// TestRetentionPage types docs/retention.md with a relay at work.
func TestRetentionPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	deliver := func() {
		publishTo(t, s.url, "a", "1")
		until(t, s.url, `SELECT bool_and(state = 'done') FROM outbox_events`)
	}
	s.follow("docs/retention.md", map[string]act{
		"yaml 1": {run: s.serve, after: func(string) { deliver() }},
		"notifyd migrate --partitions daily --yes": {after: func(string) {
			s.types("notifyd migrate --partitions daily --yes", act{says: `, partitions daily\n$`}, 0) // it goes on with what is there
		}},
		"yaml 2": {run: s.serve, after: func(string) {
			deliver()
			// The relay looks after partitions some seconds after its start.
			execute(t, s.url, `DROP TABLE outbox_events_p`+query[string](t, s.url, `SELECT to_char(max(day), 'YYYYMMDD') FROM outbox_partitions()`))
			until(t, s.url, `SELECT max(day) = (now() AT TIME ZONE 'UTC')::date + 3 FROM outbox_partitions()`)
		}},
		"sql 1": {after: func(string) {
			s.run("psql -X -q -f block1.sql $DATABASE_URL") // the key is there already
			equal(t, s.url, `SELECT count(*)::text FROM outbox_events WHERE idempotency_key = 'invoice-7'`, "1")
		}},
		"notifyd doctor": {says: `(?sm)^ok +schema .*^ok +other triggers .*^ok +rights .*^ok +autovacuum `},
	})
	s.stop()
	if got := query[string](t, s.url, `SELECT string_agg(DISTINCT tableoid::regclass::text, ' ') FROM outbox_events`); !strings.HasPrefix(got, "outbox_events_before outbox_events_p") {
		t.Errorf("events are in %s", got)
	}
}

// TestMigratePartitionsMistakes: what cannot be meant is refused.
func TestMigratePartitionsMistakes(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"migrate --partitions weekly":               `--partitions: "weekly" is unknown: use daily`,
		"migrate up --partitions none":              "no command that takes partitions away",
		"migrate --partitions daily --print-grants": "run them one after the other",
	} {
		got := commandIn(t, vars{"DATABASE_URL": "postgres://127.0.0.1:1/x"}, strings.Fields(args)...)
		if got.code != command.ExitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}
