//go:build testall

package eventbridge

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	endpoint := testenv.AWS(t)
	bus := awstest.NewBus(t, endpoint)
	proxy := handlertest.StartProxy(t, strings.TrimPrefix(endpoint, "http://"))
	cfg := Config{EventBus: bus.Name, AWS: awstest.Access("http://" + proxy.Addr())}
	list := func(id int64) *delivery.Event { return awstest.Event(id, `[1]`) }
	handlertest.Run(t, handlertest.Destination{
		Open: deliverytest.Opener(New, cfg),
		Received: func(tb testing.TB) (ids []int64) {
			tb.Helper()
			for _, e := range bus.Events(tb) {
				ids = append(ids, awstest.Number(tb, e.Header("notifyd-id")))
			}
			return ids
		},
		Rejected: list,
		Network:  proxy,
		Secrets:  []string{awstest.Secret},
		Cases: []handlertest.Case{
			{
				Name: "no such bus", Class: delivery.ClassDestination, Text: "check event_bus, region and account",
				Provoke: deliverytest.Once(New, cfg, awstest.Event(1, `{}`), func(c *Config) { c.EventBus = "nowhere" }),
			},
			{
				Name: "no object", Class: delivery.ClassEvent, Permanent: true, Text: "not a JSON object",
				Provoke: deliverytest.Once(New, cfg, list(1)),
			},
			{
				Name: "too large", Class: delivery.ClassEvent, Permanent: true, Text: "EventBridge takes 999999",
				Provoke: deliverytest.Once(New, cfg, awstest.Big(1, maxBytes)),
			},
		},
	})
}

// TestEvent compares what rules see with the event.
func TestEvent(t *testing.T) {
	t.Parallel()
	endpoint := testenv.AWS(t)
	for name, c := range map[string]struct {
		change func(*Config)
		want   awstest.Arrived
	}{
		"payload": {func(*Config) {}, awstest.Arrived{
			Source: "notifyd", DetailType: "order.created", Detail: json.RawMessage(`{"a": 1}`),
			Resources: []string{"notifyd-id:42", "notifyd-aggregate-type:order", "notifyd-aggregate-id:A-7", "tenant:acme"},
		}},
		"structured": {func(c *Config) { c.Format = handlers.FormatCloudEventsStructured }, awstest.Arrived{
			Source: "notifyd", DetailType: "order.created", Resources: []string{"tenant:acme"},
			Detail: json.RawMessage(`{"specversion": "1.0", "id": "42", "source": "/notifyd", "type": "order.created", "datacontenttype": "application/json", ` +
				`"subject": "A-7", "time": "2026-03-04T05:06:07Z", "partitionkey": "A-7", "aggregatetype": "order", "data": {"a": 1}}`),
		}},
		"templates": {
			func(c *Config) {
				c.Source, c.DetailType, c.Body = "shop.{{ .Headers.tenant }}", "OrderCreated", `{"order": {{ json .Payload.a }}}`
				c.Resources = []string{"order/{{ .Event.AggregateID }}", `{{ get .Headers "none" | default "" }}`}
			}, awstest.Arrived{
				Source: "shop.acme", DetailType: "OrderCreated", Detail: json.RawMessage(`{"order": 1}`),
				Resources: []string{"order/A-7", "notifyd-id:42", "notifyd-aggregate-type:order", "notifyd-aggregate-id:A-7", "tenant:acme"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bus := awstest.NewBus(t, endpoint)
			cfg := Config{EventBus: bus.ARN, AWS: awstest.Access(endpoint)}
			c.change(&cfg)
			h := deliverytest.Open(t, New, cfg)
			e := awstest.Event(42, `{"a":  1}`)
			if err := h.Deliver(awstest.Context(t), e); err != nil {
				t.Fatal(err)
			}
			all := bus.Events(t)
			if len(all) != 1 {
				t.Fatalf("got %+v", all)
			}
			got := all[0]
			if got.Source != c.want.Source || got.DetailType != c.want.DetailType || string(got.Detail) != string(c.want.Detail) ||
				!slices.Equal(got.Resources, c.want.Resources) || got.Time != "2026-03-04T05:06:07Z" {
				t.Errorf("got  %+v, %s\nwant %+v, %s", got, got.Detail, c.want, c.want.Detail)
			}
			text, err := h.Preview(e)
			for _, want := range []string{"source: " + c.want.Source + "\n", "resource: tenant:acme\n", "time: 2026-03-04T05:06:07Z\n"} {
				if err != nil || !strings.Contains(text, want) {
					t.Errorf("%v: %s", err, text)
				}
			}
			if err := h.Check(awstest.Context(t)); err != nil {
				t.Error(err)
			}
		})
	}
}
