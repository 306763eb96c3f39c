package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestAlerts lets a mail be refused for good, and stops the daemon, which then
// sends the pending alert.
func TestAlerts(t *testing.T) {
	t.Parallel()
	url, sink := database(t), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	config := shopConfig(url, sink.Port()) + "\nalerts:\n  to: audit\n  on: [dead_letter, database]\n"
	d := startDaemon(t, nil, "run", "-c", file(t, config))
	d.stderr.await(t, `"relay started"`)
	publishTo(t, url, "order.placed", `{"order":7,"email":"nobody"}`) // no address
	until(t, url, "SELECT count(*) = 1 FROM outbox_deliveries WHERE state = 'dead'")
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
	var sent []string
	for line := range strings.Lines(d.stdout.text()) {
		var l struct {
			EventType string `json:"event_type"`
			Payload   struct{ Title string }
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if l.EventType == "notifyd.alert" {
			sent = append(sent, l.Payload.Title)
		}
	}
	if len(sent) != 1 || !strings.HasSuffix(sent[0], ": a dead letter for mail") {
		t.Errorf("sent %q; the output is\n%s", sent, d.stdout.text())
	}
}

func TestAlertsMistakes(t *testing.T) {
	t.Parallel()
	r := invoke(t, "check-config", "-c", file(t, `version: 1
destinations:
  audit:
    type: log
alerts:
  to: audits
  on: dead_leter
  every: 0
`))
	for _, want := range []string{`:6:7: alerts.to.0: there is no destination "audits" (did you mean "audit"?)`, `dead_letter`, `:8:10: alerts.every: must be longer than 0`} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("%q is not said in\n%s", want, r.stderr)
		}
	}
}
