package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command/positions"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestReplay(t *testing.T) {
	t.Parallel()
	url := streamed(t)
	execute(t, url, `INSERT INTO outbox_events (event_type, payload) SELECT 'order.paid', '1' FROM generate_series(1, 3)`)
	execute(t, url, `UPDATE outbox_positions SET head = 13 WHERE destination = 'mail'`)
	typed := func(line string) result {
		t.Helper()
		return invoke(t, append(append([]string{"replay"}, strings.Fields(line)...), "--database-url", url)...)
	}
	for _, step := range []struct {
		line string
		want result
	}{
		{"", result{64, "", "notifyd: which destination? Say --destination; "}},
		{"--destination post", result{1, "", "notifyd: replay: \"post\": no such position: there are those of crm, mail\n"}},
		{"--destination mail --from yesterday", result{64, "", "notifyd: invalid argument: from \"yesterday\": use beginning, "}},
		{"--destination mail --type order.*.x", result{64, "", "notifyd: invalid argument: "}},
		{"--destination crm --from 5", result{1, "", "notifyd: replay: nothing to replay: events are kept from 1 on, and crm has received them up to 4\n"}},
		{"--destination mail --from 4 --dry-run", result{0, "TYPE          EVENTS\norder.placed  7\norder.paid    3\nmail would receive 10 events again, ids 4 to 13; nothing was done\n", ""}},
		{"--destination mail --from 4 --type order.paid", result{64, "", "notifyd: mail will receive 3 events again, ids 4 to 13: --yes says that this is to be done, --dry-run shows it\n"}},
		{"--destination mail --from 4 --to 12 --rate 50 --yes --actor ann --reason lost", result{0, "replay 1: mail receives events 4 to 12 again with the ids 4r1000 and so on; `notifyd replay show 1` says how far it has come\n", ""}},
		{"--destination mail --yes", result{1, "", "notifyd: replay: mail: a replay is running, number 1: let it end, or stop it\n"}},
		{"stop three", result{64, "", "notifyd: ID \"three\" is not the number of a replay: "}},
		{"--destination mail --wait --timeout 1ms --yes", result{1, "", "notifyd: replay: mail: a replay is running"}},
		{"stop 1 --dry-run", result{0, "replay 1 of mail would be stopped at event 3 of 4 to 12\n", ""}},
		{"stop 1", result{0, "replay 1 of mail is stopped at event 3 of 4 to 12\n", "deliveries that the relay has begun end as usual"}},
		{"stop 1", result{1, "", "notifyd: stop a replay: 1: no such replay that runs\n"}},
		{"show 7", result{1, "", "notifyd: show a replay: 7: no such replay\n"}},
	} {
		got := typed(step.line)
		if got.code != step.want.code || got.stdout != step.want.stdout || !strings.HasPrefix(got.stderr, step.want.stderr) || (step.want.stderr == "") != (got.stderr == "") {
			t.Errorf("replay %s: got %+v, want %+v", step.line, got, step.want)
		}
	}
	got := typed("--destination mail --keep-ids --wait --timeout 1ms --yes")
	if got.code != 1 || !strings.Contains(got.stderr, "replay 2 is still under way after 1ms") {
		t.Errorf("%+v", got)
	}
	got = invoke(t, "positions", "list", "--database-url", url)
	if !strings.Contains(got.stdout, "  replay 2  none\n") {
		t.Errorf("%+v", got)
	}
	got = typed("list")
	if lines := strings.Split(got.stdout, "\n"); got.code != 0 || len(lines) != 4 || !strings.HasPrefix(lines[1], "2   mail         1     13  running  0     13         0 ") ||
		!strings.HasPrefix(lines[2], "1   mail         4     12  stopped  3     0 ") {
		t.Errorf("%+v", got)
	}
	got = typed("show 1")
	for _, want := range []string{
		"replay       1, stopped\n", "events       4 to 12 with the ids 4r1000 and so on\n", "rate         50 events/s\n", " by ann\n", "reason       lost\n",
		"outcome      delivered 0, waiting 0, dead 0, passed over 0\n",
	} {
		if got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("lacks %q: %+v", want, got)
		}
	}
	var one positions.ReplayAt
	got = typed("show 2 -o json")
	if err := json.Unmarshal([]byte(got.stdout), &one); err != nil || one.ID != 2 || one.Number != 0 || one.Remaining != 13 {
		t.Errorf("%+v, %v", got, err)
	}
	if got := invoke(t, "migrate", "--mode", "queue", "--database-url", url); got.code != 1 || !strings.Contains(got.stderr, "a replay is running: number 2, for mail: let it end, or `notifyd replay stop 2`") {
		t.Errorf("%+v", got)
	}
	if got := query[string](t, url, `SELECT string_agg(concat_ws(' ', action, destination, actor), ', ' ORDER BY id) FROM outbox_audit WHERE actor = 'ann'`); got != "replay range mail ann" {
		t.Errorf("audit: %s", got)
	}
}

func TestReplayOfQueue(t *testing.T) {
	t.Parallel()
	plain := testenv.Database(t)
	if got := invoke(t, "migrate", "--database-url", plain); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := invoke(t, "replay", "--destination", "mail", "--database-url", plain); got.code != 1 ||
		got.stderr != "notifyd: replay: only a stream has positions, and outbox_events is a queue; notifyd migrate --mode stream makes it one\n" {
		t.Errorf("%+v", got)
	}
}
