package nats

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestBalancer: a retry does not go over a connection to a server that refuses everything.
func TestBalancer(t *testing.T) {
	t.Parallel()
	for name, subject := range map[string]string{"one subject": "o.order.created", "a subject of the event": "o.{{ .Event.Type }}"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var servers []string
			var streams []jetstream.JetStream
			for range 2 {
				s := testenv.OwnNATS(t, "jetstream: {}")
				_, js := client(t, s.Addr())
				servers, streams = append(servers, s.Addr()), append(streams, js)
			}
			h := open(t, "nats://"+testenv.Balancer(t, servers...), to(subject))
			deliverytest.Failover(t, h, events(deliverytest.UpTo(10)...), func(server int) {
				newStream(t, streams[1-server], jetstream.StreamConfig{Name: "O", Subjects: []string{"o.>"}})
				newStream(t, streams[server], jetstream.StreamConfig{Name: "O", Subjects: []string{"other"}})
			})
		})
	}
}
