package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// masked makes what differs from run to run the same.
func masked(s string) string {
	s = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`).ReplaceAllString(s, "TIME")
	s = regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAllString(s, "")
	return strings.TrimSpace(s)
}

// words splits a command line as a shell does, as far as the page needs it.
func words(line string) (list []string) {
	for _, m := range regexp.MustCompile(`'([^']*)'|"([^"]*)"|(\S+)`).FindAllStringSubmatch(line, -1) {
		list = append(list, m[1]+m[2]+m[3])
	}
	return list
}

// TestDeadLettersPage runs the commands of docs/dead-letters.md in their order,
// beside a running relay, and compares what they print with what it says.
func TestDeadLettersPage(t *testing.T) {
	t.Parallel()
	page := testenv.ReadFile(t, root+"docs/dead-letters.md")
	url, sink := database(t), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	config := strings.Replace(shopConfig(url, sink.Port()), "    from:", "    headers: {X-Shop: \"${env:SHOP_SECRET}\"}\n    from:", 1)
	path := file(t, config)
	startDaemon(t, vars{"SHOP_SECRET": "x"}, "run", "-c", path)
	publishTo(t, url, "order.placed", `{"order": 1042, "mail": "ann@example.com"}`, "--aggregate", "order/1042")
	deadLetter(t, url, "1")
	publishTo(t, url, "order.placed", `{"order": 1043, "mail": "bob@example.com"}`, "--aggregate", "order/1043")
	deadLetter(t, url, "2")
	until(t, url, "SELECT bool_and(state = 'done') FROM outbox_events")

	ran := 0
	for _, st := range steps(page) {
		switch st.language {
		case "sh":
			want := printedBy(t, "docs/dead-letters.md", st)
			if strings.Contains(st.text, "discard 2") { // it has died again by now
				deadLetter(t, url, "2")
			}
			if strings.Contains(st.text, "dlq bury") {
				execute(t, url, `INSERT INTO outbox_events (id, event_type, payload, state) VALUES (3, 'order.placed', '3', 'deferred');
					INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, error_class, last_error)
					VALUES (3, 'mail', 'order.placed', 'retry', 2, now() + interval '1 h', 'event', '451 try later')`)
			}
			got := invoke(t, append(words(st.text)[1:], "-c", path)...) // the variable is not set
			if got.code != 0 || masked(got.stdout) != masked(want) {
				t.Fatalf("$ %s\nexit code %d: %s%s\nwant\n%s", st.text, got.code, got.stderr, got.stdout, want)
			}
			ran++
		case "sql":
			sql := strings.TrimSuffix(strings.TrimSpace(st.text), ";")
			if n := query[int](t, url, "SELECT count(*)::int FROM ("+sql+") AS t"); n != 6 {
				t.Errorf("%d rows in the audit", n)
			}
		case "go":
			if !strings.Contains(testenv.ReadFile(t, root+"example_test.go"), strings.ReplaceAll(strings.TrimSpace(st.text), "\n", "\n\t")) {
				t.Errorf("the example of the package does not have\n%s", st.text)
			}
		}
	}
	if ran < 7 {
		t.Errorf("%d commands were run", ran)
	}
	m, err := mails(t, sink, 1)[0].Parse()
	if err != nil || m.To != "<ann@example.com>" || m.MessageID != "<notifyd.1r1.mail@example.com>" {
		t.Errorf("the mail %+v, %v", m, err)
	}
}
