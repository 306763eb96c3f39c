package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/notifyd/notifyd/internal/bench"
	"github.com/notifyd/notifyd/internal/testenv"
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

// command runs a command line in an environment of its own.
func command(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	nothing := func(string) (string, bool) { return "", false }
	code := run(t.Context(), args, &stdout, &stderr, nothing)
	return result{code, stdout.String(), stderr.String()}
}
