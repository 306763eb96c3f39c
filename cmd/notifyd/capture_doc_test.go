//go:build unix

package main

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestCapturePage runs docs/capture.md, with a relay of a queue and of a stream: a change of a captured table arrives at the
// destination as the page shows it.
func TestCapturePage(t *testing.T) {
	t.Parallel()
	const page = "docs/capture.md"
	var want map[string]any
	if err := json.Unmarshal([]byte(lastBlock(t, page, "json")), &want); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"queue", "stream"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, database(t))
			if got := invoke(t, "migrate", "--mode", mode, "--database-url", s.url); got.code != 0 {
				t.Fatalf("%+v", got)
			}
			s.relay(s.config(page))
			s.follow(page, map[string]act{
				"sql 2": {after: func(string) {
					s.until(`grep -q orders.updated events.log`)
					if is, printed := s.run(`grep -c 'orders\.' events.log`); is != "0" || strings.TrimSpace(printed) != "2" {
						t.Errorf("%s: %s", is, printed)
					}
					delivered(t, testenv.ReadFile(t, filepath.Join(s.dir, "events.log")), want)
				}},
			})
			s.types("notifyd capture remove orders", act{says: `^there is no capture of orders\n$`}, 0)
			s.types("notifyd capture list", act{says: `^no table is captured`}, 0)
			s.types("notifyd doctor", act{}, 0)
			s.stop()
		})
	}
}

// delivered fails unless a line of the log has an event with this payload.
func delivered(t *testing.T, log string, want map[string]any) {
	t.Helper()
	for line := range strings.Lines(log) {
		var e struct {
			Type    string         `json:"event_type"`
			Payload map[string]any `json:"payload"`
		}
		if json.Unmarshal([]byte(line), &e) == nil && reflect.DeepEqual(e.Payload, want) {
			return
		}
	}
	t.Errorf("no event has the payload %v:\n%s", want, log)
}

// TestCaptureMistakes: mistakes in the command line are named, with the exit code of mistakes, and a role without rights gets
// the cure.
func TestCaptureMistakes(t *testing.T) {
	t.Parallel()
	url := database(t)
	execute(t, url, `CREATE TABLE orders (id int PRIMARY KEY, note text)`)
	for args, want := range map[string]string{
		"capture":                                "capture needs a command",
		"capture add":                            "accepts 1 arg(s), received 0",
		"capture add nowhere":                    `table "nowhere" does not exist`,
		"capture add orders --key x":             `public.orders has no column "x"`,
		"capture add orders --operations upsert": `operation "upsert" is unknown`,
		"capture add outbox_events":              "belongs to PostgreSQL or to an outbox",
	} {
		got := invoke(t, append(strings.Fields(args), databaseFlag(args, url)...)...)
		if got.code != command.ExitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v, want %q", args, got, want)
		}
	}
	got := invoke(t, "capture", "add", "orders", "-o", "json", "--database-url", url)
	var result struct {
		Installed *bool
		SQL       string
	}
	if err := json.Unmarshal([]byte(got.stdout), &result); err != nil || got.code != 0 || result.Installed == nil || *result.Installed || !strings.Contains(result.SQL, "CREATE OR REPLACE TRIGGER") {
		t.Errorf("%+v: %v", got, err)
	}
	if got := invoke(t, "capture", "list", "-o", "json", "--database-url", url); got.code != 0 || strings.TrimSpace(got.stdout) != "[]" {
		t.Errorf("a printed capture is not installed: %+v", got)
	}
	if got := invoke(t, "capture", "add", "orders", "--install", "--database-url", url); got.code != 0 {
		t.Errorf("%+v", got)
	}
	got = invoke(t, "capture", "remove", "orders", "--dry-run", "--database-url", url)
	if got.code != 0 || !strings.Contains(got.stdout, "DROP FUNCTION IF EXISTS") {
		t.Errorf("%+v", got)
	}
	if got := invoke(t, "capture", "list", "--database-url", url); !strings.Contains(got.stdout, "public.orders") {
		t.Errorf("--dry-run has removed it: %+v", got)
	}
}

// databaseFlag returns the flag of a command that connects.
func databaseFlag(args, url string) []string {
	if args == "capture" {
		return nil
	}
	return []string{"--database-url", url}
}
