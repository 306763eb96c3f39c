package redis

import (
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestBalancer: a retry does not go over a connection to a server that refuses everything.
func TestBalancer(t *testing.T) {
	t.Parallel()
	deduplicate := func(c *Config) { c.Deduplicate = 1000 }
	ofEvent := to("s{{ .Event.Type }}")
	channel := func(c *Config) { c.Stream, c.Channel = "", "c" }
	for name, c := range map[string]struct {
		change         func(*Config)
		refuse, accept []string
	}{
		"READONLY":                 {to("s"), []string{"replicaof 127.0.0.1 1"}, []string{"replicaof no one"}},
		"OOM":                      {to("s"), []string{"config set maxmemory 1"}, []string{"config set maxmemory 0"}},
		"OOM, deduplicate":         {deduplicate, []string{"config set maxmemory 1"}, []string{"config set maxmemory 0"}},
		"NOPERM":                   {to("s"), []string{"acl setuser default -xadd"}, []string{"acl setuser default +xadd"}},
		"WRONGTYPE, one of events": {ofEvent, []string{"del sorder.created", "set sorder.created x"}, []string{"del sorder.created"}},
		"a replica, channel":       {channel, []string{"replicaof 127.0.0.1 1"}, []string{"replicaof no one"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := []string{testenv.OwnRedis(t).Addr(), testenv.OwnRedis(t).Addr()}
			clients := []*goredis.Client{client(t, servers[0]), client(t, servers[1])}
			run := func(server int, commands []string) {
				for _, text := range commands {
					var args []any
					for word := range strings.FieldsSeq(text) {
						args = append(args, word)
					}
					do(t, clients[server], args...)
				}
			}
			h := open(t, "redis://"+testenv.Balancer(t, servers...), c.change)
			deliverytest.Failover(t, h, events(deliverytest.UpTo(10)...), func(server int) {
				run(1-server, c.accept)
				run(server, c.refuse)
			})
		})
	}
}
