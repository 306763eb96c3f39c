package destinations

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/handlers/file"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/handlers/nats"
	"github.com/notifyd/notifyd/handlers/postgres"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/handlers/redis"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestServer: a destination with a single server has its host and its port, and never a credential.
func TestServer(t *testing.T) {
	t.Parallel()
	secret := handlers.NewSecret
	for name, c := range map[string]struct {
		config any
		host   string
		port   int
	}{
		"kafka":             {kafka.Config{Brokers: []string{"broker:9094"}}, "broker", 9094},
		"kafka, no port":    {kafka.Config{Brokers: []string{"broker"}}, "broker", 0},
		"kafka, two":        {kafka.Config{Brokers: []string{"a:1", "b:1"}}, "", 0},
		"nats":              {nats.Config{Servers: []string{"nats://user:secret@n:4222"}}, "n", 4222},
		"redis":             {redis.Config{URL: secret("rediss://:secret@r:6380/0")}, "r", 6380},
		"redis, IPv6":       {redis.Config{Addresses: []string{"[::1]:6379"}}, "::1", 6379},
		"redis, sentinel":   {redis.Config{Addresses: []string{"s:26379"}, SentinelMaster: "m"}, "", 0},
		"rabbitmq":          {rabbitmq.Config{URL: secret("amqp://u:secret@q:5673/v")}, "q", 5673},
		"rabbitmq, default": {rabbitmq.Config{}, "localhost", 5672},
		"email":             {email.Config{Host: "mail", Port: 2525}, "mail", 2525},
		"postgres":          {postgres.Config{URL: secret("postgres://u:secret@p:5432/d")}, "p", 5432},
		"postgres, two":     {postgres.Config{URL: secret("postgres://u:secret@p,q:5432/d")}, "", 0},
		"postgres, words":   {postgres.Config{URL: secret("host=p password=secret")}, "", 0},
		"postgres, @":       {postgres.Config{URL: secret("postgres://u:sec@ret@q/d")}, "q", 0},
		"postgres, /":       {postgres.Config{URL: secret("postgres://u:12/3@q/d")}, "", 0},
		"webhook":           {webhook.Config{URL: "https://hook.example/a?b=c"}, "hook.example", 0},
		"webhook, template": {webhook.Config{URL: "https://{{ .Event.Header.host }}/a"}, "", 0},
		"log":               {file.LogConfig{}, "", 0},
	} {
		if host, port := serverOf(c.config); host != c.host || port != c.port {
			t.Errorf("%s: %q, %d", name, host, port)
		}
	}
}

// TestMessagingSystems: each destination type has a name in the semantic conventions, or is known to have none.
// docs/tracing.md lists the names.
func TestMessagingSystems(t *testing.T) {
	t.Parallel()
	page := testenv.ReadFile(t, "../../../docs/tracing.md")
	none := []string{"email", "file", "log", "postgres", "slack", "webhook"}

	for name, fresh := range Registry("", io.Discard, io.Discard) {
		system := MessagingSystem(fresh())
		if (system == "") != slices.Contains(none, name) {
			t.Errorf("%s is %q", name, system)
		}
		if !strings.Contains(page, "`"+system+"`") && system != "" {
			t.Errorf("docs/tracing.md lacks the %s of %s", system, name)
		}
	}
}
