package rabbitmq_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// patience bounds waiting for something that is to happen; no test expects it
// to run out.
const patience = 60 * time.Second

func TestMain(m *testing.M) { testenv.Main(m) }

// open returns a handler that the end of the test closes.
func open(tb testing.TB, cfg rabbitmq.Config, opts ...handlers.Option) *rabbitmq.Handler {
	tb.Helper()
	return deliverytest.Open(tb, rabbitmq.New, cfg, opts...)
}

// to is the configuration for a queue on the broker at url.
func to(url, queue string) rabbitmq.Config {
	return rabbitmq.Config{URL: handlers.NewSecret(url), RoutingKey: queue}
}

func event(id int64) *delivery.Event {
	return &delivery.Event{
		ID: id, Type: "order.placed", AggregateType: "order", AggregateID: strconv.FormatInt(id, 10),
		Payload: json.RawMessage(fmt.Sprintf(`{"n": %d}`, id)), Headers: map[string]string{"tenant": "acme"},
		CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Attempt: 1, Destination: "rabbit",
	}
}

func events(from, n int64) []*delivery.Event {
	all := make([]*delivery.Event, n)
	for i := range all {
		all[i] = event(from + int64(i))
	}
	return all
}

// broker is another client of the same broker: what it reads has nothing to do
// with the handler's connection.
type broker struct {
	tb  testing.TB
	url string
}

// channel returns a channel on a connection of its own.
func (b broker) channel() *amqp.Channel {
	b.tb.Helper()
	conn, err := amqp.Dial(b.url)
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		b.tb.Fatal(err)
	}
	return ch
}

// queue declares a durable queue.
func (b broker) queue(name string, args amqp.Table) {
	b.tb.Helper()
	ch := b.channel()
	defer ch.Close() //nolint:errcheck // its work is done
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		b.tb.Fatal(err)
	}
}

// take empties a queue.
func (b broker) take(queue string) []amqp.Delivery {
	b.tb.Helper()
	ch := b.channel()
	defer ch.Close() //nolint:errcheck // its work is done
	var all []amqp.Delivery
	for {
		d, ok, err := ch.Get(queue, true)
		if err != nil {
			b.tb.Fatal(err)
		}
		if !ok {
			return all
		}
		all = append(all, d)
	}
}

// ids returns the message ids of the result of take.
func ids(all []amqp.Delivery) []int64 {
	out := make([]int64, len(all))
	for i, d := range all {
		out[i], _ = strconv.ParseInt(d.MessageId, 10, 64)
	}
	return out
}

// own starts a broker for this test alone. A start takes seconds: a short run has it for the suite only.
func own(t *testing.T, cfg rabbitserver.Config) (*rabbitserver.Server, broker) {
	t.Helper()
	testenv.Long(t)

	s := testenv.OwnRabbitMQ(t, cfg)
	return s, broker{t, s.URL("")}
}

// settled ends soon after everything is as it should be: the first nil of try.
func settled(tb testing.TB, what string, try func() error) {
	tb.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			tb.Fatalf("%s: still %v after %v", what, err, patience)
		}
	}
}

// logged is a log to look into.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logged) count(s string) int { return strings.Count(l.String(), s) }

// tells waits until a text has been logged, and fails unless it was n times.
func (l *logged) tells(t *testing.T, text string, n int) {
	t.Helper()
	settled(t, text, func() error {
		if l.count(text) < n {
			return errors.New("not logged")
		}
		return nil
	})
	if got := l.count(text); got != n {
		t.Errorf("%q is logged %d times, want %d:\n%s", text, got, n, l.String())
	}
}

func (l *logged) option() handlers.Option {
	return handlers.WithLogger(slog.New(slog.NewTextHandler(io.Writer(l), nil)))
}

// isUnavailable fails unless err is a fault of the destination that says all of
// want.
func isUnavailable(tb testing.TB, err error, want ...string) {
	tb.Helper()
	if !delivery.IsUnavailable(err) || delivery.IsPermanent(err) {
		tb.Errorf("%v is not the destination's fault", err)
		return
	}
	deliverytest.WantText(tb, err, want...)
}

func isPermanent(tb testing.TB, err error, want ...string) {
	tb.Helper()
	if delivery.IsUnavailable(err) || !delivery.IsPermanent(err) {
		tb.Errorf("%v is not permanent", err)
		return
	}
	deliverytest.WantText(tb, err, want...)
}

// isRetried fails unless err counts as an attempt.
func isRetried(tb testing.TB, err error, want ...string) {
	tb.Helper()
	if err == nil || delivery.IsUnavailable(err) || delivery.IsPermanent(err) {
		tb.Errorf("%v is not an attempt that failed", err)
		return
	}
	deliverytest.WantText(tb, err, want...)
}

func port(tb testing.TB, s string) int {
	tb.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}
