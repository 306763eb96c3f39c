package testenv

import (
	"testing"
	"time"
)

const (
	// awaitWithin allows for a busy machine. No test expects it to run out.
	awaitWithin = 4 * time.Minute
	awaitEvery  = 5 * time.Millisecond
)

// Await waits for a condition that nothing signals, as a change of a server. It fails the test after 4 minutes.
func Await(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for deadline := time.Now().Add(awaitWithin); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			tb.Fatalf("%s did not happen within %v", what, awaitWithin)
		}
	}
}
