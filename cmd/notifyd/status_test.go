package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/smtpsink"
	"github.com/notifyd/notifyd/internal/status"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// A failing shop: one mailbox is full, the queue is down for an hour, a type has no route.
const failingShop = `
INSERT INTO outbox_events (id, event_type, payload, created_at, state) VALUES
	(101, 'order.placed', '{"order": 1}', now() - interval '5 h', 'deferred'),
	(102, 'order.placed', '{"order": 2}', now() - interval '4 h', 'deferred'),
	(103, 'order.placed', '{"order": 3}', now() - interval '3 h', 'deferred'),
	(104, 'order.lost', '{"order": 4}', now() - interval '2 h', 'deferred'),
	(105, 'user.gone', '{"user": 5}', now() - interval '1 h', 'fresh'),
	(106, 'user.gone', '{"user": 6}', now() - interval '1 h', 'fresh');
SELECT setval('outbox_events_id_seq', 106);
INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, updated_at, error_class, last_error) VALUES
	(101, 'mail', 'order.placed', 'dead', 20, now(), now() - interval '2 h', 'event', 'email: 552 mailbox 1 is full'),
	(102, 'mail', 'order.placed', 'dead', 20, now(), now() - interval '1 h', 'event', 'email: 552 mailbox 2 is full'),
	(103, 'mail', 'order.placed', 'retry', 3, now() + interval '2 h', now() - interval '1 h', 'event', E'email: 451 try\x1b later'),
	(104, '', 'order.lost', 'unrouted', 0, now(), '2020-01-01', NULL, NULL)`

// failing makes the shop and returns its configuration file. Somebody shows as a
// relay that lives.
func failing(t *testing.T) (path, url string) {
	t.Helper()
	url = database(t)
	for statement := range strings.SplitSeq(failingShop, ";") {
		execute(t, url, statement)
	}
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	program := store.Program{Process: 2083, Host: "web-1", Version: "v0.1.0", StartedAt: time.Now().Add(-6 * time.Hour), LoadedAt: time.Now().Add(-2 * time.Hour)}
	k := store.NewSession(&store.Connector{Config: cfg, Schema: "public"}, store.SessionOptions{Owner: store.NewOwner(), Program: program})
	t.Cleanup(func() { k.Close(context.WithoutCancel(t.Context())) })
	if err := k.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	sink := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	text := strings.Replace(shopConfig(url, sink.Port()), "order.placed, to", "user.*, to", 1) + "  - {match: order.placed, to: [mail]}\n"
	return file(t, text), url
}

