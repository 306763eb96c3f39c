package lease

import (
	"log/slog"
	"sync"
	"time"
)

// stableFor is how long a connection must last before the incident ends: repeated restarts of a server are one
// incident.
const stableFor = 5 * time.Second

// outage logs one line when the connection that renews the leases is lost, and one when a new connection has lasted.
type outage struct {
	log *slog.Logger

	mu       sync.Mutex
	since    time.Time   // zero: no incident
	restored time.Time   // when the current session began
	timer    *time.Timer // ends the incident, nil unless restored is set
	lost     int         // lost sessions and failed attempts
}

func (a *outage) begin(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.stopLocked()
	a.lost++
	if a.since.IsZero() {
		a.since = time.Now()
		a.log.Warn("no connection to renew the leases", "err", err)
	}
}

// open reports whether the incident continues: the log has its warning.
func (a *outage) open() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.since.IsZero()
}

// back records that there is a session.
func (a *outage) back() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.since.IsZero() && a.timer == nil {
		a.restored = time.Now()
		a.timer = time.AfterFunc(stableFor, func() { a.end(stableFor) })
	}
}

// end ends the incident if there has been a session for at least that long. 0 skips the wait.
func (a *outage) end(least time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.timer == nil || time.Since(a.restored) < least {
		return
	}

	a.log.Info("leases renewed again", "after", a.restored.Sub(a.since).Round(time.Millisecond), "lost", a.lost)
	a.stopLocked()
	a.since = time.Time{}
	a.lost = 0
}

func (a *outage) stopLocked() {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}
