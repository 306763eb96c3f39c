package rabbitmq

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	const password = "hunter2hunter2"
	for want, change := range map[string]func(c *Config){
		"":                                             func(*Config) {},
		"exchange: missing":                            func(c *Config) { c.RoutingKey = "" },
		"url: is not a URL":                            func(c *Config) { c.URL = handlers.NewSecret("amqp://u:" + password + "%zz@h") },
		"url: must begin with amqp://":                 func(c *Config) { c.URL = handlers.NewSecret("http://u:" + password + "@h") },
		"url: must have nothing after ?":               func(c *Config) { c.URL = handlers.NewSecret("amqp://u:" + password + "@h/v?heartbeat=5") },
		"url: has more than one part":                  func(c *Config) { c.URL = handlers.NewSecret("amqp://u:" + password + "@h/a/b") },
		"host: url is set too":                         func(c *Config) { c.URL, c.Host = handlers.NewSecret("amqp://h"), "h" },
		"tls: has no effect with an amqp:// url":       func(c *Config) { c.URL, c.TLS = handlers.NewSecret("amqp://h"), &handlers.TLS{} },
		"host: must be a name or an address":           func(c *Config) { c.Host = "h:5672" },
		"port: must be 1 to 65535":                     func(c *Config) { c.Port = 70000 },
		"password: missing":                            func(c *Config) { c.Username = "u" },
		"username: missing":                            func(c *Config) { c.Password = handlers.NewSecret(password) },
		"auth: unknown word":                           func(c *Config) { c.Auth = "kerberos" },
		"auth: external shows a certificate":           func(c *Config) { c.Auth = AuthExternal },
		"tls.key_file: missing":                        func(c *Config) { c.TLS = &handlers.TLS{CertFile: "x"} },
		"unroutable: unknown word":                     func(c *Config) { c.Unroutable = "lose" },
		"heartbeat: must be 1s to 10m0s":               func(c *Config) { c.Heartbeat = 1 },
		"confirm_timeout: must be positive":            func(c *Config) { c.ConfirmTimeout = -1 },
		"max_message_bytes: must be 1 to":              func(c *Config) { c.MaxMessageBytes = -1 },
		"app_id: must have 255 bytes":                  func(c *Config) { c.AppID = strings.Repeat("x", 256) },
		`routing_key: template "routing_key"`:          func(c *Config) { c.RoutingKey = "{{ .Paylod }}" },
		"routing_key: its result has 300 bytes":        func(c *Config) { c.RoutingKey = strings.Repeat("x", 300) },
		"message_priority: its result must be a whole": func(c *Config) { c.MessagePriority = "300" },
		"expiration: its result must be a":             func(c *Config) { c.Expiration = "soon" },
		"format: must be":                              func(c *Config) { c.Format = "xml" },
		"declare.queues.0.name: missing":               func(c *Config) { c.Declare.Queues = []Queue{{}} },
		"declare.exchanges.0.name: names that":         func(c *Config) { c.Declare.Exchanges = []Exchange{{Name: "amq.topic"}} },
		"declare.queues.0.arguments: x is a":           func(c *Config) { c.Declare.Queues = []Queue{{Name: "q", Arguments: map[string]any{"x": struct{}{}}}} },
		"declare.bindings.0.exchange: missing":         func(c *Config) { c.Declare.Bindings = []Binding{{Queue: "q"}} },
	} {
		cfg := Config{RoutingKey: "q"}
		change(&cfg)
		_, err := New(cfg)
		switch {
		case want == "" && err != nil:
			t.Errorf("a good configuration: %v", err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("want %q, got %v", want, err)
		case err != nil && strings.Contains(err.Error(), password):
			t.Errorf("the password is shown: %v", err)
		}
		for _, e := range field.Split(err) {
			if field.Path(e) == "" {
				t.Errorf("%v names no setting", e)
			}
		}
	}
}

func TestTarget(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]target{
		"amqp://h":                    {host: "h", port: "5672", username: "guest", password: "guest", vhost: "/"},
		"amqp://h/":                   {host: "h", port: "5672", username: "guest", password: "guest", vhost: "/"},
		"amqps://u:p%40@h/%2Fv":       {host: "h", port: "5671", username: "u", password: "p@", vhost: "/v", encrypted: true},
		"amqp://u:p@[::1]:1/a%20b":    {host: "::1", port: "1", username: "u", password: "p", vhost: "a b"},
		"amqp://u:p@127.0.0.1:5673/v": {host: "127.0.0.1", port: "5673", username: "u", password: "p", vhost: "v"},
	} {
		if got, err := (Config{URL: handlers.NewSecret(raw)}).target(); err != nil || got != want {
			t.Errorf("%s: %+v, %v", raw, got, err)
		}
	}
}

// TestClassify names the real failure behind each row. The rows that a broker
// can be made to give are those of faults as well.
func TestClassify(t *testing.T) {
	t.Parallel()
	const (
		unavailable, permanent, retried, throttled = "unavailable", "permanent", "retry", "throttled"
		relay                                      = "relay"
		unclear, unclearPermanent                  = "unclear-retry", "unclear-permanent"
	)
	for _, c := range []struct {
		what string
		f    failure
		want string
	}{
		{"template error, too large, bad expiration", failure{at: stageMessage}, permanent},
		{"connection refused", failure{at: stageConnect}, unavailable},
		{"wrong password", failure{at: stageConnect, code: 403}, unavailable},
		{"no such vhost", failure{at: stageConnect, code: 530}, unavailable},
		{"declared otherwise", failure{at: stageDeclare, code: 406}, unavailable},
		{"memory alarm", failure{at: stageBlocked}, unavailable},
		{"connection lost", failure{at: stageLost}, unavailable},
		{"connection closed by an operator", failure{at: stageLost, code: 320}, unavailable},
		{"connect_timeout, confirm_timeout", failure{at: stageConfirm, err: context.DeadlineExceeded}, unavailable},
		{"queue full with reject-publish", failure{at: stageNack}, unavailable},
		{"nothing bound", failure{at: stageReturned, code: 312}, unavailable},
		{"nothing bound to this event's key", failure{at: stageReturned, code: 312, own: true}, unclear},
		{"nothing bound, with unroutable: retry", failure{at: stageReturned, code: 312, counts: true}, retried},
		{"behind another event", failure{at: stageBehind}, throttled},
		{"perhaps kept by the exchange", failure{at: stageDelay}, unavailable},
		{"no such exchange", failure{at: stageRefused, code: 404}, unavailable},
		{"no such exchange, of the event", failure{at: stageRefused, code: 404, own: true}, unclear},
		{"may not write", failure{at: stageRefused, code: 403}, unavailable},
		{"may not write, of the event", failure{at: stageRefused, code: 403, own: true}, unclear},
		{"a property that the broker does not take", failure{at: stageRefused, code: 406}, unclearPermanent},
		{"too large, in the words of the protocol", failure{at: stageRefused, code: 311, own: true}, permanent},
		{"the broker's own error", failure{at: stageRefused, code: 541, own: true}, unavailable},
		{"closed handler", failure{at: stageClosed}, unavailable},
		{"cancelled", failure{at: stageConfirm, err: context.Canceled, ours: true}, relay},
		{"deadline of the caller", failure{at: stageLost, err: context.DeadlineExceeded, ours: true}, relay},
	} {
		err := classify(&c.f)
		got := deliverytest.Class(err)
		if got != c.want {
			t.Errorf("%s is %s, want %s", c.what, got, c.want)
		}
		if c.f.err != nil && !errors.Is(err, c.f.err) {
			t.Errorf("%s: the cause is lost: %v", c.what, err)
		}
	}
}
