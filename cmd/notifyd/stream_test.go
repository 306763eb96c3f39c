package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// given returns the ids that a log destination was given, in their order.
func given(t *testing.T, text, destination string) (ids []int64) {
	t.Helper()
	for line := range strings.Lines(text) {
		var e struct {
			EventID     int64 `json:"event_id"`
			Destination string
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if e.Destination == destination {
			ids = append(ids, e.EventID)
		}
	}
	return ids
}

// expect fails unless a destination was given these events, in this order.
func (r *reloadable) expect(t *testing.T, destination string, want ...int64) {
	t.Helper()
	if got := given(t, r.stdout.text(), destination); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s was given %v, want %v", destination, got, want)
	}
}

// TestStreamReload: a type that gets its route by a reload is handed to its destination
// before what is written afterwards; a destination that is new begins now; one that is
// taken out goes on where it was when it is back.
func TestStreamReload(t *testing.T) {
	t.Parallel()
	url := databaseOf(t, "stream")
	const head = "version: 1\ndatabase: {url: '%s'}\nlog: {format: json}\n"
	write := func(eventType string) { publishTo(t, url, eventType, "{}", "--aggregate", "thing/1") }
	generation := 0
	r := startReloadable(t, nil, fmt.Sprintf(head+`destinations: {audit: {type: log}, other: {type: log}}
routes: [{match: order.*, to: [audit, other]}]
`, url))
	reload := func(text string) {
		t.Helper()
		generation++
		r.write(t, fmt.Sprintf(head+text, url))
		r.reloads <- struct{}{}
		r.stderr.awaitN(t, saidDelivers, generation)
	}

	write("order.placed") // 1
	write("user.created") // 2
	write("user.created") // 3
	until(t, url, `SELECT count(*) = 2 FROM outbox_deliveries WHERE state = 'unrouted'`)
	untilPast(t, url, 3, "audit", "other")
	reload(`destinations: {audit: {type: log}, late: {type: log}}
routes: [{match: order.*, to: [audit, late]}, {match: user.*, to: audit}]
`)
	write("user.created") // 4
	write("order.placed") // 5
	untilPast(t, url, 5, "audit", "late")
	until(t, url, `SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
	r.expect(t, "audit", 1, 2, 3, 4, 5)
	r.expect(t, "late", 5)
	r.expect(t, "other", 1)

	reload(`destinations: {audit: {type: log}, other: {type: log}}
routes: [{match: order.*, to: [audit, other]}, {match: user.*, to: audit}]
`)
	write("order.placed") // 6
	untilPast(t, url, 6, "audit", "other")
	r.expect(t, "audit", 1, 2, 3, 4, 5, 6)
	r.expect(t, "other", 1, 5, 6)
	if code := r.end(t); code != command.ExitOK {
		t.Errorf("exit code %d:\n%s", code, r.stderr.text())
	}
}

// untilPast waits until the positions of destinations are past an event.
func untilPast(t *testing.T, url string, id int64, destinations ...string) {
	t.Helper()
	until(t, url, `SELECT count(*) = cardinality($2::text[]) FROM outbox_positions WHERE destination = ANY($2) AND head >= $1 AND isempty(open)`, id, destinations)
}

// TestStreamPause: what is written for a destination that is paused stays where it is,
// without a row, and others go on.
func TestStreamPause(t *testing.T) {
	t.Parallel()
	url := databaseOf(t, "stream")
	p := startPausable(t, url)
	publishTo(t, url, "order.placed", "{}")
	untilPast(t, url, 1, "audit", "other")
	p.press("pause")
	for range 3 {
		publishTo(t, url, "order.placed", "{}")
	}
	untilPast(t, url, 4, "other")
	p.expect(t, "audit", 1)
	if n := query[int](t, url, `SELECT count(*)::int FROM outbox_deliveries`); n != 0 {
		t.Errorf("%d rows", n)
	}
	p.press("resume")
	untilPast(t, url, 4, "audit", "other")
	p.expect(t, "audit", 1, 2, 3, 4)
	p.expect(t, "other", 1, 2, 3, 4)
}

// TestStreamKeepsNothing: with "keep: 0" an event goes once it is delivered to all destinations.
func TestStreamKeepsNothing(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	url := databaseOf(t, "stream")
	publishTo(t, url, "order.placed", "{}")
	publishTo(t, url, "order.placed", "{}")
	startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\nretention: {keep: 0}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n", url)))
	until(t, url, `SELECT NOT EXISTS (SELECT FROM outbox_events)`)
	if n := query[int64](t, url, `SELECT delivered FROM outbox_positions WHERE destination = 'audit'`); n != 2 {
		t.Errorf("%d events were delivered", n)
	}
}
