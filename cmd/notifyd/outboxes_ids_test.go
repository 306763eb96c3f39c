package main

import (
	"io"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/command/events"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/destinations"
)

// TestOutboxInMessages: whatever the destination, its message tells apart events that have the same id in two outboxes.
func TestOutboxInMessages(t *testing.T) {
	t.Parallel()
	const aws = "region: eu-west-1, access_key_id: a, secret_access_key: b"
	for name, settings := range map[string]string{
		"kafka":       "brokers: ['127.0.0.1:1'], topic: t",
		"rabbitmq":    "url: amqp://127.0.0.1:1, exchange: e",
		"webhook":     "url: http://127.0.0.1:1",
		"nats":        "servers: nats://127.0.0.1:1, subject: s",
		"redis":       "url: redis://127.0.0.1:1, stream: s",
		"sqs":         "queue_url: https://sqs.eu-west-1.amazonaws.com/1/q, " + aws,
		"sns":         "topic_arn: arn:aws:sns:eu-west-1:123456789012:t, " + aws,
		"eventbridge": "event_bus: default, source: shop, " + aws,
		"kinesis":     "stream: s, format: cloudevents_structured, " + aws,
		"pubsub":      "topic: projects/shop/topics/orders, endpoint: 'http://127.0.0.1:1'",
		"file":        "path: archive.jsonl",
		"postgres":    "url: postgres://u@127.0.0.1:1/d, source: shop",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := "version: 1\ndatabase: {url: 'postgres://u@127.0.0.1:1/d'}\ndestinations:\n  d: {type: " + name + ", " + settings + "}\nroutes: [{match: '*', to: d}]\n"
			c, err := config.Parse("notifyd.yaml", []byte(text), destinations.Registry(t.TempDir(), io.Discard, io.Discard), vars{}.lookup)
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
