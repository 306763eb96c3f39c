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

// database reports once that the database does not answer, and once that it answers again, however
// many connections notice it, and however often the database comes and goes.
//
// A refusal that no waiting ends, such as a wrong password, is an error for a person, and is
// repeated: a reader of the log an hour later has to find it.
type database struct {
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

func (d *database) report(err error) {
	d.reports.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err != nil:
		d.stopLocked()
		d.errors++
		d.lost.Store(true)
		first := d.since.IsZero()
		cure := cureOf(err)
		d.cure.Store(&cure)
		d.logLocked(err, cure, first)
		if first {
			d.since = time.Now()
			d.observer.Observe(delivery.Incident{Kind: delivery.IncidentDatabaseLost, Time: d.since, Err: err})
		}
	case !d.since.IsZero() && d.over == nil:
		d.lost.Store(false)
		d.well = time.Now()
		d.over = time.AfterFunc(calm, func() { d.settle(calm) })
		if d.ended {
			d.settleLocked(0)
		}
	}
}

// logLocked logs the first error of an outage, and a refusal each minute.
func (d *database) logLocked(err error, cure string, first bool) {
	switch {
	case cure != "" && time.Since(d.logged) >= reminder:
		d.logged = time.Now()
		d.log.Error("database refuses the relay, trying again until it does not", "err", err, "cure", cure)
	case cure == "" && first:
		d.log.Warn("database does not answer, trying again until it does", "err", err)
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

func (d *database) stopLocked() {
	if d.over != nil {
		d.over.Stop()
		d.over, d.well = nil, time.Time{}
	}
}

// settle ends the outage if the database has answered for that long.
func (d *database) settle(least time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settleLocked(least)
}

// end is settle without waiting for calm, now and from now on: nothing is reported later.
func (d *database) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.settleLocked(0)
}

func (d *database) settleLocked(least time.Duration) {
	if d.over == nil || time.Since(d.well) < least {
		return
	}
	d.log.Info("database answers again", "after", d.well.Sub(d.since).Round(time.Millisecond), "errors", d.errors)
	d.observer.Observe(delivery.Incident{Kind: delivery.IncidentDatabaseBack, Time: d.well})
	d.stopLocked()
	d.since, d.errors, d.logged = time.Time{}, 0, time.Time{}
}

func (d *database) down() bool { return d.lost.Load() }

// refusal is the cure while the database refuses sessions, empty otherwise.
func (d *database) refusal() string {
	if cure := d.cure.Load(); cure != nil && d.down() {
		return *cure
	}
	return ""
}
