//go:build unix

package main

import (
	"strings"
	"testing"
)

// TestShardsPage runs docs/shards.md: a destination that has events waiting gets shards.
func TestShardsPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	if got := invoke(t, "migrate", "--mode", "stream", "--database-url", s.url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	config := s.config("docs/shards.md")
	s.relay(strings.Replace(config, ", shards: 3", "", 1))
	publish := func() {
		for range 3 {
			publishTo(t, s.url, "picture.added", `{"picture": 1}`)
		}
	}
	publish()
	s.until(`test "$(grep -c picture.added events.log)" = 3`)
	s.write("notifyd.yaml", config)
	s.follow("docs/shards.md", map[string]act{
		"notifyd positions list": {before: func() { s.until(`notifyd positions list | grep -q "shard 2 of 3"`) }},
	})
	publish()
	s.until(`test "$(grep -c picture.added events.log)" = 6`)
	s.stop()
}
