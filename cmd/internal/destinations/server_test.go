package destinations

import (
	"io"
	"regexp"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/handlers/redis"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestServer: a destination with a single server has its host and its port, and never a credential.
func TestServer(t *testing.T) {
	t.Parallel()
	secret := handlers.NewSecret
	for name, c := range map[string]struct {
		servers []string
		host    string
		port    int
	}{
		"kafka":             {[]string{"broker:9094"}, "broker", 9094},
		"kafka, no port":    {[]string{"broker"}, "broker", 0},
		"kafka, two":        {[]string{"a:1", "b:1"}, "", 0},
		"nats":              {[]string{"nats://user:secret@n:4222"}, "n", 4222},
		"redis":             {redisServers(redis.Config{URL: secret("rediss://:secret@r:6380/0")}), "r", 6380},
		"redis, IPv6":       {redisServers(redis.Config{Addresses: []string{"[::1]:6379"}}), "::1", 6379},
		"redis, sentinel":   {redisServers(redis.Config{Addresses: []string{"s:26379"}, SentinelMaster: "m"}), "", 0},
		"rabbitmq":          {rabbitmqServers(rabbitmq.Config{URL: secret("amqp://u:secret@q:5673/v")}), "q", 5673},
		"rabbitmq, default": {rabbitmqServers(rabbitmq.Config{}), "localhost", 5672},
		"email":             {emailServers(email.Config{Host: "mail", Port: 2525}), "mail", 2525},
		"postgres":          {[]string{"postgres://u:secret@p:5432/d"}, "p", 5432},
		"postgres, two":     {[]string{"postgres://u:secret@p,q:5432/d"}, "", 0},
		"postgres, words":   {[]string{"host=p password=secret"}, "", 0},
		"postgres, @":       {[]string{"postgres://u:sec@ret@q/d"}, "q", 0},
		"postgres, /":       {[]string{"postgres://u:12/3@q/d"}, "", 0},
		"webhook":           {[]string{"https://hook.example/a?b=c"}, "hook.example", 0},
		"webhook, template": {[]string{"https://{{ .Event.Header.host }}/a"}, "", 0},
		"log":               {nil, "", 0},
	} {
		if host, port := onlyServer(c.servers); host != c.host || port != c.port {
			t.Errorf("%s: %q, %d", name, host, port)
		}
	}
}

// TestMessagingSystems: the page of each destination type names its messaging.system, or none.
func TestMessagingSystems(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("\n\\| `messaging.system` of its \\[spans\\]\\(../tracing.md#spans\\) \\| `(.+)` \\|\n")
	named := 0
	for name, fresh := range Registry("", io.Discard, io.Discard) {
		system := MessagingSystem(fresh())
		found := ""
		if m := row.FindStringSubmatch(testenv.ReadFile(t, "../../../docs/destinations/"+name+".md")); m != nil {
			found = m[1]
			named++
		}
		if found != system {
			t.Errorf("%s is %q, its page says %q", name, system, found)
		}
	}
	if named == 0 {
		t.Error("no page names one")
	}
}
