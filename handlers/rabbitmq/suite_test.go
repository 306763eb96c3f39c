package rabbitmq_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

const (
	appUser     = "relay"
	appPassword = "correct-horse-battery"
)

// TestSuite runs the properties that every destination has.
func TestSuite(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRabbitMQ(t, rabbitserver.Config{Settings: map[string]string{"max_message_size": "20000"}})
	b := broker{t, s.URL("")}
	for _, args := range [][]string{{"add_user", appUser, appPassword}, {"set_permissions", appUser, ".*", "^(?!secret).*", ".*"}} {
		if _, err := s.Ctl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	b.queue("suite", nil)
	in := &inbox{url: b.url, queue: "suite"}
	t.Cleanup(in.close)
	proxy := handlertest.StartProxy(t, s.Addr())
	cfg := rabbitmq.Config{
		Host: proxy.Host(), Port: proxy.Port(), Username: appUser, Password: handlers.NewSecret(appPassword),
		RoutingKey: "suite", MaxMessageBytes: 10_000,
	}
	var log logged
	handlertest.Run(t, handlertest.Destination{
		Open: func(tb testing.TB) delivery.Handler {
			tb.Helper()
			h, err := rabbitmq.New(cfg, log.option())
			if err != nil {
				tb.Fatal(err)
			}
			return h
		},
		Received: in.ids,
		Message:  in.message,
		Rejected: func(id int64) *delivery.Event {
			e := event(id)
			e.Payload = json.RawMessage(`"` + strings.Repeat("x", cfg.MaxMessageBytes) + `"`)
			return e
		},
		Network: proxy,
		Stop: func(tb testing.TB) {
			tb.Helper()
			if err := s.Halt(context.WithoutCancel(tb.Context())); err != nil {
				tb.Fatal(err)
			}
		},
		Start: func(tb testing.TB) {
			tb.Helper()
			if err := s.Start(context.WithoutCancel(tb.Context())); err != nil {
				tb.Fatal(err)
			}
		},
		Secrets: []string{appPassword, "wr0ng-p4ssw0rd"},
		Log:     log.String,
		Ordered: true,
		Cases:   suiteCases(s, b),
	})
}

// fault is a fault and its class.
type fault struct {
	name   string
	config func(c *rabbitmq.Config)
	event  func(e *delivery.Event)
	class  delivery.Class
	dead   bool // permanent
	// unclear is for what every event may get.
	unclear bool
	text    string
}

// faults are those of a broker that answers. The rows of
// docs/destinations/rabbitmq.md are in the same order.
func faults() []fault {
	big := func(e *delivery.Event) { e.Payload = json.RawMessage(`"` + strings.Repeat("x", 30_000) + `"`) }
	return []fault{
		{name: "a port without a server", config: func(c *rabbitmq.Config) { c.Port = 1 }, class: delivery.ClassDestination, text: "check host and port"},
		{name: "a wrong password", config: func(c *rabbitmq.Config) { c.Password = handlers.NewSecret("wr0ng-p4ssw0rd") }, class: delivery.ClassDestination, text: "check username, password"},
		{name: "a vhost that does not exist", config: func(c *rabbitmq.Config) { c.Vhost = "nowhere" }, class: delivery.ClassDestination, text: "check vhost"},
		{name: "a declaration that does not fit", config: func(c *rabbitmq.Config) {
			c.Declare.Queues = []rabbitmq.Queue{{Name: "suite", Arguments: map[string]any{"x-max-length": 7}}}
		}, class: delivery.ClassDestination, text: `(queue "suite") (it exists with other properties`},
		{name: "an exchange that does not exist", config: func(c *rabbitmq.Config) { c.Exchange = "nowhere" }, class: delivery.ClassDestination, text: "NOT_FOUND"},
		{name: "an exchange that does not exist, by the event's type", config: func(c *rabbitmq.Config) {
			c.Exchange, c.RoutingKey = "nowhere", ""
		}, class: delivery.ClassDestination, text: "NOT_FOUND"},
		{name: "an exchange of the event that does not exist", config: func(c *rabbitmq.Config) { c.Exchange = "{{ .Headers.tenant }}" }, class: delivery.ClassEvent, unclear: true, text: "NOT_FOUND"},
		{name: "an exchange that is not ours", config: func(c *rabbitmq.Config) { c.Exchange = "secret" }, class: delivery.ClassDestination, text: "ACCESS_REFUSED"},
		{name: "a routing key without a queue", config: func(c *rabbitmq.Config) { c.RoutingKey = "nowhere" }, class: delivery.ClassDestination, text: "NO_ROUTE"},
		{name: "a routing key of the event without a queue", config: func(c *rabbitmq.Config) { c.RoutingKey = "to.{{ .Headers.tenant }}" }, class: delivery.ClassEvent, unclear: true, text: `routing key "to.acme"`},
		{name: "a routing key without a queue that is to be retried", config: func(c *rabbitmq.Config) {
			c.RoutingKey, c.Unroutable = "nowhere", rabbitmq.UnroutableRetry
		}, class: delivery.ClassEvent, text: "NO_ROUTE"},
		{name: "a routing key of the event that is to be waited for", config: func(c *rabbitmq.Config) {
			c.RoutingKey, c.Unroutable = "to.{{ .Headers.tenant }}", rabbitmq.UnroutableWait
		}, class: delivery.ClassDestination, text: "NO_ROUTE"},
		{name: "a routing key without a queue that is of no account", config: func(c *rabbitmq.Config) {
			c.RoutingKey, c.Unroutable = "nowhere", rabbitmq.UnroutableDrop
		}},
		{name: "a queue that is full", config: func(c *rabbitmq.Config) { c.RoutingKey = "full" }, class: delivery.ClassDestination, text: "queue is full"},
		{name: "a message too large for us", config: func(c *rabbitmq.Config) { c.MaxMessageBytes = 10_000 }, event: big, class: delivery.ClassEvent, dead: true, text: "max_message_bytes"},
		{name: "a message too large for the broker", event: big, class: delivery.ClassEvent, dead: true, text: "PRECONDITION_FAILED"},
		{name: "headers too large for a frame", event: func(e *delivery.Event) {
			e.Headers = map[string]string{"huge": strings.Repeat("x", 140_000)}
		}, class: delivery.ClassEvent, dead: true, text: "the headers have"},
		{name: "a header name that is too long", event: func(e *delivery.Event) {
			e.Headers = map[string]string{strings.Repeat("x", 256): "y"}
		}, class: delivery.ClassEvent, dead: true, text: "name of a header"},
		{name: "a header that routes in RabbitMQ, which is left out", event: func(e *delivery.Event) {
			e.Headers = map[string]string{"CC": "elsewhere"}
		}},
		{name: "a field that the template does not find", config: func(c *rabbitmq.Config) { c.RoutingKey = "{{ .Payload.to }}" }, class: delivery.ClassEvent, dead: true, text: `template "routing_key"`},
		{name: "a priority that is none", config: func(c *rabbitmq.Config) { c.MessagePriority = "{{ .Headers.tenant }}" }, class: delivery.ClassEvent, dead: true, text: `template "message_priority"`},
		{name: "an expiration that is none", config: func(c *rabbitmq.Config) { c.Expiration = "{{ .Headers.tenant }}" }, class: delivery.ClassEvent, dead: true, text: `template "expiration"`},
		{name: "a routing key that is too long", config: func(c *rabbitmq.Config) {
			c.RoutingKey = "{{ .Headers.tenant }}" + strings.Repeat("x", 255)
		}, class: delivery.ClassEvent, dead: true, text: "takes 255"},
	}
}

func suiteCases(s *rabbitserver.Server, b broker) []handlertest.Case {
	b.queue("full", amqp.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	ch := b.channel()
	if err := ch.ExchangeDeclare("secret", "fanout", true, false, false, false, nil); err != nil {
		b.tb.Fatal(err)
	}
	if err := ch.Publish("", "full", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent}); err != nil {
		b.tb.Fatal(err)
	}
	var all []handlertest.Case
	for _, f := range faults() {
		all = append(all, handlertest.Case{
			Name: f.name, Class: f.class, Permanent: f.dead, Unclear: f.unclear, Text: f.text,
			Provoke: func(tb testing.TB) error {
				tb.Helper()
				cfg := to(b.url, "suite")
				u := strings.Split(s.Addr(), ":")
				cfg = rabbitmq.Config{Host: u[0], Port: port(tb, u[1]), Username: appUser, Password: handlers.NewSecret(appPassword), RoutingKey: cfg.RoutingKey}
				if f.config != nil {
					f.config(&cfg)
				}
				e := event(1)
				if f.event != nil {
					f.event(e)
				}
				return open(tb, cfg).Deliver(tb.Context(), e)
			},
		})
	}
	return all
}

// inbox collects what arrives in a queue, over a connection of its own, which
// does not pass the proxy.
type inbox struct {
	url, queue string

	mu   sync.Mutex
	conn *amqp.Connection
	ch   *amqp.Channel
	got  []int64
	last map[int64]amqp.Delivery
}

// ids returns what has arrived so far. While the broker is down that is what
// had arrived before.
func (in *inbox) ids(tb testing.TB) []int64 {
	tb.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.conn == nil || in.conn.IsClosed() {
		conn, err := amqp.Dial(in.url)
		if err != nil {
			return append([]int64(nil), in.got...)
		}
		in.conn = conn
		if in.ch, err = conn.Channel(); err != nil {
			tb.Fatal(err)
		}
	}
	for {
		d, ok, err := in.ch.Get(in.queue, true)
		if err != nil || !ok {
			return append([]int64(nil), in.got...)
		}
		id := ids([]amqp.Delivery{d})[0]
		in.got = append(in.got, id)
		if in.last == nil {
			in.last = make(map[int64]amqp.Delivery)
		}
		in.last[id] = d
	}
}

// message returns what has arrived of an event.
func (in *inbox) message(_ testing.TB, id int64) (body []byte, contentType string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.last[id].Body, in.last[id].ContentType
}

func (in *inbox) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.conn != nil {
		_ = in.conn.Close()
	}
}
