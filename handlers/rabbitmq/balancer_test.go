package rabbitmq

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// pair is two brokers behind a balancer of connections.
type pair struct {
	t       *testing.T
	url     string // of the balancer
	brokers [2]*rabbitserver.Server
	admins  [2]*amqp.Channel
}

func newPair(t *testing.T) *pair {
	t.Helper()
	testenv.Long(t)

	p := &pair{t: t}
	for i := range p.brokers {
		p.brokers[i] = testenv.OwnRabbitMQ(t, rabbitserver.Config{})
		conn, err := amqp.Dial(p.brokers[i].URL(""))
		p.must(err)
		t.Cleanup(func() { _ = conn.Close() })
		p.admins[i], err = conn.Channel()
		p.must(err)
	}
	p.url = "amqp://guest:guest@" + testenv.Balancer(t, p.brokers[0].Addr(), p.brokers[1].Addr())
	return p
}

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// open returns a handler for the brokers.
func (p *pair) open(tb testing.TB, cfg Config) *Handler {
	tb.Helper()
	cfg.URL = handlers.NewSecret(p.url)
	return deliverytest.Open(tb, New, cfg)
}

// exchange makes an exchange, or removes it.
func (p *pair) exchange(name string, is bool) func(broker int) {
	return func(broker int) {
		p.t.Helper()
		if is {
			p.must(p.admins[broker].ExchangeDeclare(name, "fanout", true, false, false, false, nil))
		} else {
			p.must(p.admins[broker].ExchangeDelete(name, false, false))
		}
	}
}

// queue makes an empty queue, or removes it.
func (p *pair) queue(name string, is bool, args amqp.Table) func(broker int) {
	return func(broker int) {
		p.t.Helper()
		_, err := p.admins[broker].QueueDelete(name, false, false, false)
		p.must(err)
		if is {
			_, err := p.admins[broker].QueueDeclare(name, true, false, false, false, args)
			p.must(err)
		}
	}
}

// TestBalancer: a retry does not go over a connection to a broker that refuses everything, as soon as the connection may be
// replaced.
func TestBalancer(t *testing.T) { //nolint:tparallel // the cases share two brokers
	t.Parallel()
	p := newPair(t)
	full := amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"}
	for name, c := range map[string]struct { //nolint:paralleltest // see above
		cfg            Config
		refuse, accept func(broker int)
	}{
		"no exchange": {Config{Exchange: "e", Unroutable: UnroutableDrop}, p.exchange("e", false), p.exchange("e", true)},
		"no exchange of the event": {
			Config{Exchange: "{{ .Event.Type }}", Unroutable: UnroutableDrop},
			p.exchange("order.created", false), p.exchange("order.created", true),
		},
		"no queue": {Config{RoutingKey: "q"}, p.queue("q", false, nil), p.queue("q", true, nil)},
		"no queue of the event": {
			Config{RoutingKey: "{{ .Event.Type }}"},
			p.queue("order.created", false, nil), p.queue("order.created", true, nil),
		},
		"no queue, retry": {Config{RoutingKey: "q", Unroutable: UnroutableRetry}, p.queue("q", false, nil), p.queue("q", true, nil)},
		"a full queue":    {Config{RoutingKey: "q"}, p.queue("q", true, full), p.queue("q", true, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			h := p.open(t, c.cfg)
			h.renewEvery = 0
			deliverytest.Failover(t, h, deliverytest.Spread("rabbit", deliverytest.UpTo(10)...), func(broker int) {
				c.accept(1 - broker)
				c.refuse(broker)
			})
		})
	}
}

// TestFirstAttemptsKeepTheirs: a broker that refuses some events costs no handshake for each of them.
func TestFirstAttemptsKeepTheirs(t *testing.T) {
	t.Parallel()
	h := deliverytest.Open(t, New, Config{URL: handlers.NewSecret(testenv.RabbitMQ(t).URL), RoutingKey: "missing"})
	h.renewEvery = time.Hour
	var first *connection
	for _, e := range deliverytest.Spread("rabbit", deliverytest.UpTo(3)...) {
		deliverytest.WantClass(t, h.Deliver(t.Context(), e), "unavailable")
		if first == nil {
			first = h.connector.current()
		}
		if h.connector.current() != first {
			t.Error("the connection was replaced")
		}
	}
}

// TestUsersOfAnOldConnection: a delivery that takes long does not hold back those for which its connection is too old.
func TestUsersOfAnOldConnection(t *testing.T) {
	t.Parallel()
	h := deliverytest.Open(t, New, Config{URL: handlers.NewSecret(testenv.RabbitMQ(t).URL), RoutingKey: "q", Unroutable: UnroutableDrop})
	old, err := h.connector.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old.retire()
	if err := h.Deliver(testenv.Within(t, time.Minute), deliverytest.Spread("rabbit", 1)[0]); err != nil {
		t.Fatal(err)
	}
	if !old.fit() || h.connector.current() == old {
		t.Error("the old connection has ended, or is the current one")
	}
	old.leave()
	<-old.gone
}

// TestBlockedBroker: of two brokers, one has an alarm. Events go to the other one.
func TestBlockedBroker(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	for broker := range p.brokers {
		p.queue("q", true, nil)(broker)
	}
	_, err := p.brokers[0].Ctl(t.Context(), "set_vm_memory_high_watermark", "0.0000001")
	p.must(err)

	h := p.open(t, Config{RoutingKey: "q", Heartbeat: minHeartbeat})
	refused := 0
	e := deliverytest.Spread("rabbit", 1)[0]
	testenv.Await(t, "the delivery", func() bool {
		err := h.Deliver(t.Context(), e)
		if err != nil {
			deliverytest.WantClass(t, err, "unavailable")
			refused++
		}
		return err == nil
	})
	q, err := p.admins[1].QueueDeclarePassive("q", true, false, false, false, nil)
	p.must(err)
	if q.Messages != 1 || refused == 0 {
		t.Errorf("%d messages came, after %d refusals", q.Messages, refused)
	}
}
