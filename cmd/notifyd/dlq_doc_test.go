//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestDeadLettersPage types docs/dead-letters.md beside a relay. The commands do without the secret of a destination.
func TestDeadLettersPage(t *testing.T) {
	t.Parallel()
	const page = "docs/dead-letters.md"
	s, sink := newStage(t, database(t)), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	config := shopConfig(s.url, sink.Port()) + "admin: {listen: 127.0.0.1:9470}\n"
	s.run("export SHOP_SECRET=x")
	s.relay(strings.Replace(config, "    from:", "    headers: {X-Shop: \"${env:SHOP_SECRET}\"}\n    from:", 1))
	s.run("unset SHOP_SECRET")
	publishTo(t, s.url, "order.placed", `{"order": 1042, "mail": "ann@example.com"}`, "--aggregate", "order/1042")
	deadLetter(t, s.url, "1")
	publishTo(t, s.url, "order.placed", `{"order": 1043, "mail": "bob@example.com"}`, "--aggregate", "order/1043")
	deadLetter(t, s.url, "2")
	until(t, s.url, "SELECT bool_and(state = 'done') FROM outbox_events")

	s.follow(page, map[string]act{
		`notifyd dlq discard 2 --reason "test order"`: {before: func() { deadLetter(t, s.url, "2") }}, // it has died again
		`notifyd dlq bury 3 --destination mail --reason "the address does not exist"`: {before: func() {
			execute(t, s.url, `INSERT INTO outbox_events (id, event_type, payload, state) VALUES (3, 'order.placed', '3', 'deferred');
				INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, error_class, last_error)
				VALUES (3, 'mail', 'order.placed', 'retry', 2, now() + interval '1 h', 'event', '451 try later')`)
		}},
		"sql 1": {after: func(printed string) {
			if rows := strings.Count(printed, "@"); rows != 5 || !strings.Contains(printed, "| delivered |") {
				t.Errorf("%d lines of the audit by a person:\n%s", rows, printed)
			}
		}},
	})
	for _, st := range steps(testenv.ReadFile(t, root+page)) {
		if st.language == "go" && !strings.Contains(testenv.ReadFile(t, root+"example_test.go"), strings.ReplaceAll(strings.TrimSpace(st.text), "\n", "\n\t")) {
			t.Errorf("the example of the package does not have\n%s", st.text)
		}
	}

	m, err := mails(t, sink, 1)[0].Parse()
	if err != nil || m.To != "<ann@example.com>" || m.MessageID != "<notifyd.1r1.mail@example.com>" {
		t.Errorf("the mail %+v, %v", m, err)
	}
}
