//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestShardsPage runs docs/shards.md: a destination that has events waiting gets shards.
func TestShardsPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	if got := invoke(t, "migrate", "--mode", "stream", "--database-url", s.url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	config := ""
	for _, st := range steps(testenv.ReadFile(t, root+"docs/shards.md")) {
		if st.language == "yaml" {
			config = s.own.Replace(st.text) + "admin: {listen: '" + s.address + "'}\n"
		}
	}
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
		"notifyd check-config --online": {says: `: ok, 1 destination, 1 route`},
		"notifyd reload":                {says: `has taken the new configuration`},
		"notifyd positions list":        {before: func() { s.until(`notifyd positions list | grep -q "shard 2 of 3"`) }, says: `(?m)^thumbnails, shard 0 of 3 (?s:.*)^thumbnails, shard 2 of 3 `},
		"notifyd status":                {says: `(?m)^thumbnails, shard 1 of 3 `},
	})
	publish()
	s.until(`test "$(grep -c picture.added events.log)" = 6`)
	s.stop()
}
