package testenv

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
)

// TestRabbitMQ checks the cleanup of its subtest, which must not run in parallel.
func TestRabbitMQ(t *testing.T) { //nolint:tparallel // see above
	t.Parallel()
	Long(t)
	var first, second Broker
	t.Run("two vhosts", func(t *testing.T) {
		first, second = RabbitMQ(t), RabbitMQ(t)
		for _, b := range []Broker{first, second} {
			conn, err := amqp.Dial(b.URL)
			if err != nil {
				t.Fatal(err)
			}
			// Still connected when the vhost is deleted.
			t.Cleanup(func() { _ = conn.Close() })
			ch, err := conn.Channel()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
				t.Error(err)
			}
		}
	})
	if first.Server == nil {
		return // not the private node
	}
	if first.URL == second.URL || first.Server != second.Server {
		t.Errorf("vhosts %s and %s", first.URL, second.URL)
	}
	if conn, err := amqp.Dial(first.URL); err == nil {
		t.Errorf("%s still exists", first.URL)
		_ = conn.Close()
	}
	own := OwnRabbitMQ(t, rabbitserver.Config{})
	if own.Addr() == first.Server.Addr() {
		t.Error("OwnRabbitMQ returned the shared node")
	}
}
