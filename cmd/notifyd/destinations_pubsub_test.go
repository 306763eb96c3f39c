package main

import (
	"strings"
	"testing"
)

func TestPubSubPage(t *testing.T) {
	t.Parallel()
	checkPage(t, "docs/destinations/pubsub.md", vars{}, nil)
}

func TestPubSubMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ settings, want string }{
		"topic":   {"project: shop", ":3:3: destinations.orders.topic: missing: "},
		"project": {"topic: orders", ":3:3: destinations.orders.project: missing: "},
		"timeout": {"topic: projects/shop/topics/orders\n    timeout: 10s", ":6:14: destinations.orders.timeout: must be longer than request_timeout (15s)"},
		"file":    {"topic: projects/shop/topics/orders\n    credentials_file: nowhere.json", ":6:23: destinations.orders.credentials_file: cannot be read"},
		"nobody":  {"topic: projects/shop/topics/orders\n    endpoint: http://localhost:8085\n    credentials_file: key.json", ":7:23: destinations.orders.credentials_file: has no effect"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := file(t, "version: 1\ndestinations:\n  orders:\n    type: pubsub\n    "+c.settings+"\nroutes: [{match: '*', to: orders}]\n")
			got := invoke(t, "check-config", "-c", path)
			if got.code != 78 || !strings.HasPrefix(got.stderr, path+c.want) {
				t.Errorf("got  %+v\nwant %s", got, c.want)
			}
		})
	}
}
