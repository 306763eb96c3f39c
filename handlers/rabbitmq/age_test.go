package rabbitmq

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestConnectionsHaveAnAge: a connection that is always in use is replaced, and no delivery notices.
func TestConnectionsHaveAnAge(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	url := testenv.RabbitMQ(t).URL
	other, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close() //nolint:errcheck // nothing was sent
	ch, err := other.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	h, err := New(Config{URL: handlers.NewSecret(url), RoutingKey: "q"})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close() //nolint:errcheck // it returns none
	h.age = 5 * time.Millisecond
	seen := make(map[*connection]bool)
	var mu sync.Mutex
	sent := 0
	more := func() bool {
		mu.Lock()
		defer mu.Unlock()
		if c := h.connector.current(); c != nil {
			seen[c] = true
		}
		if len(seen) >= 5 {
			return false
		}
		sent++
		return true
	}
	var senders sync.WaitGroup
	for sender := range int64(4) {
		senders.Go(func() {
			for i := int64(1); more(); i++ {
				e := &delivery.Event{ID: 1000*sender + i, Type: "x", Payload: json.RawMessage(`{}`)}
				if err := h.Deliver(t.Context(), e); err != nil {
					t.Error(err)
				}
			}
		})
	}
	senders.Wait()
	if q, err := ch.QueueDeclarePassive("q", true, false, false, false, nil); err != nil || q.Messages != sent {
		t.Errorf("of %d messages %d came: %v", sent, q.Messages, err)
	}
}
