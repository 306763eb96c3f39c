package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/ops"
)

// buried makes a database with n dead letters of mail, events 1 to n.
func buried(t *testing.T, n int) string {
	t.Helper()
	url := database(t)
	execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (event_type, payload, state, processed_at) SELECT 'order.placed', '{"a": 1}', 'done', now() FROM generate_series(1, %d);
		INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, error_class, last_error)
		SELECT id, 'mail', event_type, 'dead', 3, 'event', 'order ' || id || E' is\x1b[31m bad\nvery' FROM outbox_events`, n))
	return url
}

func states(t *testing.T, url string) string {
	t.Helper()
	return query[string](t, url, `SELECT coalesce(string_agg(format('%s %s', event_id, state), ', ' ORDER BY event_id), '') FROM outbox_deliveries`)
}

func TestDLQAsks(t *testing.T) {
	t.Parallel()
	url := buried(t, 3)
	for args, want := range map[string]result{
		"replay":                       {64, "", "notifyd: which dead letters? Name events"},
		"discard --dry-run":            {64, "", "notifyd: which dead letters? Name events"},
		"replay --all --type a":        {64, "", "notifyd: --all and a choice of dead letters"},
		"replay --all":                 {64, "", "notifyd: 3 dead letters match: --yes if they are to be replayed, --dry-run shows them\n"},
		"discard --destination mail":   {64, "", "notifyd: 3 dead letters match: --yes"},
		"replay x":                     {64, "", `notifyd: EVENT "x" is not the id of an event`},
		"replay 77":                    {1, "", "notifyd: no dead letter of these events matches"},
		"replay 1 --destination log":   {1, "", "notifyd: no dead letter of these events matches"},
		"replay --rate -1 1":           {64, "", "notifyd: invalid argument: a rate of -1 per second"},
		"replay --batch 0x 1":          {64, "", `notifyd: invalid argument "0x" for "--batch"`},
		"replay --timeout 0s --wait 1": {64, "", `notifyd: invalid argument "0s" for "--timeout" flag: must be longer than 0`},
		"replay --batch 100000 1":      {64, "", "notifyd: invalid argument: a batch of 100000"},
		"list --fingerprint XYZ":       {64, "", "notifyd: invalid argument: a fingerprint has twelve hexadecimal digits"},
		"list --type a*b":              {64, "", "notifyd: invalid argument: event type: invalid pattern"},
		"list --until 2d --since 1d":   {64, "", "notifyd: invalid argument: nothing is both older than 48h"},
		"list --until 2026-01-01T00:00:00Z --since 2026-01-02T00:00:00Z": {64, "", "notifyd: invalid argument: nothing is both since 2026-01-02T00:00:00Z and until"},
		"list --until -1s":                       {64, "", `notifyd: invalid argument "-1s" for "--until" flag: not a time: write 2026-11-01T00:00:00Z, or an age`},
		"list --after x":                         {64, "", `notifyd: --after "x" is not DESTINATION/EVENT`},
		"list --limit 0":                         {64, "", "notifyd: invalid argument: a limit of 0 is not between 1 and 10000"},
		"list -o yaml":                           {64, "", `notifyd: invalid argument "yaml" for "-o, --output" flag: must be one of table, json`},
		"list --group --after mail/1":            {64, "", "notifyd: if any flags in the group [group after] are set none of the others can be"},
		"show":                                   {64, "", "notifyd: accepts 1 arg(s), received 0"},
		"show 77":                                {1, "", "notifyd: show event 77: there is no such event\n"},
		"edit 1 {":                               {64, "", "notifyd: PAYLOAD is not JSON"},
		"edit 77 {}":                             {1, "", "notifyd: edit event 77: no delivery of it is dead: not a dead letter\n"},
		"edit 1 @/not/there":                     {1, "", "notifyd: open /not/there"},
		"list --schema none":                     {1, "", "notifyd: schema \"none\" has no tables of notifyd"},
		"replay --type nothing.*":                {0, "no dead letters match\n", ""},
		"list --destination log":                 {0, "no dead letters\n", ""},
		"list --group --destination log":         {0, "no dead letters\n", ""},
		"replay --type nothing.* -o json":        {0, "{\n  \"matched\": 0,\n  \"done\": 0,\n  \"orphans\": 0\n}\n", ""},
		"discard --type no.* --dry-run -o json":  {0, "{\n  \"matched\": 0,\n  \"done\": 0,\n  \"orphans\": 0,\n  \"groups\": []\n}\n", ""},
		"list --destination log -o json":         {0, "{\n  \"letters\": []\n}\n", ""},
		"list --group --destination log -o json": {0, "{\n  \"groups\": []\n}\n", ""},
	} {
		got := invoke(t, append(append([]string{"dlq"}, strings.Fields(args)...), "--database-url", url)...)
		if got.code != want.code || got.stdout != want.stdout || !strings.HasPrefix(got.stderr, want.stderr) || (want.stderr == "") != (got.stderr == "") {
			t.Errorf("dlq %s: got %+v, want %+v", args, got, want)
		}
	}
	if got := states(t, url); got != "1 dead, 2 dead, 3 dead" {
		t.Errorf("after all that: %s", got)
	}
	if got := invoke(t, "dlq", "list", "--database-url", testenv.Database(t)); got.code != 1 || !strings.Contains(got.stderr, "run `notifyd migrate`") {
		t.Errorf("without tables: %+v", got)
	}
}

func TestDLQActs(t *testing.T) {
	t.Parallel()
	url := buried(t, 6)
	run := func(want result, args ...string) {
		t.Helper()
		if got := invoke(t, append(append([]string{"dlq"}, args...), "--database-url", url)...); got != want {
			t.Errorf("%q: got %+v, want %+v", args, got, want)
		}
	}
	const look = "due now; to see the outcome: --wait, or `notifyd events list --state waiting`, `notifyd dlq list --group`\n"
	run(result{0, "replayed 2 of 2 dead letters\n", look}, "replay", "1", "2", "--actor", "ann", "--reason", "fixed")
	run(result{0, "discarded 1 of 1 dead letter\n", ""}, "discard", "3")
	run(result{0, "discarded 1 of 1 dead letter\n", ""}, "discard", "4", "--forget")
	execute(t, url, "DELETE FROM outbox_events WHERE id = 5")
	run(result{0, "replayed 1 of 2 dead letters; 1 left alone, because the event is missing: discard them if it was deleted\n", look}, "replay", "--all", "--yes")
	run(result{0, "no dead letters match\n", ""}, "discard", "--missing", "--destination", "none")
	run(result{0, "discarded 1 of 1 dead letter\n", ""}, "discard", "--missing")
	if got := states(t, url); got != "1 retry, 2 retry, 6 retry" {
		t.Errorf("deliveries %s", got)
	}
	if got := query[string](t, url, `SELECT string_agg(format('%s %s', id, state), ', ' ORDER BY id) FROM outbox_events`); got != "1 deferred, 2 deferred, 3 done, 6 deferred" {
		t.Errorf("events %s", got)
	}
	if got := query[string](t, url, `SELECT string_agg(concat_ws(' ', action, event_id, details->>'reason'), ', ' ORDER BY id) FROM outbox_audit WHERE actor = 'ann'`); got != "replay 1 fixed, replay 2 fixed" {
		t.Errorf("audit of ann: %s", got)
	}
	if n := query[int](t, url, `SELECT count(*)::int FROM outbox_audit WHERE actor LIKE '%@%'`); n != 4 {
		t.Errorf("%d entries of others", n)
	}
}

// TestDLQAges chooses some of several dead letters by when they died.
func TestDLQAges(t *testing.T) {
	t.Parallel()
	url := buried(t, 4)
	execute(t, url, `UPDATE outbox_deliveries SET updated_at = now() - CASE WHEN event_id < 3 THEN interval '3 days' ELSE interval '5 hours' END WHERE event_id < 4`)
	before := time.Now().Add(-24 * time.Hour).Format(time.RFC3339)
	for args, want := range map[string][]int64{
		"--until 2d":               {1, 2},
		"--until 2h":               {1, 2, 3},
		"--since 2h":               {4},
		"--since 2d":               {3, 4},
		"--until 120m --since 48h": {3},
		"--until " + before:        {1, 2},
		"--since " + before:        {3, 4},
	} {
		got := invoke(t, append(append([]string{"dlq", "list", "-o", "json"}, strings.Fields(args)...), "--database-url", url)...)
		var page ops.DeadLetterPage
		var ids []int64
		err := json.Unmarshal([]byte(got.stdout), &page)
		for _, l := range page.Letters {
			ids = append(ids, l.EventID)
		}
		if err != nil || !slices.Equal(ids, want) {
			t.Errorf("list %s: %+v, %v, want %v", args, got, err, want)
		}
		for _, do := range []string{"replay", "discard"} {
			got := invoke(t, append(append([]string{"dlq", do, "--dry-run", "-o", "json"}, strings.Fields(args)...), "--database-url", url)...)
			var r struct {
				ops.BulkResult
				Groups []ops.DeadLetterGroup
			}
			n := int64(len(want))
			if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || r.BulkResult != (ops.BulkResult{Matched: n}) || len(r.Groups) != 1 ||
				r.Groups[0].Count != n || r.Groups[0].Destination != "mail" || r.Groups[0].Example.EventID != want[n-1] {
				t.Errorf("%s %s: %+v, %v", do, args, got, err)
			}
		}
	}
	for _, args := range []string{"replay --since 2h", "discard --until 2d --yes"} {
		if got := invoke(t, append(append([]string{"dlq"}, strings.Fields(args)...), "--database-url", url)...); got.code != 0 {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if got := states(t, url); got != "3 dead, 4 retry" {
		t.Errorf("deliveries %s", got)
	}
}

// TestDLQRetention: where the file says that nothing is kept, nothing is.
func TestDLQRetention(t *testing.T) {
	t.Parallel()
	url := buried(t, 2)
	path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\nretention: {keep: 0}\ndestinations: {mail: {type: email, password: '${env:MISSING}'}}\n", url))
	if got := invoke(t, "dlq", "discard", "1", "-c", path); got != (result{0, "discarded 1 of 1 dead letter\n", ""}) {
		t.Errorf("%+v", got)
	}
	if got := query[string](t, url, `SELECT string_agg(id::text, ' ') FROM outbox_events`); got != "2" {
		t.Errorf("events %s are left", got)
	}
	broken := file(t, "version: 1\ndatabase: {url: '${env:MISSING}'}\n")
	if got := invoke(t, "dlq", "list", "-c", broken); got.code != 78 || !strings.Contains(got.stderr, "MISSING is not set") {
		t.Errorf("%+v", got)
	}
}

func TestDLQPrints(t *testing.T) {
	t.Parallel()
	url := buried(t, 3)
	got := invoke(t, "dlq", "list", "--limit", "2", "--database-url", url)
	if lines := strings.Split(got.stdout, "\n"); got.code != 0 || len(lines) != 4 || !strings.HasSuffix(lines[2], "order 2 is\uFFFD[31m bad very") ||
		got.stderr != "there are more: --after 'mail/2'\n" {
		t.Errorf("a page: %+v", got)
	}
	got = invoke(t, "dlq", "list", "--after", "mail/2", "-o", "json", "--database-url", url)
	var page struct {
		Letters []ops.DeadLetter
		Next    string
	}
	if err := json.Unmarshal([]byte(got.stdout), &page); err != nil || len(page.Letters) != 1 || page.Letters[0].EventID != 3 || page.Next != "" ||
		page.Letters[0].Error != "order 3 is\x1b[31m bad\nvery" {
		t.Errorf("the last page: %+v, %v", got, err)
	}
	got = invoke(t, "dlq", "list", "--limit", "2", "-o", "json", "--database-url", url)
	if err := json.Unmarshal([]byte(got.stdout), &page); err != nil || page.Next != "mail/2" || got.stderr != "" {
		t.Errorf("the first page: %+v, %v", got, err)
	}
	got = invoke(t, "dlq", "edit", "3", `{"n":  1.0}`, "-o", "json", "--database-url", url)
	if got != (result{0, "{\n  \"event_id\": 3\n}\n", ""}) {
		t.Errorf("edit: %+v", got)
	}
	got = invoke(t, "dlq", "show", "3", "-o", "json", "--database-url", url)
	var c ops.Case
	if err := json.Unmarshal([]byte(got.stdout), &c); err != nil || len(c.Audit) != 1 || c.Event.State != "dead" || len(c.Deliveries) != 1 {
		t.Errorf("show: %+v, %v", got, err)
	}
	got = invoke(t, "dlq", "show", "3", "--database-url", url)
	for _, want := range []string{
		"event 3, order.placed, dead, written ", "  payload {\"n\":  1.0}\n", "mail: dead, given up ", "Z after 3 attempts\n", "every other destination that it was routed to has received it, or passed it over (expires_after, when), by ",
		"  order 3 is\uFFFD[31m bad\n  very\n", " edit by ", "  the payload was {\"a\": 1}\n",
	} {
		if !strings.Contains(got.stdout, want) || got.code != 0 {
			t.Errorf("show: %q is missing in\n%s", want, got.stdout)
		}
	}
	if strings.Contains(got.stdout, "\x1b") {
		t.Error("the error talks to the terminal")
	}
}

// TestDLQEditFromFile and from standard input, byte for byte.
func TestDLQEditFromFile(t *testing.T) {
	t.Parallel()
	url := buried(t, 1)
	path := filepath.Join(t.TempDir(), "order.json")
	if err := os.WriteFile(path, []byte("{\"from\":  \"file\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := invoke(t, "dlq", "edit", "1", "@"+path, "--database-url", url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := query[string](t, url, "SELECT payload::text FROM outbox_events"); got != "{\"from\":  \"file\"}\n" {
		t.Errorf("payload %q", got)
	}
	p := startProcess(t, `{"from": "stdin"}`, "dlq", "edit", "1", "-", "--database-url", url)
	if code := p.wait(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr.text())
	}
	if got := query[string](t, url, "SELECT payload::text FROM outbox_events"); got != `{"from": "stdin"}` {
		t.Errorf("payload %q", got)
	}
}

// TestDLQBytes: the bytes of a dead letter are shown as far as people can read them, and replaced from a file.
func TestDLQBytes(t *testing.T) {
	t.Parallel()
	url := buried(t, 1)
	execute(t, url, `UPDATE outbox_events SET payload = NULL, payload_bytes = '\x001b'`)
	if got := invoke(t, "dlq", "edit", "1", "@"+file(t, "\x01\x02\xff"), "--database-url", url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := query[string](t, url, "SELECT encode(payload_bytes, 'hex') FROM outbox_events WHERE payload IS NULL"); got != "0102ff" {
		t.Errorf("payload %s", got)
	}
	got := invoke(t, "dlq", "show", "1", "--database-url", url)
	for _, want := range []string{
		"  content type application/octet-stream\n  payload 3 bytes\n    00000000  01 02 ff  ", "  the payload was 2 bytes\n    00000000  00 1b  ",
	} {
		if !strings.Contains(got.stdout, want) || got.code != 0 {
			t.Errorf("%q is missing in\n%s", want, got.stdout)
		}
	}
	for _, args := range [][]string{{"dlq", "show", "1"}, {"events", "show", "1", "--payload"}} {
		got := invoke(t, append(args, "-o", "json", "--database-url", url)...)
		if !strings.Contains(got.stdout, `"payload_bytes": "AQL/"`) || strings.Contains(got.stdout, `"payload":`) {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := invoke(t, "events", "show", "1", "--database-url", url); strings.Contains(got.stdout, "bytes") || strings.Contains(got.stdout, "octet") {
		t.Errorf("without its payload: %+v", got)
	}
}

// TestDLQInterrupted stops a slow replay, which says how far it has come.
func TestDLQInterrupted(t *testing.T) {
	t.Parallel()
	url := buried(t, 5)
	p := startProcess(t, "", "dlq", "replay", "--all", "--yes", "--rate", "0.001", "--database-url", url)
	until(t, url, "SELECT EXISTS (SELECT FROM outbox_audit)")
	p.signal(t, os.Interrupt)
	if code := p.wait(t); code != 1 || p.stdout.text() != "replayed 1 of 5 dead letters\n" || !strings.Contains(p.stderr.text(), "notifyd: interrupted") {
		t.Errorf("exit code %d: %s%s", code, p.stdout.text(), p.stderr.text())
	}
	if got := states(t, url); got != "1 retry, 2 dead, 3 dead, 4 dead, 5 dead" {
		t.Errorf("deliveries %s", got)
	}
}
