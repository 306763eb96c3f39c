package integration

import (
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/nats"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestBalancer: of two servers behind a balancer of connections, one refuses all events. Neither an answer that counts an
// attempt nor one that asks for fewer requests keeps events on the connection to that server.
func TestBalancer(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const events = 25
	for _, code := range []int{http.StatusInternalServerError, http.StatusConflict, http.StatusTooManyRequests} {
		for _, mode := range bothModes() {
			t.Run(http.StatusText(code)+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				e := newEnvIn(t, mode)
				var refused atomic.Int32
				bad := startHTTPReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
					refused.Add(1)
					w.WriteHeader(code)
				})
				good := startHTTPReceiver(t, nil)
				h, err := webhook.New(webhook.Config{URL: (&url.URL{Scheme: "http", Host: testenv.Balancer(t, bad.addr, good.addr)}).String()})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := h.Close(); err != nil {
						t.Error(err)
					}
				})
				wait := delivery.Backoff{Initial: 300 * time.Millisecond, Max: 300 * time.Millisecond, Multiplier: 1}
				e.relay(handleAll(t, h, delivery.Lane{MaxAttempts: 5, Backoff: wait}), notifyd.Config{})
				// One at a time: each finds the connection of the one before it.
				for range events {
					e.untilState(e.insert("order", `{}`), "done")
				}
				if dead := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); dead != 0 {
					t.Errorf("%d of %d events are dead", dead, events)
				}
				good.mu.Lock()
				arrived := len(good.count)
				good.mu.Unlock()
				if arrived != events || refused.Load() == 0 {
					t.Errorf("%d of %d events arrived, and %d requests were refused", arrived, events, refused.Load())
				}
				t.Logf("%d requests were refused", refused.Load())
			})
		}
	}
}

// TestServersTakeTurns: before each event the server that took the one before it has lost its stream, and keeps its connections
// open. A retry finds the other server, before the event has used up its attempts.
func TestServersTakeTurns(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const events = 8
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, mode)
			var servers [2]jetstream.JetStream
			var addrs []string
			for i := range servers {
				s := testenv.OwnNATS(t, "jetstream: {}")
				conn, err := natsgo.Connect("nats://" + s.Addr())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(conn.Close)
				if servers[i], err = jetstream.New(conn); err != nil {
					t.Fatal(err)
				}
				addrs = append(addrs, s.Addr())
			}
			subjects := func(server int, subject string) {
				_, err := servers[server].CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "O", Subjects: []string{subject}})
				if err != nil {
					t.Fatal(err)
				}
			}
			h := deliverytest.Open(t, nats.New, nats.Config{
				Servers: []string{"nats://" + testenv.Balancer(t, addrs...)}, Subject: "o.{{ .Event.Type }}",
			})
			wait := delivery.Backoff{Initial: 100 * time.Millisecond, Max: 100 * time.Millisecond, Multiplier: 1}
			e.relay(handleAll(t, h, delivery.Lane{MaxAttempts: 3, Backoff: wait}), notifyd.Config{})

			for i := range events {
				subjects(1-i%2, "o.>")
				subjects(i%2, "lost")
				e.untilState(e.insert("order", `{}`), "done")
			}
			if dead := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); dead != 0 {
				t.Errorf("%d of %d events are dead", dead, events)
			}
			for i, js := range servers {
				s, err := js.Stream(t.Context(), "O")
				if err != nil {
					t.Fatal(err)
				}
				if n := s.CachedInfo().State.Msgs; n != events/2 {
					t.Errorf("server %d has %d of %d events", i, n, events)
				}
			}
		})
	}
}
