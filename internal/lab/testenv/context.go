package testenv

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Within returns the context of the test with a deadline.
func Within(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeoutCause(tb.Context(), d, errors.New("the test waited too long"))
	tb.Cleanup(cancel)
	return ctx
}

// Receive returns the next value of a channel, and fails the test if none comes within d.
func Receive[T any](tb testing.TB, d time.Duration, what string, from <-chan T) (value T) {
	tb.Helper()
	select {
	case value = <-from:
	case <-time.After(d):
		tb.Fatalf("%s did not come within %v", what, d)
	}
	return value
}
