//go:build !linux

package bench

// newSleeper returns a sleeper on Go's timers, which are precise except on Linux.
func newSleeper() (sleep sleeper, closeIt func() error, err error) {
	return sleepTimer, func() error { return nil }, nil
}
