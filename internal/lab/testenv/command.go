package testenv

import (
	"bytes"
	"context"
	"io"
	"testing"
)

// Command runs a command line of a program in the process of the test, and returns the exit code and the output. run is the
// program; lookup is its environment, nil for an empty one.
func Command[L ~func(string) (string, bool)](
	tb testing.TB, run func(ctx context.Context, args []string, stdout, stderr io.Writer, lookup L) int, lookup L, args ...string,
) (code int, stdout, stderr string) {
	tb.Helper()
	if lookup == nil {
		lookup = func(string) (string, bool) { return "", false }
	}
	var out, errs bytes.Buffer
	code = run(tb.Context(), args, &out, &errs, lookup)
	return code, out.String(), errs.String()
}
