package main

import (
	"os"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/bench"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestMain(m *testing.M) {
	// A bench starts its own program as the relay to measure: here the test binary.
	if os.Getenv(bench.EnvRelay) != "" {
		main()
		return
	}
	testenv.Main(m)
}

type result struct {
	code           int
	stdout, stderr string
}

// command runs a command line in a separate environment.
func command(t *testing.T, args ...string) result {
	t.Helper()
	var r result
	r.code, r.stdout, r.stderr = testenv.Command(t, run, nil, args...)
	return r
}