// failingStream is a shop whose table is a stream, and returns its configuration file. Its
// mail is behind, no relay delivers to audit, and a destination is gone.
func failingStream(t *testing.T) (path string) {
	t.Helper()
	url := database(t)
	becomeStream(t, url, false)
	execute(t, url, `DELETE FROM outbox_positions`)
	execute(t, url, `INSERT INTO outbox_events (event_type, payload, created_at) SELECT 'order.placed', '{"order": 1}', now() - interval '130 min' FROM generate_series(1, 1000)`)
	execute(t, url, `INSERT INTO outbox_positions (destination, head, open) VALUES ('', 1000, '{}'), ('audit', 1000, '{}'), ('crm', 400, '{}'), ('mail', 950, '{[941,951)}')`)
	execute(t, url, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, updated_at, error_class, last_error, ordering_key) VALUES
		(930, 'mail', 'order.placed', 'retry', 3, now() + interval '90 min', now() - interval '90 min', 'event', 'email: 451 try later', 'order/1'),
		(935, 'mail', 'order.placed', 'parked', 0, now(), localtimestamp, NULL, '', 'order/1')`)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&store.Connector{Config: cfg, Schema: "public"}).Connect(t.Context(), store.RoleLeases)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close(context.WithoutCancel(t.Context()), conn) })
	testdb.Member(t, conn, 7, "", "mail")
	sink := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	return file(t, shopConfig(url, sink.Port()))
}

func TestStatus(t *testing.T) {
	t.Parallel()
	path, url := failing(t)
	r := invoke(t, "status", "-c", path, "--exit-code", "-o", "json")
	var s status.Status
	if err := json.Unmarshal([]byte(r.stdout), &s); err != nil {
		t.Fatalf("%v in %+v", err, r)
	}
	if r.code != 1 || !strings.Contains(r.stderr, "action required") || len(s.Attention) != 4 || len(s.Relays) != 1 ||
		s.Schema.Version < 1 || s.Schema.Version != s.Schema.Latest {
		t.Errorf("exit code %d, %s: %+v", r.code, r.stderr, s)
	}
	if mail := s.Backlog.Destination("mail"); mail.Fresh.N != 2 || mail.Retry.N != 1 || mail.Dead.N != 2 || len(mail.DeadLetters) != 1 || mail.NextDue == nil {
		t.Errorf("%+v", mail)
	}
	if r := invoke(t, "status", "-c", path); r.code != 0 || strings.Contains(r.stdout, "\x1b") {
		t.Errorf("%+v", r)
	}
	execute(t, url, `TRUNCATE outbox_events, outbox_deliveries`)
	if r := invoke(t, "status", "--database-url", url, "--exit-code"); r.code != 0 || !strings.Contains(r.stdout, "nothing waits") {
		t.Errorf("of nothing: %+v", r)
	}
	if r := invoke(t, "status", "--database-url", url, "--schema", "nowhere", "--exit-code"); r.code != 1 || !strings.Contains(r.stdout, "notifyd migrate") {
		t.Errorf("without tables: %+v", r)
	}
}

// TestStatusOfRelay asks a relay by its admin server, twice.
func TestStatusOfRelay(t *testing.T) {
	t.Parallel()
	url, sink := database(t), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	base := shopConfig(url, sink.Port())
	d := startDaemon(t, nil, "run", "-c", file(t, base+"\nadmin:\n  listen: 127.0.0.1:0\n"))
	d.stderr.await(t, `"relay started"`)
	address := regexp.MustCompile(`"msg":"admin server listening","listen":"([^"]+)"`).FindStringSubmatch(d.stderr.text())
	path := file(t, base+"\nadmin:\n  listen: "+address[1]+"\n")
	untilReady(t, "http://"+address[1]+"/readyz")
	w := startDaemon(t, nil, "status", "-c", path, "--watch")
	w.stdout.await(t, "\ndestination ")
	publishTo(t, url, "order.placed", order)
	until(t, url, "SELECT state = 'done' FROM outbox_events")
	before := len(w.stdout.text())
	for deadline := time.After(patience); !regexp.MustCompile(`(?m)^mail +up .* \d+ +\d+$`).MatchString(w.stdout.text()[before:]); {
		_, more := w.stdout.read()
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("no rate in\n%s", w.stdout.text())
		}
	}
	if code := w.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	r := commandUntil(t, "as JSON", hasRelay, "status", "-c", path, "-o", "json")
	var s status.Status
	if err := json.Unmarshal([]byte(r.stdout), &s); err != nil {
		t.Fatal(err)
	}
	if s.Relay == nil || !s.Relay.DatabaseUp || len(s.Relay.Destinations) != 2 || s.Relay.Destinations[0].Name != "audit" || s.Relay.Destinations[0].Delivered != 1 {
		t.Errorf("%+v", s.Relay)
	}
}

// TestStatusOfOutage takes a mail server away, brings it back without an answer, and then
// well. The figures of the relay and "notifyd status" follow.
func TestStatusOfOutage(t *testing.T) {
	t.Parallel()
	url, sink := database(t), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	// One mail at a time: the first that is taken ends the outage.
	base := strings.Replace(shopConfig(url, sink.Port()), "    tls: none\n", "    tls: none\n    concurrency: 1\n", 1)
	d := startDaemon(t, nil, "run", "-c", file(t, base+"\nadmin:\n  listen: 127.0.0.1:0\n"))
	d.stderr.await(t, `"relay started"`)
	address := regexp.MustCompile(`"msg":"admin server listening","listen":"([^"]+)"`).FindStringSubmatch(d.stderr.text())[1]
	path := file(t, base+"\nadmin:\n  listen: "+address+"\n")
	untilReady(t, "http://"+address+"/readyz")
	shows := func(unavailable int, word string, state observe.BreakerState) {
		t.Helper()
		want := []string{fmt.Sprintf("\nnotifyd_destination_down{destination=\"mail\"} %d\n", unavailable)}
		for _, s := range observe.BreakerStates() {
			n := 0
			if s == state {
				n = 1
			}
			want = append(want, fmt.Sprintf("\nnotifyd_destination_state{destination=\"mail\",state=\"%v\"} %d\n", s, n))
		}
		untilSays(t, "http://"+address+"/metrics", want...)
		row := regexp.MustCompile(`(?m)^mail +` + word + ` `)
		commandUntil(t, "mail is "+word, func(r result) bool { return row.MatchString(r.stdout) }, "status", "-c", path)
		commandUntil(t, fmt.Sprintf("mail is %v", state), func(r result) bool {
			var s status.Status
			return json.Unmarshal([]byte(r.stdout), &s) == nil && s.Relay != nil && slices.ContainsFunc(s.Relay.Destinations, func(d status.RelayDestination) bool {
				return d.Name == "mail" && d.State == state.String() && d.Down == (unavailable == 1)
			})
		}, "status", "-c", path, "-o", "json")
	}
	do := func(act ...func() error) {
		t.Helper()
		for _, f := range act {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}
	}
	shows(0, "up", observe.BreakerClosed)
	do(sink.Close)
	publishTo(t, url, "order.placed", order)
	shows(1, "down", observe.BreakerOpen)
	sink.Fail(smtpsink.Fault{Stage: smtpsink.Connect, Hang: true, Times: smtpsink.Always})
	do(sink.Restart)
	shows(1, "down", observe.BreakerProbing)
	sink.Heal()
	do(sink.Close, sink.Restart) // whom it has kept waiting hears of it
	shows(0, "up", observe.BreakerClosed)
	if m, err := mails(t, sink, 1)[0].Parse(); err != nil || m.Subject != "Order 7, attempt 1" {
		t.Errorf("the outage counted as an attempt: %+v, %v", m, err)
	}
}

