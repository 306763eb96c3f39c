package destinations

import (
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/handlers/nats"
	"github.com/notifyd/notifyd/handlers/postgres"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/handlers/redis"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/config"
)

// TestServer: a destination with a single server has its host and its port, and never a credential.
func TestServer(t *testing.T) {
	t.Parallel()
	secret := handlers.NewSecret
	for name, c := range map[string]struct {
		settings config.Settings
		host     string
		port     int
	}{
		"kafka":             {&kafkaSettings{Config: kafka.Config{Brokers: []string{"broker:9094"}}}, "broker", 9094},
		"kafka, no port":    {&kafkaSettings{Config: kafka.Config{Brokers: []string{"broker"}}}, "broker", 0},
		"kafka, two":        {&kafkaSettings{Config: kafka.Config{Brokers: []string{"a:1", "b:1"}}}, "", 0},
		"nats":              {&natsSettings{Config: nats.Config{Servers: []string{"nats://user:secret@n:4222"}}}, "n", 4222},
		"redis":             {&redisSettings{Config: redis.Config{URL: secret("rediss://:secret@r:6380/0")}}, "r", 6380},
		"redis, IPv6":       {&redisSettings{Config: redis.Config{Addresses: []string{"[::1]:6379"}}}, "::1", 6379},
		"redis, sentinel":   {&redisSettings{Config: redis.Config{Addresses: []string{"s:26379"}, SentinelMaster: "m"}}, "", 0},
		"rabbitmq":          {&rabbitmqSettings{Config: rabbitmq.Config{URL: secret("amqp://u:secret@q:5673/v")}}, "q", 5673},
		"rabbitmq, default": {&rabbitmqSettings{}, "localhost", 5672},
		"email":             {&emailSettings{Config: email.Config{Host: "mail", Port: 2525}}, "mail", 2525},
		"postgres":          {&postgresSettings{Config: postgres.Config{URL: secret("postgres://u:secret@p:5432/d")}}, "p", 5432},
		"postgres, two":     {&postgresSettings{Config: postgres.Config{URL: secret("postgres://u:secret@p,q:5432/d")}}, "", 0},
		"postgres, words":   {&postgresSettings{Config: postgres.Config{URL: secret("host=p password=secret")}}, "", 0},
		"postgres, @":       {&postgresSettings{Config: postgres.Config{URL: secret("postgres://u:sec@ret@q/d")}}, "q", 0},
		"postgres, /":       {&postgresSettings{Config: postgres.Config{URL: secret("postgres://u:12/3@q/d")}}, "", 0},
		"webhook":           {&webhookSettings{Config: webhook.Config{URL: "https://hook.example/a?b=c"}}, "hook.example", 0},
		"webhook, template": {&webhookSettings{Config: webhook.Config{URL: "https://{{ .Event.Header.host }}/a"}}, "", 0},
		"log":               {&logSettings{}, "", 0},
	} {
		if host, port := Server(c.settings); host != c.host || port != c.port {
			t.Errorf("%s: %q, %d", name, host, port)
		}
	}
}
