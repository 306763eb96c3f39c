package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestRetentionPage runs what docs/retention.md says, in its order, with a relay
// at work.
func TestRetentionPage(t *testing.T) {
	t.Parallel()
	url := database(t)
	var daemons, blocks int
	var config string // the last one
	for _, f := range fences(testenv.ReadFile(t, root+"docs/retention.md")) {
		blocks++
		switch f.language {
		case "yaml":
			config = strings.Replace(f.text, "version: 1\n", "version: 1\ndatabase: {url: '"+url+"'}\n", 1)
			d := startDaemon(t, nil, "run", "-c", file(t, config))
			daemons++
			execute(t, url, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`)
			until(t, url, `SELECT bool_and(state = 'done') FROM outbox_events`)
			if strings.Contains(config, "daily") {
				// It looks after partitions some seconds after its start.
				execute(t, url, `DROP TABLE outbox_events_p`+query[string](t, url, `SELECT to_char(max(day), 'YYYYMMDD') FROM outbox_partitions()`))
				until(t, url, `SELECT max(day) = (now() AT TIME ZONE 'UTC')::date + 3 FROM outbox_partitions()`)
				checkDoctor(t, config)
			}
			if code := d.end(t); code != 0 {
				t.Errorf("exit code %d:\n%s", code, d.stderr.text())
			}
		case "sql":
			execute(t, url, f.text)
			execute(t, url, f.text) // the key is there already
		case "":
			for line := range strings.Lines(f.text) {
				args := words(strings.TrimPrefix(strings.TrimSpace(line), "notifyd "))
				switch args[0] {
				case "doctor":
					checkDoctor(t, config)
					continue
				case "go": // TestPerformancePage of bench runs it
					continue
				}
				says := ", partitions daily\n"
				if slices.Contains(args, "--dry-run") {
					says = "nothing was changed\n"
				}
				for range 2 {
					got := commandIn(t, vars{"DATABASE_URL": url}, args...)
					if got.code != 0 || !strings.HasSuffix(got.stdout, says) {
						t.Errorf("%s: %+v", line, got)
					}
				}
			}
		default:
			t.Errorf("nothing checks a block of %q", f.language)
		}
	}
	if daemons != 2 || blocks != 7 {
		t.Errorf("%d blocks, %d configurations", blocks, daemons)
	}
	if n := query[int](t, url, `SELECT count(*)::int FROM outbox_events WHERE idempotency_key = 'invoice-7'`); n != 1 {
		t.Errorf("%d events with the key of the page", n)
	}
	if got := query[string](t, url, `SELECT string_agg(DISTINCT tableoid::regclass::text, ' ') FROM outbox_events`); !strings.HasPrefix(got, "outbox_events_before outbox_events_p") {
		t.Errorf("events are in %s", got)
	}
}

// checkDoctor has doctor look at partitions that are well.
func checkDoctor(t *testing.T, config string) {
	t.Helper()
	got := invoke(t, "doctor", "-c", file(t, config))
	for _, want := range []string{"\nok       partitions ", "\nok       schema ", "\nok       rights ", "\nok       autovacuum ", "\nok       other triggers "} {
		if !strings.Contains("\n"+got.stdout, want) {
			t.Errorf("doctor does not say %q:\n%s", want, got.stdout)
		}
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
