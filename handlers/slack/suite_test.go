package slack

import (
	"encoding/json"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
)

// TestConformance runs both ways of posting through the suite.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]struct {
		config func(host string) Config
		secret string
	}{
		"token": {func(host string) Config {
			cfg := config(host)
			cfg.Channel = "C{{ .Event.ID }}"
			return cfg
		}, testToken},
		"webhook": {hookConfig, testHook},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			proxy := handlertest.StartProxy(t, s.host())
			once := func(r reply) func(testing.TB) error {
				return func(tb testing.TB) error {
					tb.Helper()
					s.says(&r)
					defer s.says(nil)
					return newHandler(tb, way.config(proxy.Addr())).Deliver(tb.Context(), event(`{}`))
				}
			}
			handlertest.Run(t, handlertest.Destination{
				Open:     func(tb testing.TB) delivery.Handler { tb.Helper(); return newHandler(tb, way.config(proxy.Addr())) },
				Received: func(testing.TB) []int64 { return s.received() },
				Rejected: func(id int64) *delivery.Event {
					return &delivery.Event{ID: id, Type: "x", Payload: json.RawMessage(`{`)}
				},
				Network: proxy,
				Secrets: []string{way.secret, "wrong-token-9876543210"},
				Cases: []handlertest.Case{
					{
						Name: "throttled", Class: delivery.ClassDestination, Throttled: true, RetryAfter: 30e9, Text: "HTTP 429 Too Many Requests: ratelimited",
						Provoke: once(reply{429, map[string]string{"Retry-After": "30"}, `{"ok":false,"error":"ratelimited"}`}),
					},
					{
						Name: "out of order", Class: delivery.ClassDestination, Text: "HTTP 503",
						Provoke: once(reply{503, nil, "<html>" + way.secret + "</html>"}),
					},
					{
						Name: "the message", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "invalid_blocks",
						Provoke: once(reply{400, nil, "invalid_blocks"}),
					},
					{
						Name: "unknown", Class: delivery.ClassEvent, Unclear: true, Text: "never_heard_of",
						Provoke: once(reply{400, nil, "never_heard_of"}),
					},
					{
						Name: "a wrong token", Class: delivery.ClassDestination, Text: "invalid_auth (give a valid bot token)",
						Provoke: func(tb testing.TB) error {
							tb.Helper()
							cfg := config(proxy.Addr())
							cfg.Token = handlers.NewSecret("wrong-token-9876543210")
							return newHandler(tb, cfg).Deliver(tb.Context(), event(`{}`))
						},
					},
				},
			})
		})
	}
}
