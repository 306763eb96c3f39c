package lease

import (
	"log/slog"
	"sync"
	"time"
)

// calm is how long a connection must last before the incident is over: repeated restarts of a server
// are one incident.
const calm = 5 * time.Second

// absence logs one line when the connection that renews the leases is lost, and one when it is back
// for good.
type absence struct {
	log *slog.Logger

	mu    sync.Mutex
	since time.Time   // zero: no incident
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

// open reports whether the incident goes on: its line says that the database is away.
func (a *absence) open() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.since.IsZero()
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
