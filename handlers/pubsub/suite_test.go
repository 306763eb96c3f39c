//go:build testall

package pubsub

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestConformance runs the emulator through the suite, once as it is, and once behind TLS
// with the key of a service account.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, secured := range []bool{false, true} {
		name := map[bool]string{false: "emulator", true: "service account"}[secured]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := newTopic(t, "refuse-me")
			cfg, scheme, upstream, secrets := top.config(), "http://", strings.TrimPrefix(top.endpoint, "http://"), []string(nil)
			var newEvent func(int64) *delivery.Event
			if secured {
				g := startGoogle(t, top.endpoint)
				cfg.CredentialsFile, cfg.TLS = g.keyFile(t), g.trusted(t)
				scheme, upstream, secrets = "https://", g.pubsub.Listener.Addr().String(), g.secrets()
				// A new connection needs answers for its handshake, so there must be one only.
				newEvent = func(id int64) *delivery.Event { return event(id, `{}`) }
			}
			proxy := handlertest.StartProxy(t, upstream)
			cfg.Endpoint = scheme + proxy.Addr()
			handlertest.Run(t, handlertest.Destination{
				Open:     deliverytest.Opener(New, cfg),
				Received: func(tb testing.TB) []int64 { tb.Helper(); return top.ids(tb) },
				Event:    newEvent,
				Rejected: func(id int64) *delivery.Event {
					e := event(id, `{"text": "refuse-me"}`)
					e.AggregateID = "bad" // an unclear refusal holds up its aggregate
					return e
				},
				Network: proxy,
				Secrets: secrets,
				Ordered: true,
				Cases: []handlertest.Case{
					{
						Name: "no such topic", Class: delivery.ClassDestination, Text: "create the topic",
						Provoke: deliverytest.Once(New, cfg, event(1, `{}`), func(c *Config) { c.Topic = "nowhere" }),
					},
					{
						Name: "not as the schema wants it", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "failed schema validation",
						Provoke: deliverytest.Once(New, cfg, event(1, `"refuse-me"`)),
					},
					{
						Name: "too large", Class: delivery.ClassEvent, Permanent: true, Text: "Pub/Sub takes 10000000",
						Provoke: deliverytest.Once(New, cfg, event(1, `"`+strings.Repeat("x", maxBytes)+`"`)),
					},
					{
						Name: "a key that cannot be made", Class: delivery.ClassEvent, Permanent: true, Text: "ordering_key",
						Provoke: deliverytest.Once(New, cfg, event(1, `{}`), func(c *Config) { c.OrderingKey = "{{ .Payload.customer }}" }),
					},
				},
			})
		})
	}
}

// TestReplayIsNoDuplicate: consumers drop messages with a known id.
func TestReplayIsNoDuplicate(t *testing.T) {
	t.Parallel()
	enc, err := newEncoder(Config{})
	if err != nil {
		t.Fatal(err)
	}
	e := event(42, `1`)
	for replay, want := range []string{"42", "42r1", "42r2"} {
		e.Replay = replay
		out, err := enc.encode(e)
		if err != nil || out.Attributes["notifyd-id"] != want {
			t.Errorf("replay %d: %+v, %v; want %s", replay, out, err, want)
		}
	}
}
