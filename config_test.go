package notifyd

import (
	"strings"
	"testing"
	"time"
)

// TestConfigZeros: a field that is zero has its default, and a negative one has the meaning of 0, if that has one.
func TestConfigZeros(t *testing.T) {
	t.Parallel()
	c := Config{}.WithDefaults()
	if c.Canary != 5*time.Second || c.ShutdownTimeout != 20*time.Second || c.Retention.Keep != 7*24*time.Hour || c.Schema != "public" || c.Logger == nil {
		t.Errorf("%+v", c)
	}
	if limits := c.limits(); limits.Claims != 4 || limits.Batch != 1000 || limits.Bytes != 8<<20 || limits.EventBytes != 64<<20 || limits.LockBudget != 100*time.Millisecond ||
		limits.Lease != 30*time.Second || limits.PollInterval != time.Second {
		t.Errorf("%+v", limits)
	}
	none := Config{Canary: -1, ShutdownTimeout: -1, Retention: Retention{Keep: -1}}
	if err := none.Validate(); err != nil {
		t.Error(err)
	}
	if c := none.WithDefaults(); c.Canary != 0 || c.ShutdownTimeout != 0 || c.Retention.Keep != 0 {
		t.Errorf("%+v", c)
	}
}

func TestConfigMistakes(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"connections: 1001 is too large":                {Connections: 1001},
		"batch: -1 is too small":                        {Batch: -1},
		"batch_bytes: -1 is too small":                  {BatchBytes: -1},
		"max_event_bytes: 1 is too small":               {MaxEventBytes: 1},
		"lock_budget: 3s is too large":                  {LockBudget: 3 * time.Second},
		"lease: 1s is not longer than lock_budget (2s)": {Lease: time.Second, LockBudget: 2 * time.Second},
		"poll_interval: -1ns is too small":              {PollInterval: -1},
		"canary: 1ms is too small: the least is 100ms":  {Canary: time.Millisecond},
		"retention.batch: -1 is too small":              {Retention: Retention{Batch: -1}},
		`retention.partitions: unknown word "weekly"`:   {Retention: Retention{Partitions: "weekly"}},
		"schema":                             {Schema: "\x00"},
		"shutdown_timeout: 1ns is too small": {ShutdownTimeout: 1},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