// changing is what differs from run to run, and what stands in its place.
func changing(text string) string {
	for _, c := range [][2]string{
		{`(?m)^database  .*$`, "database  shop at db.internal:5432, 2026-11-02 09:15:04Z"},
		{`\d{4}-\d\d-\d\d [\d:]+Z`, "2026-11-02 09:15:04Z"},
		{`session \d+`, "session 4711"},
		{`(?m)^((?:\(unrouted scanner\)|mail) .*[^ \d]) +\d+$`, "$1     4711"},
		{`user \w+`, "user notifyd"},
		{`(, from [\d.]+)?, for \w+`, ", from 10.0.0.7, for 6h12m"},
		{`(\dh)\d\dm`, "${1}00m"},
		{`(\d+h)\d+m\d+s`, "${1}0m0s"},
		{`PostgreSQL [\w.]+, database \w+, role \w+`, "PostgreSQL 17.6, database shop, role notifyd"},
		{`The role \w+ may`, "The role notifyd may"},
		{`(?m)^\w+ +(notify|notification queue|dead rows|clock|server|connections|transactions|replication slots|prepared transactions)  .*\n( +cure: .*\n)?`, ""},
		{`transaction_timeout 0, `, ""},
		{`(?m)^\d+ findings: .*$`, "27 findings: 0 errors, 2 warnings, 0 notes"},
		{`statement_timeout \d+`, "statement_timeout 0"},
	} {
		text = regexp.MustCompile(c[0]).ReplaceAllString(text, c[1])
	}
	return text
}

// TestStatusAndDoctorPage: the output on the page is what the commands print, with its columns and ages. A run of the page
// would compare neither, because ages differ where nobody has made the shop.
func TestStatusAndDoctorPage(t *testing.T) {
	t.Parallel()
	page := testenv.ReadFile(t, root+"docs/status-and-doctor.md")
	path, url := failing(t)
	streaming := failingStream(t)
	execute(t, url, `ALTER TABLE outbox_events DISABLE TRIGGER outbox_events_notify`)
	for _, st := range steps(page) {
		if st.language != "sh" {
			continue
		}
		line := st.line()
		args := slices.Concat(strings.Fields(line)[1:], []string{"-c", path})
		if bare, of := strings.CutSuffix(line, " -c stream.yaml"); of {
			args = slices.Concat(strings.Fields(bare)[1:], []string{"-c", streaming})
		}
		if got := changing(invoke(t, args...).stdout); strings.TrimSpace(st.shown) != strings.TrimSpace(got) {
			t.Errorf("%s prints\n%s\nthe page says\n%s", line, got, st.shown)
		}
	}
	if r := invoke(t, "doctor", "-c", streaming); !strings.Contains(r.stdout, "  shards ") {
		t.Errorf("doctor of a stream: %+v", r)
	} else {
		for _, m := range regexp.MustCompile("(?m)^\\| `([a-z ]+)` \\|").FindAllStringSubmatch(page, -1) {
			if !strings.Contains(r.stdout, "  "+m[1]+" ") {
				t.Errorf("doctor does not have the check %q", m[1])
			}
		}
	}
}
