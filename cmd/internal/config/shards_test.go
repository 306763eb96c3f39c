package config

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/laneconf"
)

// TestShards: a destination has one shard by default; with more the table must be a stream.
func TestShards(t *testing.T) {
	t.Parallel()
	most := strconv.Itoa(laneconf.MaxShards)
	for settings, want := range map[string]int{
		"order: auto":                  1,
		"shards: 1":                    1,
		"shards: 1, order: total":      1,
		"shards: 4":                    4,
		"shards: 4, order: none":       4,
		"shards: 4, rate_limit: 100/s": 4,
		"shards: " + most:              laneconf.MaxShards,
	} {
		c, err := limited(t, settings)
		if err != nil {
			t.Errorf("%s: %v", settings, err)
			continue
		}
		if got := c.Destinations[0].Shards; got != want {
			t.Errorf("%s: %d shards", settings, got)
		}
		if needs := strings.Contains(fmt.Sprint(c.NeedsStream()), "destinations.a.b.shards: "+strconv.Itoa(want)); needs != (want > 1) {
			t.Errorf("%s needs a stream: %v", settings, c.NeedsStream())
		}
	}
}

func TestShardsMistakes(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"shards: 0": `destinations.a.b.shards: "0" is too small: the least is 1`,
		"shards: " + strconv.Itoa(laneconf.MaxShards+1): `destinations.a.b.shards: "65" is too large: the most is 64`,
		"shards: many":            "destinations.a.b.shards",
		"shards: 2, order: total": "destinations.a.b.shards: must be 1 with order: total, which delivers one event after the other: leave shards out",
	} {
		_, err := limited(t, settings)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "notifyd.yaml:4:") {
			t.Errorf("%s: %v; want %q", settings, err, want)
		}
	}
}
