package message

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
)

// TestDeadLetter: a report has the dead letter in the headers or attributes of each form, and no event can claim to be a
// report.
func TestDeadLetter(t *testing.T) {
	t.Parallel()
	ev := event()
	ev.Headers = map[string]string{"Notifyd-Dead-Error": "forged", "ce_deaderror": "forged"}
	if m := encoder(t, handlers.Message{}, Kafka()).Encode(ev); strings.Contains(strings.Join(lines(m.Headers), "|"), "dead") {
		t.Errorf("an event of its own has %v", m.Headers)
	}
	ev.DeadLetter = &delivery.DeadLetter{
		Destination: "mail", Replay: 2, Attempts: 20, Class: "event", Error: "no\nsuch customer",
		Since: time.Date(2026, 3, 4, 5, 0, 0, 0, time.UTC), At: time.Date(2026, 3, 4, 6, 0, 0, 0, time.UTC),
	}
	const want = "dead-destination: mail|dead-error: no\nsuch customer|dead-class: event|dead-attempts: 20|dead-since: 2026-03-04T05:00:00Z|dead-time: 2026-03-04T06:00:00Z|dead-replay: 2"
	got := strings.Join(lines(encoder(t, handlers.Message{}, Kafka()).Encode(ev).Headers), "|")
	if !strings.HasPrefix(got, "notifyd-id: 42-mailr2|") || !strings.HasSuffix(got, "|notifyd-"+strings.ReplaceAll(want, "|", "|notifyd-")) {
		t.Errorf("payload: %s", got)
	}
	got = strings.Join(lines(encoder(t, handlers.Message{}, HTTP()).Encode(ev).Headers), "|")
	if !strings.Contains(got, "|notifyd-dead-error: no such customer|") {
		t.Errorf("HTTP: %s", got)
	}
	got = strings.Join(lines(encoder(t, handlers.Message{Format: handlers.FormatCloudEventsBinary}, Kafka()).Encode(ev).Headers), "|")
	if !strings.HasPrefix(got, "ce_specversion: 1.0|ce_id: 42-mailr2|") || !strings.HasSuffix(got, "|ce_deadclass: event|ce_deadattempts: 20|ce_deadsince: 2026-03-04T05:00:00Z|ce_deadtime: 2026-03-04T06:00:00Z|ce_deadreplay: 2") {
		t.Errorf("binary: %s", got)
	}
	var body map[string]any
	if err := json.Unmarshal(encoder(t, handlers.Message{Format: handlers.FormatCloudEventsStructured}, Kafka()).Encode(ev).Body, &body); err != nil || body["deaddestination"] != "mail" || body["deadattempts"] != "20" {
		t.Errorf("structured: %v, %v", body, err)
	}
}
