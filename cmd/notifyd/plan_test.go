package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command/configuration"

	"github.com/notifyd/notifyd/cmd/internal/command"
)

const planRest = `destinations:
  audit: {type: log}
  hook: {type: webhook, url: "https://example.com/a", bearer_token: marker-old}
  mail: {type: log}
routes:
  - {match: order.placed, to: [audit, mail]}
  - {match: "bill.*", to: hook}
  - {match: "old.*", to: audit}
`

const planNext = `relay: {batch: 50}
admin: {listen: 127.0.0.1:9470}
destinations:
  audit: {type: log, concurrency: 2}
  hook: {type: webhook, url: "https://example.com/a", bearer_token: marker-new}
  queue: {type: log}
routes:
  - {match: order.placed, to: [audit]}
  - {match: "bill.*", to: [hook, queue]}
  - {match: new, to: queue}
`

func planFiles(t *testing.T, url string) (old, next string) {
	t.Helper()
	head := fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\n", url)
	return file(t, head+planRest), file(t, head+planNext)
}

// TestPlan compares two files, and the waiting events of the database.
func TestPlan(t *testing.T) {
	t.Parallel()
	url := database(t)
	old, next := planFiles(t, url)
	execute(t, url, `INSERT INTO outbox_events (event_type, payload) SELECT t, '1' FROM unnest(ARRAY['order.placed','order.placed','bill.paid','old.thing']) t;
		INSERT INTO outbox_events (event_type, payload, state) SELECT 'x', '1', 'deferred' FROM generate_series(1, 9);
		INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, lease_owner, lease_token, lease_until) VALUES
			(5, 'mail', 'order.placed', 'retry', NULL,NULL,NULL,NULL), (6, 'mail', 'order.placed', 'dead', NULL,NULL,NULL,NULL),
			(7, 'mail', 'order.placed', 'parked', 'k', NULL,NULL,NULL), (8, 'mail', 'order.placed', 'running', NULL, 1, 1, now()),
			(9, 'audit', 'order.placed', 'retry', NULL,NULL,NULL,NULL), (10, '', 'new', 'unrouted', NULL,NULL,NULL,NULL),
			(11, '', 'never', 'unrouted', NULL,NULL,NULL,NULL), (12, '', 'order.placed', 'retry', NULL,NULL,NULL,NULL)`)
	got := invoke(t, "plan", "-c", next, "--against", old)
	const want = `destinations
  ~ audit (log)
      concurrency: 8 -> 2
  ~ hook (webhook)
      bearer_token: changed, not shown
  - mail (log)
  + queue (log)
routes
  ~ order.placed: audit, mail -> audit
  ~ bill.*: hook -> hook, queue
  - old.*: audit
  + new: queue
settings
  ~ relay.batch: 1000 -> 50
  ~ admin.listen: (none) -> 127.0.0.1:9470 (needs a restart)
patterns that have no route any more
  old.*
waiting events that would go elsewhere
TYPE          STATE     COUNT  FROM         TO
bill.paid     fresh     1      hook         hook, queue
new           unrouted  1      -            queue
order.placed  fresh     2      audit, mail  audit
order.placed  delayed   1      audit, mail  audit
waiting events without a route
TYPE       STATE     COUNT
never      unrouted  1
old.thing  fresh     1
deliveries for destinations that are not there
DESTINATION  TYPE          STATE    COUNT
mail         order.placed  dead     1
mail         order.placed  parked   1
mail         order.placed  retry    1
mail         order.placed  running  1
`
	if got != (result{0, want, ""}) {
		t.Errorf("got %d %s\n%s\nwant\n%s", got.code, got.stderr, got.stdout, want)
	}
	if got := invoke(t, "plan", "-c", next, "--against", old, "--scan", "1"); !strings.Contains(got.stdout, "1 or more") {
		t.Errorf("%+v", got)
	}

	got = invoke(t, "plan", "-c", next, "--against", old, "-o", "json", "--exit-code")
	var p configuration.Plan
	if err := json.Unmarshal([]byte(got.stdout), &p); err != nil || got.code != command.ExitChanges || got.stderr != "" {
		t.Fatalf("%v %+v", err, got)
	}
	if len(p.Moves) != 4 || len(p.Unrouted) != 2 || len(p.Gone) != 4 || len(p.Configuration.Destinations) != 4 || len(p.Restart) != 1 || strings.Contains(got.stdout, "marker") {
		t.Errorf("%+v", p)
	}

	// Against itself a file changes nothing, whatever waits.
	if got = invoke(t, "plan", "-c", next, "--against", next, "--exit-code"); got.code != 0 || !strings.HasPrefix(got.stdout, "no changes\n") || strings.Contains(got.stdout, "elsewhere") || !strings.Contains(got.stdout, "without a route") {
		t.Errorf("%+v", got)
	}

	// The other way round, mail comes back: what waits for it goes out.
	got = invoke(t, "plan", "-c", old, "--against", next)
	const back = "deliveries for destinations that come back\nDESTINATION  TYPE          STATE    COUNT\nmail         order.placed  parked   1\nmail         order.placed  retry    1\nmail         order.placed  running  1\n"
	if got.code != 0 || !strings.HasSuffix(got.stdout, back) {
		t.Errorf("%+v", got)
	}

	got = invoke(t, "plan", "-c", next) // what the database alone can tell
	if got.code != 0 || strings.Contains(got.stdout, "settings") || !strings.Contains(got.stdout, "old.thing") || !strings.Contains(got.stdout, "new   unrouted") {
		t.Errorf("%+v", got)
	}
}

