package main

import (
	"bytes"
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

// command runs a command line.
func command(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}
