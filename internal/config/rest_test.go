package config

import (
	"strings"
	"testing"
	"time"
)

// TestRest: the bounds of a rest, and what it excludes.
func TestRest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rest   time.Duration
		alerts Alerts
		want   string
	}{
		"none":             {0, Alerts{To: []string{"mail"}, OldestWaiting: time.Minute}, ""},
		"the shortest":     {10 * time.Second, Alerts{}, ""},
		"the longest":      {24 * time.Hour, Alerts{}, ""},
		"too short":        {10*time.Second - 1, Alerts{}, "is not from 10s to 1d: write 0 for none"},
		"too long":         {24*time.Hour + 1, Alerts{}, "is not from 10s to 1d: write 0 for none"},
		"below 0":          {-1, Alerts{}, "is not from 10s to 1d: write 0 for none"},
		"no alerts":        {time.Hour, Alerts{OldestWaiting: time.Minute}, ""},
		"as long":          {time.Hour, Alerts{To: []string{"mail"}, OldestWaiting: time.Hour}, "events may wait for 1h, and alerts.oldest_waiting reports those that have waited for 1h: let that be longer"},
		"shorter":          {time.Hour, Alerts{To: []string{"mail"}, OldestWaiting: 2 * time.Hour}, ""},
		"asked for":        {time.Hour, Alerts{To: []string{"mail"}, On: []string{"waiting"}, OldestWaiting: time.Minute}, "let that be longer"},
		"not asked for":    {time.Hour, Alerts{To: []string{"mail"}, On: []string{"relay"}, OldestWaiting: time.Minute}, ""},
		"never an old one": {time.Hour, Alerts{To: []string{"mail"}}, ""},
	} {
		config := &Config{Relay: Relay{Rest: c.rest}, Alerts: c.alerts}
		err := config.checkRest()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
