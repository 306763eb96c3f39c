//go:build !linux

package bench

// newSleeper returns a sleeper; elsewhere than on Linux, Go's timers are precise.
func newSleeper() (sleep sleeper, closeIt func() error, err error) {
	return sleepTimer, func() error { return nil }, nil
}
