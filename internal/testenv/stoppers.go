package testenv

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// stopList holds how to end the shared servers that were started. [Main] runs
// it after the last test, the server started last first.
type stopList struct {
	mu    sync.Mutex
	stops []func(ctx context.Context) error
}

// stoppers is state of the package for the same reason as postgres is.
var stoppers stopList //nolint:gochecknoglobals // see above

// add registers the end of a server that was just started.
func (l *stopList) add(stop func(ctx context.Context) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stops = append(l.stops, stop)
}

// run ends all servers, each within cleanupWithin.
func (l *stopList) run(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, stop := range slices.Backward(l.stops) {
		errs = append(errs, func() error {
			ctx, cancel := context.WithTimeout(ctx, cleanupWithin)
			defer cancel()
			return stop(ctx)
		}())
	}
	l.stops = nil
	return errors.Join(errs...)
}
