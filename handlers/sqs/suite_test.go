//go:build testall

package sqs

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestConformance runs a standard and a FIFO queue of the emulator through the
// suite.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, suffix := range map[string]string{"standard": "", "fifo": fifoSuffix} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint := testenv.SQS(t)
			q := awstest.NewQueue(t, endpoint, suffix, map[string]string{"MaximumMessageSize": "100000"})
			proxy := handlertest.StartProxy(t, strings.TrimPrefix(endpoint, "http://"))
			cfg := config("http://" + proxy.Addr())
			cfg.Queue = q.Name
			big := func(id int64) *delivery.Event {
				return awstest.Event(id, `"`+strings.Repeat("x", 100_000)+`"`)
			}
			handlertest.Run(t, handlertest.Destination{
				Open:     deliverytest.Opener(New, cfg),
				Received: func(tb testing.TB) []int64 { tb.Helper(); return q.IDs(tb) },
				Message:  q.Message,
				Rejected: big,
				Network:  proxy,
				Secrets:  []string{awstest.Secret},
				Ordered:  suffix == fifoSuffix,
				Cases: []handlertest.Case{
					{
						Name: "no such queue", Class: delivery.ClassDestination, Text: "The specified queue does not exist",
						Provoke: deliverytest.Once(New, cfg, awstest.Event(1, `{}`), func(c *Config) { c.Queue = "nowhere" + suffix }),
					},
					{
						Name: "no such URL", Class: delivery.ClassDestination, Text: "The specified queue does not exist",
						Provoke: deliverytest.Once(New, cfg, awstest.Event(1, `{}`), func(c *Config) {
							c.Queue, c.QueueURL = "", strings.Replace(q.URL, q.Name, "nowhere"+suffix, 1)
						}),
					},
					{
						Name: "too large for the queue", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "must be shorter than 100000 bytes",
						Provoke: deliverytest.Once(New, cfg, big(1)),
					},
					{
						Name: "too large for SQS", Class: delivery.ClassEvent, Permanent: true, Text: "SQS takes 1048576",
						Provoke: deliverytest.Once(New, cfg, awstest.Event(1, `"`+strings.Repeat("x", maxBytes)+`"`)),
					},
					{
						Name: "a character that SQS does not take", Class: delivery.ClassEvent, Permanent: true, Text: "U+FFFE",
						Provoke: deliverytest.Once(New, cfg, awstest.Event(1, "\"\ufffe\"")),
					},
					{
						Name: "no payload", Class: delivery.ClassEvent, Permanent: true, Text: "empty",
						Provoke: deliverytest.Once(New, cfg, &delivery.Event{ID: 1, Type: "x", Payload: json.RawMessage{}}),
					},
				},
			})
		})
	}
}
