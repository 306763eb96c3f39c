package main

import (
	"testing"

	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/destinations"
	"github.com/notifyd/notifyd/internal/testenv"
)

// TestZeroSettings: a 0 of the file means what the reference has for it, and not the default.
func TestZeroSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings string
		none     bool
	}{
		"zeros":    {"relay: {canary: 0, shutdown_timeout: 0}\nretention: {keep: 0}\n", true},
		"defaults": {"", false},
	} {
		path := testenv.WriteFile(t, t.TempDir()+"/notifyd.yaml", "version: 1\n"+c.settings)
		read, err := config.Load(path, "", destinations.Registry(".", nil, nil), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		got := relayConfig(read, origin{path: path}, nil, nil, nil).WithDefaults()
		if got.Canary == 0 != c.none || got.ShutdownTimeout == 0 != c.none || got.Retention.Keep == 0 != c.none {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
