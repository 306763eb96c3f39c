package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The intervals of calls to the store, in parts of a lease.
const (
	renewals = 3  // per lease
	retries  = 20 // per lease, after a renewal that failed
	marginOf = 5  // this part of a lease is left when the handler is interrupted
	tries    = 3  // each call may take this part of the total time
)

// The pauses between calls that fail. A dead connection fails at once, and a pool
// may hold several, so the first pauses are short.
const (
	firstPause = 2 * time.Millisecond
	maxPause   = 500 * time.Millisecond
)

// Causes of the end of a handler's context.
var (
	// ErrInterrupted is the cause (context.Cause) if the key could not be held any
	// longer: another process may soon run the same request.
	ErrInterrupted = errors.New("the idempotency key could not be held")

	errTimeout = errors.New("the handler has used up its time (HandlerTimeout)")
)

// lock is a claim and the time until which it holds its key.
type lock struct {
	store   Store
	claim   Claim
	lease   time.Duration
	timeout time.Duration // for the calls before and after the handler
	until   time.Time     // by the clock of this process, counted from before the call
}

func newLock(m *middleware, c Claim) *lock {
	return &lock{store: m.Store, claim: c, lease: m.Lease, timeout: m.StoreTimeout}
}

// begin takes the key. A client that goes away does not interrupt the call:
// otherwise it would be unknown whether the key is held.
func (l *lock) begin(ctx context.Context) (e Entry, err error) {
	err = l.try(ctx, func(ctx context.Context) error {
		start := time.Now()
		e, err = l.store.Begin(ctx, l.claim, l.lease)
		l.until = start.Add(l.lease)
		return err
	})
	return e, err
}

func (l *lock) settle(ctx context.Context, change Change) error {
	return l.try(ctx, func(ctx context.Context) error { return l.store.Settle(ctx, l.claim, change) })
}

// try calls the store until it answers or the time is used up.
func (l *lock) try(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.timeout)
	defer cancel()

	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := func() error {
			once, done := context.WithTimeout(ctx, l.timeout/tries)
			defer done()
			return call(once)
		}()

		if err == nil || errors.Is(err, ErrLost) || errors.Is(err, ErrUnusable) {
			return err
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("tried for %s: %w", l.timeout, err)
		case <-time.After(pause):
		}
	}
}

// keep renews the lease until stop is called, which waits for the last renewal to
// end and may be called twice. It calls interrupt before the lease can run out.
func (l *lock) keep(ctx context.Context, interrupt context.CancelCauseFunc) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.renew(ctx); err != nil {
			interrupt(fmt.Errorf("%w: %w", ErrInterrupted, err))
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// renew returns nil when ctx ends, and otherwise the reason why the key cannot be held.
func (l *lock) renew(ctx context.Context) error {
	margin := l.lease / marginOf
	failure := errors.New("this process was not running")

	for pause := l.lease / renewals; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(pause, time.Until(l.until)-margin)):
		}

		start := time.Now()
		if !start.Before(l.until.Add(-margin)) {
			return fmt.Errorf("the lease of %s has run out: %w", l.lease, failure)
		}

		err := func() error {
			call, done := context.WithDeadline(ctx, l.until.Add(-margin))
			defer done()
			return l.store.Settle(call, l.claim, Change{Action: Renew, For: l.lease})
		}()

		switch {
		case err != nil && over(ctx):
			return nil // the handler has ended meanwhile
		case errors.Is(err, ErrLost):
			return err
		case err != nil:
			failure = err
			pause = l.lease / retries
		default:
			pause = l.lease / renewals
			l.until = start.Add(l.lease)
		}
	}
}

func over(ctx context.Context) bool { return ctx.Err() != nil }
