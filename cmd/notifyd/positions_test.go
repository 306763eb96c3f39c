package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// streamed returns a stream with ten events, which mail has received and crm, a destination that is gone, to
// the fourth.
func streamed(t *testing.T) (url string) {
	t.Helper()
	url = testenv.Database(t)
	if got := invoke(t, "migrate", "--mode", "stream", "--database-url", url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	execute(t, url, `INSERT INTO outbox_events (event_type, payload) SELECT 'order.placed', '1' FROM generate_series(1, 10)`)
	execute(t, url, `INSERT INTO outbox_positions (destination, head) VALUES ('', 10), ('mail', 10), ('crm', 4)`)
	execute(t, url, `INSERT INTO outbox_routes (destination, since, patterns, head, handed) VALUES ('mail', 1, '{order.*}', 0, true), ('crm', 1, '{*}', 0, true)`)
	execute(t, url, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (3, 'crm', 'order.placed', 'dead')`)
	return url
}

func TestPositions(t *testing.T) {
	t.Parallel()
	url := streamed(t)
	typed := func(line string) result {
		t.Helper()
		return invoke(t, append(append([]string{"positions"}, strings.Fields(line)...), "--database-url", url)...)
	}
	for _, step := range []struct {
		line string
		want result
	}{
		{"seek mail", result{64, "", "notifyd: accepts 2 arg(s), received 1\n"}},
		{"seek mail yesterday", result{64, "", "notifyd: invalid argument: \"yesterday\": use beginning, now, the id of an event, or a time such as 2026-11-01T00:00:00Z\n"}},
		{"seek mail 12", result{64, "", "notifyd: move a position: invalid argument: id 12 is not assigned yet: the last one is 10\n"}},
		{"seek post now", result{1, "", "notifyd: move a position: \"post\": no such position: there are those of crm, mail\n"}},
		{"show post", result{1, "", "notifyd: show a position: \"post\": no such position: there are those of crm, mail\n"}},
		{"seek mail 3 --dry-run", result{0, "mail would continue above id 2: what it has received since, up to id 10, comes again\n", ""}},
		{"seek mail 3", result{64, "", "notifyd: mail will continue above id 2: what it has received since, up to id 10, comes again: --yes says that this is to be done, --dry-run shows it\n"}},
		{"seek mail 3 --yes", result{0, "mail continues above id 2: what it has received since, up to id 10, comes again\n", "the relay that has the destination goes on from there within about a second"}},
		{"seek mail now --yes", result{0, "mail continues above id 10: ids 3 to 10 are skipped\n", "the relay that has the destination goes on from there within about a second"}},
		{"forget crm --dry-run", result{0, "would remove the position of crm (head 4) and its 1 stored deliveries\n", ""}},
		{"forget crm --yes --actor ann", result{0, "removed the position of crm (head 4) and its 1 stored deliveries\n", ""}},
		{"forget crm --yes", result{1, "", "notifyd: forget a position: \"crm\": no such position: there are those of mail\n"}},
	} {
		got := typed(step.line)
		if got.code != step.want.code || got.stdout != step.want.stdout || !strings.HasPrefix(got.stderr, step.want.stderr) || (step.want.stderr == "") != (got.stderr == "") {
			t.Errorf("positions %s: got %+v, want %+v", step.line, got, step.want)
		}
	}
	if got := query[string](t, url, `SELECT string_agg(concat_ws(' ', action, destination, actor = 'ann'), ', ' ORDER BY id) FROM outbox_audit`); got != "seek mail f, seek mail f, forget crm t" {
		t.Errorf("audit: %s", got)
	}
}

func TestPositionsPrints(t *testing.T) {
	t.Parallel()
	url := streamed(t)
	got := invoke(t, "positions", "list", "--database-url", url)
	lines := strings.Split(got.stdout, "\n")
	if got.code != 0 || len(lines) != 5 || !strings.HasPrefix(lines[0], "DESTINATION ") || !strings.HasPrefix(lines[1], "(unrouted scanner)  10    0 ") ||
		!strings.HasPrefix(lines[2], "crm                 4     6 ") || !strings.HasSuffix(lines[2], "  held   none") || !strings.HasSuffix(lines[3], "  -      none") {
		t.Errorf("list: %+v", got)
	}
	var all []observe.Position
	got = invoke(t, "positions", "list", "-o", "json", "--database-url", url)
	if err := json.Unmarshal([]byte(got.stdout), &all); err != nil || len(all) != 3 || all[1].Lag != 6 || !all[1].HoldsBack {
		t.Errorf("list: %+v, %v", got, err)
	}
	if n := query[int64](t, url, `UPDATE outbox_positions SET sealed = 1 WHERE destination = 'mail' RETURNING sealed`); n != 1 {
		t.Fatal(n)
	}
	if got := invoke(t, "positions", "list", "--database-url", url); got.code != 0 || !strings.Contains(got.stdout, "\nmail keeps a copy of its position (exactly_once)") {
		t.Errorf("list: %+v", got)
	}
	got = invoke(t, "positions", "show", "mail", "--database-url", url)
	for _, want := range []string{"\nmail         10 ", "\nevents      1 to 10\n", "\nroutes      from 1 on: order.*\n"} {
		if got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("show lacks %q: %+v", want, got)
		}
	}
	var one ops.PositionDetails
	got = invoke(t, "positions", "show", "mail", "-o", "json", "--database-url", url)
	if err := json.Unmarshal([]byte(got.stdout), &one); err != nil || one.Last != 10 || len(one.Parts) != 1 {
		t.Errorf("show: %+v, %v", got, err)
	}
	plain := testenv.Database(t)
	if got := invoke(t, "migrate", "--database-url", plain); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := invoke(t, "positions", "list", "--database-url", plain); got.code != 1 ||
		got.stderr != "notifyd: list positions: only a stream has positions, and outbox_events is a queue; notifyd migrate --mode stream makes it one\n" {
		t.Errorf("of a queue: %+v", got)
	}
}
