package main

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestRabbitMQPage runs the configuration that the page offers, from its check
// to the message in the queue.
func TestRabbitMQPage(t *testing.T) {
	t.Parallel()
	url := testenv.RabbitMQ(t).URL
	env := vars{"DATABASE_URL": testenv.Database(t), "RABBITMQ_URL": url}
	path := file(t, pasted(t, "rabbitmq.md"))
	for _, args := range []string{"check-config", "migrate", "publish order.placed"} {
		if got := commandIn(t, env, append(strings.Fields(args), "-c", path)...); got.code != 0 {
			t.Fatalf("%s: %d\n%s%s", args, got.code, got.stdout, got.stderr)
		}
	}
	d := startDaemon(t, env, "run", "-c", path, "--log-format", "json")
	d.stderr.await(t, `"rabbitmq connected"`)
	until(t, env["DATABASE_URL"], "SELECT count(*) = 1 FROM outbox_events WHERE state = 'done'")
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the test is over
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if got, ok, err := ch.Get("billing", true); err != nil || !ok || got.MessageId != "1" || got.RoutingKey != "order.placed" {
		t.Errorf("the message: %t, %v, %+v", ok, err, got)
	}
}
