package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/cmd/internal/command/configuration"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestPlanOfBackfill: plan shows which kept events a new destination of a stream would get, and reload asks before they go
// out.
func TestPlanOfBackfill(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	url := databaseOf(t, "stream")
	text := func(destination string) string {
		to := map[bool]string{true: "[a]", false: "[a, c]"}[destination == ""]

		return fmt.Sprintf("version: 1\ndatabase: {url: %q}\nlog: {format: json}\ndestinations:\n  a: {type: log}\n%sroutes:\n  - {match: 'order.*', to: %s}\n  - {match: 'user.*', to: a}\n",
			url, destination, to)
	}
	old := file(t, text(""))
	p := startProcess(t, "", "run", "-c", old)
	p.stderr.await(t, `"relay started"`)
	for i := range 20 {
		publishTo(t, url, []string{"order.placed", "user.left"}[i%2], order)
	}
	untilPast(t, url, 20, "a")

	plan := func(code int, destination string, want ...string) {
		t.Helper()
		next := file(t, text(destination))
		for _, args := range [][]string{{"--against", old}, nil} {
			r := invoke(t, append([]string{"plan", "-c", next, "--exit-code"}, args...)...)
			if args == nil && code == command.ExitChanges && !strings.Contains(strings.Join(want, ""), "kept") {
				continue // the files differ, and the database knows of nothing
			}
			for _, w := range want {
				if r.code != code || !strings.Contains(r.stdout, w) {
					t.Errorf("%s, %v: no %q in %+v", destination, args, w, r)
				}
			}
		}
	}
	plan(command.ExitChanges, "  c: {type: log, start_from: beginning}\n", "  c begins at event 1: 10 kept events of order.*\n")
	plan(command.ExitChanges, "  c: {type: log, start_from: \"17\"}\n", "  c begins at event 17: 2 kept events of order.*\n")
	plan(command.ExitChanges, "  c: {type: log, start_from: \"2020-01-01T00:00:00Z\"}\n", "  c begins at event 1: 10 kept events of order.*\n")
	plan(command.ExitChanges, "  c: {type: log, start_from: now}\n", "  c begins with the next event\n")
	plan(command.ExitChanges, "  c: {type: log}\n", "  c begins with the next event\n")
	r := invoke(t, "plan", "-c", file(t, text("  c: {type: log, start_from: beginning}\n")), "--scan", "5", "-o", "json")
	var got configuration.Plan
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || !got.Changes || len(got.Begins) != 1 || got.Begins[0].Count != 3 || !got.Begins[0].AtLeast {
		t.Errorf("%v in %+v", err, r)
	}

	// The question comes before a relay is asked.
	testenv.WriteFile(t, old, text("  c: {type: log, output: stderr, start_from: beginning}\n"))
	r = invoke(t, "reload", "-c", old)
	if r.code != command.ExitUsage || !strings.Contains(r.stderr, "c begins at event 1: 10 kept events of order.*: --yes says") || r.stdout != "" {
		t.Errorf("%+v", r)
	}
	if n := query[int](t, url, `SELECT count(*) FROM outbox_positions WHERE destination = 'c'`); n != 0 {
		t.Error("c has begun")
	}
	if r = invoke(t, "reload", "-c", old, "--yes"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	untilPast(t, url, 20, "c")
	if r = invoke(t, "reload", "-c", old); r.code != 0 { // its position counts now
		t.Errorf("%+v", r)
	}

	// A destination that comes back continues at its position.
	without := file(t, text(""))
	testenv.WriteFile(t, old, text(""))
	if r = invoke(t, "reload", "-c", old); r.code != 0 {
		t.Errorf("%+v", r)
	}
	until(t, url, `SELECT owner IS NULL FROM outbox_positions WHERE destination = 'c'`)
	for range 3 {
		publishTo(t, url, "order.placed", order)
	}
	untilPast(t, url, 23, "a")
	execute(t, url, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at, attempts) VALUES (1, 'c', 'order.placed', 'retry', 'infinity', 1)`)
	const continues = "  c continues at its position, event 21: 3 kept events of order.*; waiting deliveries: 1\n"
	r = invoke(t, "plan", "-c", file(t, text("  c: {type: log}\n")), "--against", without)
	if r.code != 0 || !strings.Contains(r.stdout, continues) {
		t.Errorf("%+v", r)
	}
	if r = invoke(t, "plan", "-c", file(t, text("  c: {type: log}\n"))); !strings.Contains(r.stdout, continues) { // no running relay has it
		t.Errorf("%+v", r)
	}

	testenv.WriteFile(t, old, text("  c: {type: log}\n"))
	r = invoke(t, "reload", "-c", old)
	if r.code != command.ExitUsage || !strings.Contains(r.stderr, strings.TrimSpace(continues)+": --yes says") || r.stdout != "" {
		t.Errorf("%+v", r)
	}
	if head := query[int](t, url, `SELECT head FROM outbox_positions WHERE destination = 'c'`); head != 20 {
		t.Errorf("c has continued to %d", head)
	}
	if r = invoke(t, "reload", "-c", old, "--yes"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	untilPast(t, url, 23, "c")
	if r = invoke(t, "reload", "-c", old); r.code != 0 { // a relay has it now
		t.Errorf("%+v", r)
	}
}
