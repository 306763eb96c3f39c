package kafka

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/privateserver/kafkaserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestAdvertisedAddressIsNamed: a broker that is reached at its configured address, and advertises another one where nothing
// listens, is found by the check, and named by each failure.
func TestAdvertisedAddressIsNamed(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const dead, password = "127.0.0.1:1", "correct-horse"
	words := []string{"the broker advertises " + dead + " (advertised.listeners), where nothing listens", "correct advertised.listeners"}
	s := testenv.OwnKafka(t, kafkaserver.Config{Secure: kafkaserver.Secure{Users: map[string]string{"ann": password}, Advertised: dead}})
	topic := newTopic(t, []string{s.Addr()}, 1, nil)
	for name, change := range map[string]func(*Config){
		"plain":                  func(*Config) {},
		"a template for a topic": func(c *Config) { c.Topic = "{{ .Event.Type }}" },
		"transactional":          func(c *Config) { c.Transactional = true },
		"exactly once":           func(c *Config) { c.ExactlyOnce, c.TransactionalID = true, "unit" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, []string{s.SecureAddr()}, to(topic), change, func(c *Config) {
				c.SASL = &SASL{Mechanism: SASLPlain, Username: "ann", Password: handlers.NewSecret(password)}
				c.DeliveryTimeout = 2 * time.Second
			})
			deliverytest.WantText(t, h.Check(t.Context()), words...)
			if name == "a template for a topic" {
				return // the event's own topic does not exist
			}

			var err error
			if h.cfg.ExactlyOnce {
				_, err = h.OpenPosition(t.Context(), "unit/0", &counter{})
			} else {
				err = h.Deliver(t.Context(), events(1)[0])
			}
			deliverytest.WantClass(t, err, "unavailable")
			deliverytest.WantText(t, err, words...)
		})
	}
}

// TestLink: an address that was configured is no fault of advertised.listeners, and what was reached since is forgotten.
func TestLink(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	unknown := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "kafka"}}
	late := &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
	seed, one := kgo.BrokerMetadata{NodeID: -5, Host: "seed", Port: 9092}, kgo.BrokerMetadata{NodeID: 1, Host: "kafka", Port: 9092}
	own := kgo.BrokerMetadata{NodeID: 2, Host: "seed", Port: 9092}
	type dial struct {
		to  kgo.BrokerMetadata
		err error
	}
	for name, c := range map[string]struct {
		dials []dial
		want  string
	}{
		"nothing":        {nil, "late"},
		"seed":           {[]dial{{seed, refused}}, "late: dial tcp: connection refused"},
		"configured":     {[]dial{{own, refused}}, "late: dial tcp: connection refused"},
		"refused":        {[]dial{{seed, nil}, {one, refused}}, "late: the broker advertises kafka:9092 (advertised.listeners), where nothing listens: dial tcp: connection refused"},
		"unknown name":   {[]dial{{one, unknown}}, "late: the broker advertises kafka:9092 (advertised.listeners), a name that is not known here: dial tcp: lookup kafka: no such host"},
		"no answer":      {[]dial{{one, late}}, "late: the broker advertises kafka:9092 (advertised.listeners), which does not answer: dial tcp: context deadline exceeded"},
		"reached since":  {[]dial{{one, refused}, {one, nil}}, "late"},
		"a wrong secret": {[]dial{{one, refused}, {one, errors.New("login")}}, "late: login"},
		"all are down":   {[]dial{{one, refused}, {seed, refused}}, "late: dial tcp: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLink(Config{Brokers: []string{"seed"}})
			for _, d := range c.dials {
				l.OnBrokerConnect(d.to, 0, nil, d.err)
			}
			if got := l.explain(errors.New("late")).Error(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
