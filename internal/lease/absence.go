package lease

import (
	"log/slog"
	"sync"
	"time"
)

// calm is how long a session must have lived until the loss of the previous one is over: a server
// that restarts again and again is one incident.
const calm = 5 * time.Second

// absence reports once that there is no connection that renews the leases, and once that there is one again, however
// often it comes and goes.
type absence struct {
	log *slog.Logger

	mu    sync.Mutex
	since time.Time   // zero while there is no incident
	well  time.Time   // since when there is a session again
	over  *time.Timer // ends the incident, nil unless well is set
	lost  int         // lost sessions and failed attempts
}

func (a *absence) begin(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopLocked()
	a.lost++
	if a.since.IsZero() {
		a.since = time.Now()
		a.log.Warn("no connection to renew the leases", "err", err)
	}
}

// back records that there is a session.
func (a *absence) back() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.since.IsZero() && a.over == nil {
		a.well = time.Now()
		a.over = time.AfterFunc(calm, func() { a.settle(calm) })
	}
}

// settle ends the incident if there has been a session for at least that long. 0 skips the wait for
// calm.
func (a *absence) settle(least time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over == nil || time.Since(a.well) < least {
		return
	}
	a.log.Info("the leases are renewed again", "after", a.well.Sub(a.since).Round(time.Millisecond), "lost", a.lost)
	a.stopLocked()
	a.since, a.lost = time.Time{}, 0
}

func (a *absence) stopLocked() {
	if a.over != nil {
		a.over.Stop()
		a.over = nil
	}
}
