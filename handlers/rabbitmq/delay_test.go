package rabbitmq_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// delaying starts a broker that has the exchange type x-delayed-message, an exchange of this type named later, and a queue
// that is bound to it by the key q.
func delaying(t *testing.T) (*rabbitserver.Server, broker) {
	t.Helper()
	s, b := own(t, rabbitserver.Config{})
	if err := s.DelayMessages(t.Context()); errors.Is(err, rabbitserver.ErrOtherVersion) {
		testenv.Need(t, "rabbitmq", err)
	} else if err != nil {
		t.Fatal(err)
	}

	b.queue("q", nil)
	ch := b.channel()
	if err := ch.ExchangeDeclare("later", "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": "direct"}); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind("q", "q", "later", false, nil); err != nil {
		t.Fatal(err)
	}
	return s, b
}

// delayed returns events with the header x-delay.
func delayed(from, n int64, ms string) []*delivery.Event {
	all := events(from, n)
	for _, e := range all {
		e.Headers = map[string]string{"x-delay": ms}
	}
	return all
}

// comes waits until n messages have arrived, and returns their ids, sorted.
func (b broker) comes(n int) []int64 {
	b.tb.Helper()
	var got []int64
	settled(b.tb, "the delayed messages", func() error {
		got = append(got, ids(b.take("q"))...)
		if len(got) < n {
			return fmt.Errorf("%d of %d have come", len(got), n)
		}
		return nil
	})
	slices.Sort(got)
	return got
}

// TestDelay has one broker for all that it shows.
func TestDelay(t *testing.T) { //nolint:tparallel // one after the other, at one broker
	t.Parallel()
	s, b := delaying(t)
	t.Run("once", func(t *testing.T) { deliversDelayed(t, b) })     //nolint:paralleltest // see above
	t.Run("no excuse", func(t *testing.T) { wantsQueue(t, b) })     //nolint:paralleltest // see above
	t.Run("unknown", func(t *testing.T) { waitsForRight(t, s, b) }) //nolint:paralleltest // see above
}

// deliversDelayed shows that a message that an exchange delays is delivered, once, although the broker returns it as
// unroutable.
func deliversDelayed(t *testing.T, b broker) {
	t.Helper()
	h := open(t, rabbitmq.Config{URL: to(b.url, "").URL, Exchange: "later", RoutingKey: "q"})
	deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), delayed(1, 10, "100")), "")
	deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), append(delayed(11, 10, "100"), event(21))), "")
	// The last ones to be kept come last.
	deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), delayed(22, 1, "200")), "")
	if got, want := b.comes(22), deliverytest.UpTo(22); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// wantsQueue shows that a message that the exchange does not keep must have a queue, whatever its headers say.
func wantsQueue(t *testing.T, b broker) {
	t.Helper()
	for name, c := range map[string]struct {
		exchange, key, delay, text string
	}{
		"no delay":                {"later", "nowhere", "0", "NO_ROUTE"},
		"not a number":            {"amq.direct", "nowhere", "soon", "NO_ROUTE"},
		"an ordinary exchange":    {"amq.direct", "nowhere", "100", "NO_ROUTE"},
		"the default exchange":    {"", "nowhere", "100", "NO_ROUTE"},
		"a missing exchange":      {"nowhere", "q", "100", "NOT_FOUND"},
		"a missing exchange, too": {"nowhere", "q", "100", "NOT_FOUND"}, // the question has made none
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, rabbitmq.Config{URL: to(b.url, "").URL, Exchange: c.exchange, RoutingKey: c.key})
			for range 2 {
				isUnavailable(t, h.Deliver(t.Context(), delayed(1, 1, c.delay)[0]), c.text)
			}
		})
	}
}

// waitsForRight shows that events wait where the broker does not tell whether an exchange delays messages, and that no attempt is
// another copy.
func waitsForRight(t *testing.T, s *rabbitserver.Server, b broker) {
	t.Helper()
	for _, args := range [][]string{{"add_user", appUser, appPassword}, {"set_permissions", appUser, "^$", ".*", ".*"}} {
		if _, err := s.Ctl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	h := open(t, rabbitmq.Config{
		Host: "127.0.0.1", Port: port(t, s.Addr()[len("127.0.0.1:"):]), Username: appUser, Password: handlers.NewSecret(appPassword),
		Exchange: "later", RoutingKey: "q",
	})
	for range 5 {
		isUnavailable(t, h.Deliver(t.Context(), delayed(1, 1, "1")[0]), "x-delay", "right to configure", "unroutable: drop")
	}
	if got := b.comes(1); !slices.Equal(got, []int64{1}) {
		t.Errorf("copies: %v", got)
	}

	if _, err := s.Ctl(t.Context(), "set_permissions", appUser, "later", ".*", ".*"); err != nil {
		t.Fatal(err)
	}
	settled(t, "delivery with the right", func() error { return h.Deliver(t.Context(), delayed(2, 1, "1")[0]) })
	if got := b.comes(1); !slices.Equal(got, []int64{2}) {
		t.Errorf("copies: %v", got)
	}
}
