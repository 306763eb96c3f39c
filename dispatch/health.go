package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// health says once that the database does not answer, and once that it does
// again, however many connections find out.
type health struct {
	log      *slog.Logger
	observer Observer

	lost atomic.Bool // apart from mu: observers, who are told one after the other, may ask

	mu    sync.Mutex
	since time.Time // zero while all is well
}

func (h *health) report(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil && h.since.IsZero():
		h.since = time.Now()
		h.lost.Store(true)
		h.log.Warn("database does not answer, trying again until it does", "err", err)
		h.observer.Observe(Incident{Kind: IncidentDatabaseLost, Time: h.since, Err: err})
	case err == nil && !h.since.IsZero():
		h.log.Info("database answers again", "after", time.Since(h.since).Round(time.Millisecond))
		h.since = time.Time{}
		h.lost.Store(false)
		h.observer.Observe(Incident{Kind: IncidentDatabaseBack, Time: time.Now()})
	}
}

const (
	// firstReconnect is short: most broken connections come back at once.
	firstReconnect = 20 * time.Millisecond
	// longestReconnect bounds how long a database that is back goes unnoticed.
	longestReconnect = 2 * time.Second
)

// reconnectPauses returns the pauses between attempts to reach the database.
// It never gives up. One goroutine uses it.
func reconnectPauses() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstReconnect),
		backoff.WithMaxInterval(longestReconnect),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0),
	)
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
