//go:build !linux

package testenv

import (
	"errors"
	"testing"
)

// SmallDisk needs Linux: elsewhere the test is skipped, or fails if [EnvRequire]
// lists "mount".
func SmallDisk(tb testing.TB, _ int) string {
	tb.Helper()
	require(tb, "mount", errors.New("a file system in memory needs Linux"))
	return ""
}
