package rabbitmq_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestMessage reads back everything that a message has.
func TestMessage(t *testing.T) {
	t.Parallel()
	b := broker{t, testenv.RabbitMQ(t).URL}
	cfg := to(b.url, "")
	cfg.Exchange = "shop.{{ .Event.AggregateType }}"
	cfg.MessagePriority = `{{ get .Headers "priority" | default "" }}`
	cfg.Expiration = `{{ get .Headers "ttl" | default "" }}`
	cfg.Declare = rabbitmq.Declare{
		Exchanges: []rabbitmq.Exchange{{Name: "shop.order"}},
		Queues:    []rabbitmq.Queue{{Name: "q", Arguments: map[string]any{"x-max-priority": 5, "x-queue-mode": "default"}}},
		Bindings:  []rabbitmq.Binding{{Exchange: "shop.order", Queue: "q", RoutingKey: "order.*"}},
	}
	h := open(t, cfg)
	e := event(7)
	e.Headers = map[string]string{"priority": "3", "ttl": "90s", "ü": "ö"}
	if err := h.Deliver(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	got := b.take("q")
	if len(got) != 1 {
		t.Fatalf("%d messages", len(got))
	}
	d := got[0]
	if d.RoutingKey != "order.placed" || d.MessageId != "7" || d.Type != "order.placed" || d.AppId != "notifyd" ||
		d.ContentType != "application/json" || d.DeliveryMode != amqp.Persistent || d.Priority != 3 || d.Expiration != "90000" ||
		!d.Timestamp.Equal(e.CreatedAt.Truncate(time.Second)) || string(d.Body) != string(e.Payload) {
		t.Errorf("message: %+v", d)
	}
	for name, want := range map[string]string{
		message.HeaderID: "7", message.HeaderType: "order.placed", message.HeaderAggregateType: "order",
		message.HeaderAggregateID: "7", "ü": "ö",
	} {
		if d.Headers[name] != want {
			t.Errorf("header %s = %v, want %s", name, d.Headers[name], want)
		}
	}
}

// TestPriorityAndExpiration: they are there for the broker to heed.
func TestPriorityAndExpiration(t *testing.T) {
	t.Parallel()
	b := broker{t, testenv.RabbitMQ(t).URL}
	b.queue("q", amqp.Table{"x-max-priority": int64(9)})
	cfg := to(b.url, "q")
	cfg.MessagePriority, cfg.Expiration = "{{ .Payload.urgency }}", "{{ .Payload.ttl }}"
	h := open(t, cfg)
	batch := events(1, 3)
	batch[0].Payload = json.RawMessage(`{"urgency": 0, "ttl": "1h"}`)
	batch[1].Payload = json.RawMessage(`{"urgency": 9, "ttl": 3600000}`)
	batch[2].Payload = json.RawMessage(`{"urgency": 5, "ttl": "0"}`) // expired before a consumer can receive it
	if errs := h.DeliverBatch(t.Context(), batch); errs != nil {
		t.Fatal(errs)
	}
	if got := ids(b.take("q")); len(got) != 2 || got[0] != 2 || got[1] != 1 {
		t.Errorf("arrived: %v, want the urgent one first", got)
	}
}

// TestCloudEvents: the binding's prefix, and the structured form.
func TestCloudEvents(t *testing.T) {
	t.Parallel()
	b := broker{t, testenv.RabbitMQ(t).URL}
	b.queue("q", nil)
	for _, format := range []handlers.Format{handlers.FormatCloudEventsBinary, handlers.FormatCloudEventsStructured} {
		cfg := to(b.url, "q")
		cfg.Format = format
		if err := open(t, cfg).Deliver(t.Context(), event(1)); err != nil {
			t.Fatal(err)
		}
		d := b.take("q")[0]
		if format == handlers.FormatCloudEventsBinary {
			if d.ContentType != "application/json" || d.Headers["cloudEvents_type"] != "order.placed" || d.Headers["cloudEvents_id"] != "1" {
				t.Errorf("%s: %+v", format, d)
			}
			continue
		}
		var body struct{ ID, Type, SpecVersion string }
		if err := json.Unmarshal(d.Body, &body); err != nil || body.ID != "1" || body.Type != "order.placed" || body.SpecVersion != "1.0" {
			t.Errorf("%s: %s, %v", format, d.Body, err)
		}
	}
}

// TestReadByAnotherLibrary has Python read the messages, where it can.
func TestReadByAnotherLibrary(t *testing.T) {
	t.Parallel()
	const python = "/usr/bin/python3" // the one that the distribution's packages are for
	if err := exec.CommandContext(t.Context(), python, "-c", "import pika").Run(); err != nil {
		testenv.Need(t, "pika for Python", fmt.Errorf("%w: apt-get install python3-pika", err))
	}
	b := broker{t, testenv.RabbitMQ(t).URL}
	b.queue("q", nil)
	if err := open(t, to(b.url, "q")).Deliver(t.Context(), event(12)); err != nil {
		t.Fatal(err)
	}
	const script = `
import pika, sys
ch = pika.BlockingConnection(pika.URLParameters(sys.argv[1])).channel()
method, p, body = ch.basic_get("q", auto_ack=True)
print(p.message_id, p.type, p.app_id, p.delivery_mode, p.timestamp, p.content_type, p.headers["notifyd-id"], p.headers["tenant"], body.decode())
`
	out, err := exec.CommandContext(t.Context(), python, "-c", script, b.url).CombinedOutput()
	want := `12 order.placed notifyd 2 1772600767 application/json 12 acme {"n": 12}`
	if got := strings.TrimSpace(string(out)); err != nil || got != want {
		t.Errorf("%v: got %s, want %s", err, got, want)
	}
}
