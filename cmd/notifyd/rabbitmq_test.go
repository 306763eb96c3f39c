package main

import (
	"os"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// rabbitmqPage returns the configuration in the page of the destination.
func rabbitmqPage(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile(root + "docs/destinations/rabbitmq.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "```yaml\n")
	block, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("the page has no configuration")
	}
	return block
}

// TestRabbitMQPage runs the configuration that the page offers, from its check
// to the message in the queue.
func TestRabbitMQPage(t *testing.T) {
	t.Parallel()
	url := testenv.RabbitMQ(t).URL
	env := vars{"DATABASE_URL": testenv.Database(t), "RABBITMQ_URL": url}
	path := file(t, rabbitmqPage(t))
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

func TestRabbitMQMistakes(t *testing.T) {
	t.Parallel()
	const head = "version: 1\nroutes: [{match: \"*\", to: r}]\ndestinations:\n  r:\n    type: rabbitmq\n"
	for settings, want := range map[string]string{
		"    host: h\n": "destinations.r.exchange: missing",
		"    url: amqp://u:hush@h?x=1\n    exchange: e\n":                                 "url",
		"    exchange: e\n    timeout: 20s\n":                                             "longer than connect_timeout and confirm_timeout",
		"    exchange: e\n    tls: {ca_file: nowhere.pem}\n":                              "tls.ca_file",
		"    exchange: e\n    username: u\n":                                              "password",
		"    exchange: e\n    username: u\n    password: hush\n    host: 'a b'\n":         "host",
		"    exchange: e\n    declare: {queues: [{name: q, argments: {}}]}\n":             "argments",
		"    exchange: e\n    declare: {queues: [{arguments: {x-queue-type: quorum}}]}\n": "name",
		"    exchange: e\n    unroutable: lose\n":                                         "unroutable",
		"    exchange: e\n    routing_key: '{{ .Event.Kind }}'\n":                         "routing_key",
		"    exchange: e\n    exchnage: x\n":                                              "exchnage",
		"    exchange: e\n    format: avro\n":                                             "format",
	} {
		got := invoke(t, "check-config", "-c", file(t, head+settings))
		if got.code != command.ExitConfig || !strings.Contains(got.stdout+got.stderr, want) || strings.Contains(got.stdout+got.stderr, "hush") {
			t.Errorf("%s\nexit %d, want one about %s:\n%s%s", settings, got.code, want, got.stdout, got.stderr)
		}
	}
}
