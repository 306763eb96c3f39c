package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestQueueKeepsNoOrder: what only a stream keeps is refused where the table is a queue,
// with the place and the cure, and taken where it is a stream.
func TestQueueKeepsNoOrder(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	url := testenv.Database(t)
	configText := func(setting string) string {
		return fmt.Sprintf(`version: 1
database: {url: '%s'}
admin: {listen: ''}
destinations:
  crm: {type: webhook, url: 'http://127.0.0.1:1/', %s}
routes: [{match: '*', to: [crm]}]
`, url, setting)
	}
	config := func(setting string) string { return file(t, configText(setting)) }
	if got := invoke(t, "migrate", "--database-url", url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	for _, setting := range []string{"order: aggregate", "order: total", "on_dead: block", "shards: 4"} {
		path := config(setting)
		_, value, _ := strings.Cut(setting, ": ")
		at := placed(path, configText(setting), value+"}")
		place := at + ": destinations.crm." + setting
		if got := invoke(t, "check-config", "-c", path); got.code != 0 || !strings.Contains(got.stderr, place+" needs a table that is a stream") {
			t.Errorf("check-config, %s: %+v", setting, got)
		}
		for _, args := range [][]string{{"check-config", "--online"}, {"plan"}, {"run"}} {
			got := invoke(t, append(args, "-c", path)...)
			want := place + ": outbox_events of schema \\\"public\\\" is a queue: only a stream"
			if args[0] != "run" {
				want = strings.ReplaceAll(want, `\`, "")
			}
			if got.code != command.ExitConfig || !strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, "notifyd migrate --mode stream") {
				t.Errorf("%v, %s: %+v", args, setting, got)
			}
		}
	}
	for _, setting := range []string{"order: auto", "order: none", "shards: 1", "priority: 7"} {
		if got := invoke(t, "check-config", "--online", "-c", config(setting)); got.code != 0 || got.stderr != "" {
			t.Errorf("%s on a queue: %+v", setting, got)
		}
	}
	if got := invoke(t, "migrate", "--mode", "stream", "-c", config("order: aggregate")); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	for _, setting := range []string{"order: auto", "order: none", "order: aggregate", "order: total", "on_dead: block", "shards: 4", "priority: 7"} {
		for _, args := range [][]string{{"check-config", "--online"}, {"plan"}} {
			if got := invoke(t, append(args, "-c", config(setting))...); got.code != 0 {
				t.Errorf("%v, %s on a stream: %+v", args, setting, got)
			}
		}
	}

	// The reverse: a stream ignores what only a queue has.
	path := config("priority: 7")
	want := placed(path, configText("priority: 7"), "7}") + ": warning: destinations.crm.priority: has no effect in a stream\n"
	if got := invoke(t, "check-config", "--online", "-c", path); got.stderr != want {
		t.Errorf("a priority in a stream:\ngot  %+v\nwant %s", got, want)
	}
	if got := invoke(t, "check-config", "--online", "-c", config("order: total")); got.stderr != "" {
		t.Errorf("no priority in a stream: %+v", got)
	}
}
