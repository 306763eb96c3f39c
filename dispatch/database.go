package dispatch

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// calm is how long the database must answer without a break before an outage is over: a server that restarts
// repeatedly is one outage.
const calm = 5 * time.Second

// reminder is the shortest time between two logs of the same refusal.
const reminder = time.Minute

// database reports the start of an outage once and its end once, however many connections notice, and however often
// the database returns briefly.
//
// A refusal that no waiting ends, such as a wrong password, requires action. It is logged repeatedly, for someone who
// reads the log an hour later.
type database struct {
	log      *slog.Logger
	observer delivery.Observer

	// These fields are not guarded by mu: observers run one at a time with mu held, and may read the fields.
	lost  atomic.Bool
	since atomic.Pointer[time.Time] // start of the outage; nil without one
	cure  atomic.Pointer[string]    // cure of the refusal; empty for an outage
	// reports counts the calls of report. It shows that the relay still tries the database, even while an observer
	// blocks and holds mu.
	reports atomic.Uint64

	mu     sync.Mutex
	well   time.Time   // start of the answers; zero while the database does not answer
	over   *time.Timer // ends the outage, nil unless well is set
	errors int         // errors of connections in this outage
	logged time.Time   // last log of a refusal; zero if none
	ended  bool        // ends reporting after the next report
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
		first := d.since.Load() == nil
		cure := cureOf(err)
		d.cure.Store(&cure)
		d.logLocked(err, cure, first)

		if first {
			now := time.Now()
			d.since.Store(&now)
			d.observer.Observe(delivery.Incident{Kind: delivery.IncidentDatabaseLost, Time: now, Err: err})
		}
	case d.since.Load() != nil && d.over == nil:
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
		d.log.Error("database refuses the relay", "err", err, "cure", cure)
	case cure == "" && first:
		d.log.Warn("database does not answer", "err", err, "cure", cureOfOutage(err))
	}
}

// cureOf returns the cure of a refusal; empty for an error that ends without a person's help.
func cureOf(err error) string {
	var refused interface{ Refusal() string }
	if errors.As(err, &refused) {
		return refused.Refusal()
	}
	return ""
}

// cureOfOutage returns the cure of an outage that lasts.
func cureOfOutage(err error) string {
	var known interface{ Cure() string }
	if errors.As(err, &known) {
		if cure := known.Cure(); cure != "" {
			return cure
		}
	}

	return "see that the database runs and can be reached; the relay continues when it is back"
}

func (d *database) stopLocked() {
	if d.over != nil {
		d.over.Stop()
		d.over = nil
		d.well = time.Time{}
	}
}

// settle ends the outage if the database has answered for at least that long.
func (d *database) settle(least time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settleLocked(least)
}

// end settles without waiting for calm, now and for later reports: no timer reports anything afterwards.
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

	d.log.Info("database answers again", "after", d.well.Sub(*d.since.Load()).Round(time.Millisecond), "errors", d.errors)
	d.observer.Observe(delivery.Incident{Kind: delivery.IncidentDatabaseBack, Time: d.well})
	d.stopLocked()
	d.since.Store(nil)
	d.errors = 0
	d.logged = time.Time{}
}

func (d *database) down() bool { return d.lost.Load() }

// downSince returns when the outage began; zero while the database answers.
func (d *database) downSince() time.Time {
	if since := d.since.Load(); since != nil && d.down() {
		return *since
	}

	return time.Time{}
}

// refusal returns the cure while the database refuses sessions; empty otherwise.
func (d *database) refusal() string {
	if cure := d.cure.Load(); cure != nil && d.down() {
		return *cure
	}
	return ""
}
