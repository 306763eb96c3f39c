package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command/events"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/delivery"
)

// TestOutboxInMessages: whatever the destination, its message tells apart events that have the same id in two outboxes.
func TestOutboxInMessages(t *testing.T) {
	t.Parallel()
	for kind, settings := range smallest(t) {
		if slices.Contains([]string{"log", "email", "slack"}, kind) { // messages for people, without an id
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			text := "version: 1\ndestinations:\n  d: {type: " + kind + ", " + settings + "}\nroutes: [{match: '*', to: d}]\n"
			c, err := config.Parse("notifyd.yaml", []byte(text), destinations.Registry(t.TempDir(), io.Discard, io.Discard), smallestVars().lookup)
			if err != nil {
				t.Fatal(err)
			}
			e := &delivery.Event{ID: 42, Type: "order.placed", Payload: []byte("{}"), Destination: "d", Outbox: "north", Attempt: 1}
			got, err := events.Preview(c, "d", e)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(got, "north/42") {
				t.Errorf("the id lacks the outbox:\n%s", got)
			}
		})
	}
}

// TestOutboxesRoundTrip is TestEverySettingRoundTrips for settings that go with no console.
func TestOutboxesRoundTrip(t *testing.T) {
	t.Parallel()
	text := newRoundTrip(t).goes(`version: 1
destinations: {log: {type: log}}
outboxes:
  list:
    - {name: north, schema: north, routes: [{match: "order.*", to: log, when: payload.total > 5}]}
    - {name: south, database: south}
    - {name: west, url: "${env:SECRET_URL}", listen_url: postgres://app@west/app, schema: outbox}
  query: SELECT name, schema FROM tenants
  every: 45s
`)
	for _, want := range []string{"url: ${env:SECRET_URL}", "when: payload.total > 5", "query: SELECT name, schema FROM tenants", "every: 45s"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}
