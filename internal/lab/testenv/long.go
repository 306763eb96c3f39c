package testenv

import (
	"os"
	"testing"
)

// Long skips a test, or a case of one, in a short run, which "make test" is. It is for
// what takes more than a few seconds and is not the only test of a promise or of a command. With all of
// [EnvRequire], as in CI, nothing is skipped.
func Long(tb testing.TB) {
	tb.Helper()
	if testing.Short() && os.Getenv(EnvRequire) != "all" {
		tb.Skip("long: make test-all runs it")
	}
}