func TestPlanExit(t *testing.T) {
	t.Parallel()
	old, next := planFiles(t, "postgres://u:marker@127.0.0.1:1/none")
	offline := []string{"plan", "--against", old, "--offline", "--exit-code", "-c"}
	if got := invoke(t, append(offline, old)...); got != (result{0, "no changes\n", ""}) {
		t.Errorf("%+v", got)
	}
	if got := invoke(t, append(offline, next)...); got.code != command.ExitChanges || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-c", next}, 1, "start the server"},
		{[]string{"-c", next, "--offline"}, command.ExitUsage, "--against"},
		{[]string{"-c", next, "--scan", "0"}, command.ExitUsage, "--scan"},
		{[]string{"-c", next, "--against", "/not/there", "--offline"}, 78, "/not/there: cannot be read"},
		{[]string{"-c", file(t, "version: 1\nx: 1\n"), "--against", old, "--offline"}, 78, ":2:1: unknown key"},
	} {
		if got := invoke(t, append([]string{"plan"}, c.args...)...); got.code != c.code || !strings.Contains(got.stderr, c.want) || strings.Contains(got.stderr, "marker") {
			t.Errorf("%v: %+v", c.args, got)
		}
	}
}

// TestPlanOfStream: what waits is above the positions, and a destination that goes leaves
// its position behind.
func TestPlanOfStream(t *testing.T) {
	t.Parallel()
	url := database(t)
	old, next := planFiles(t, url)
	becomeStream(t, url, true)
	execute(t, url, `DELETE FROM outbox_positions;
		INSERT INTO outbox_events (event_type, payload) SELECT t, '1' FROM unnest(ARRAY['order.placed','order.placed','bill.paid','old.thing','new']) t;
		INSERT INTO outbox_positions (destination, head, open) SELECT d, min(id) + 2, int8multirange(int8range(min(id), min(id) + 1)) FROM outbox_events, unnest(ARRAY['', 'audit', 'mail']) d GROUP BY d`)
	got := invoke(t, "plan", "-c", next, "--against", old)
	_, waiting, _ := strings.Cut(got.stdout, "waiting events")
	const want = ` that would go elsewhere
TYPE          STATE  COUNT  FROM         TO
new           fresh  1      -            queue
order.placed  fresh  1      audit, mail  audit
waiting events without a route
TYPE       STATE  COUNT
old.thing  fresh  1
deliveries for destinations that are not there
DESTINATION  TYPE  STATE     COUNT
mail         *     position  3
`
	if got.code != 0 || waiting != want {
		t.Errorf("got %d %s\n%s\nwant\n%s", got.code, got.stderr, waiting, want)
	}
}
