package dispatch

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// calm is how long the database must have answered without a break before an
// outage is over: a server that restarts again and again is one outage.
const calm = 5 * time.Second

// reminder is the shortest time between two logs of the same refusal.
const reminder = time.Minute

// health reports once that the database does not answer, and once that it answers again, however
// many connections notice it, and however often the database comes and goes.
//
// A refusal that no waiting ends, such as a wrong password, is an error for a person, and is
// repeated: a reader of the log an hour later has to find it.
type health struct {
	log      *slog.Logger
	observer delivery.Observer

	// These are apart from mu: observers, which are called one after the other, may read them.
	lost atomic.Bool
	cure atomic.Pointer[string] // of the refusal, empty for an outage
	// reports counts the calls of report. It tells whether the relay still tries the database, also while an observer
	// does not return and holds mu.
	reports atomic.Uint64

	mu     sync.Mutex
	since  time.Time   // zero while there is no outage
	well   time.Time   // since when it answers again, zero while it does not
	over   *time.Timer // ends the outage, nil unless well is set
	errors int         // of connections, in this outage
	logged time.Time   // when a refusal was last logged, zero if none was
	ended  bool        // nothing comes after the next report
}

func (h *health) report(err error) {
	h.reports.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil:
		h.stopLocked()
		h.errors++
		h.lost.Store(true)
		first := h.since.IsZero()
		cure := cureOf(err)
		h.cure.Store(&cure)
		h.logLocked(err, cure, first)
		if first {
			h.since = time.Now()
			h.observer.Observe(delivery.Incident{Kind: delivery.IncidentDatabaseLost, Time: h.since, Err: err})
		}
	case !h.since.IsZero() && h.over == nil:
		h.lost.Store(false)
		h.well = time.Now()
		h.over = time.AfterFunc(calm, func() { h.settle(calm) })
		if h.ended {
			h.settleLocked(0)
		}
	}
}

// logLocked logs the first error of an outage, and a refusal each minute.
func (h *health) logLocked(err error, cure string, first bool) {
	switch {
	case cure != "" && time.Since(h.logged) >= reminder:
		h.logged = time.Now()
		h.log.Error("database refuses the relay, trying again until it does not", "err", err, "cure", cure)
	case cure == "" && first:
		h.log.Warn("database does not answer, trying again until it does", "err", err)
	}
}

// cureOf is the cure of a refusal, empty for an error that ends by itself.
func cureOf(err error) string {
	var refused interface{ Refusal() string }
	if errors.As(err, &refused) {
		return refused.Refusal()
	}
	return ""
}

func (h *health) stopLocked() {
	if h.over != nil {
		h.over.Stop()
		h.over, h.well = nil, time.Time{}
	}
}

// settle ends the outage if the database has answered for that long.
func (h *health) settle(least time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settleLocked(least)
}

// end is settle without waiting for calm, now and from now on: nothing is reported later.
func (h *health) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.settleLocked(0)
}

func (h *health) settleLocked(least time.Duration) {
	if h.over == nil || time.Since(h.well) < least {
		return
	}
	h.log.Info("database answers again", "after", h.well.Sub(h.since).Round(time.Millisecond), "errors", h.errors)
	h.observer.Observe(delivery.Incident{Kind: delivery.IncidentDatabaseBack, Time: h.well})
	h.stopLocked()
	h.since, h.errors, h.logged = time.Time{}, 0, time.Time{}
}

func (h *health) down() bool { return h.lost.Load() }

// refusal is the cure while the database refuses sessions, empty otherwise.
func (h *health) refusal() string {
	if cure := h.cure.Load(); cure != nil && h.down() {
		return *cure
	}
	return ""
}
