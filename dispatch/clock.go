package dispatch

import (
	"sync/atomic"
	"time"
)

// clock is that of the database, as far as it is known: the clocks of relays do not decide how old an event is.
// The zero value is the relay's own.
type clock struct{ read atomic.Pointer[reading] }

// reading is one look at the clock.
type reading struct{ database, here time.Time }

// SetClock records what the database's clock says at a moment of this relay's.
func (d *Dispatcher) SetClock(database, here time.Time) { d.clock.read.Store(&reading{database, here}) }

// here returns the moment of this relay's clock at which the database's says t. It has a monotonic
// reading, so that nobody sets it.
func (c *clock) here(t time.Time) time.Time {
	r := c.read.Load()
	if r == nil {
		now := time.Now()
		r = &reading{now.Round(0), now}
	}
	return r.here.Add(t.Sub(r.database))
}

// Expires returns when an event that was written, or became available, at a time of the database is
// too old to be delivered: see [Delivery.Expires]. It is zero where events do not expire.
func (m Limits) Expires(since time.Time) time.Time {
	if m.l.cfg.ExpiresAfter == 0 {
		return time.Time{}
	}
	return m.l.clock.here(since.Add(m.l.cfg.ExpiresAfter))
}

// ExpiresFrom is Expires for an event that was written at a time of the database, and became available at one of this
// relay's clock. The later one counts: a writer may make an event available before it exists.
func (m Limits) ExpiresFrom(written, here time.Time) time.Time {
	at := m.Expires(written)
	if later := here.Add(m.l.cfg.ExpiresAfter); !at.IsZero() && later.After(at) {
		return later
	}
	return at
}

// late reports whether the event is too old to be delivered.
func (d *Delivery) late(now time.Time) bool { return !d.Expires.IsZero() && !now.Before(d.Expires) }

// expires settles those of a worker's jobs whose events are too old by now, and returns the others. It
// comes last before the call.
func (w *worker) expires(jobs []*job) []*job {
	l := w.lane
	if l.cfg.ExpiresAfter == 0 {
		return jobs
	}
	now := time.Now()
	var late, rest []*job
	for _, j := range jobs {
		if d := &j.parcel.events[j.work]; d.late(now) {
			l.log.Info("event has expired, and is not delivered", "event_id", j.event.ID, "event_type", j.event.Type, "expires_after", l.cfg.ExpiresAfter)
			late = append(late, j)
			continue
		}
		rest = append(rest, j)
	}
	if late == nil {
		return jobs
	}
	outs := make([]outcome, len(late))
	for i, j := range late {
		outs[i] = outcome{verdict: expired, failures: j.failures()}
	}
	l.finished(now, notBegun, late, outs)
	return rest
}
