package dispatch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// figures count the answers to the jobs of a lane. No decision of the lane depends on them, except limitWaitsLocked.
type figures struct {
	passings passings
	reported atomic.Bool // the failure of the handler's Report was logged

	mu      sync.Mutex                     // a leaf; guards the fields below
	total   [VerdictExpired + 1]uint64     // answers by verdict
	classes [delivery.ClassOurs + 1]uint64 // the same by class; 0 has those without an error
	begun   observe.Histogram              // from the event's creation to the handler
	acked   observe.Histogram              // from the event's creation to the acknowledgement
	trouble trouble
}

// record counts the answers to jobs, for which the handler was called unless elapsed is notBegun. Their times count from begin. The
// jobs are not answered yet: afterwards their parcel may have other deliveries.
func (f *figures) record(begin time.Time, elapsed time.Duration, jobs []*job, outs []outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range outs {
		f.total[outs[i].verdict]++
	}
	if elapsed == notBegun {
		return
	}
	began := begin.UnixNano()
	for i, j := range jobs {
		f.measureLocked(j, began, &outs[i])
	}
}

// answers returns how many deliveries have got a verdict, begun or not.
func (f *figures) answers() (n uint64) {
	f.mu.Lock()
	for _, one := range f.total {
		n += one
	}
	f.mu.Unlock()
	p := &f.passings
	return n + p.refused.Load() + p.withdrawn.Load() + p.withheld.Load() + p.limited.Load()
}

// read sets the counters and latencies of s.
func (f *figures) read(s *observe.DestinationStats) {
	p := &f.passings
	s.Refused, s.Withdrawn, s.Withheld = p.refused.Load(), p.withdrawn.Load(), p.withheld.Load()
	s.Filtered, s.RateLimits = p.filtered.Load(), p.limited.Load()
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Delivered, s.Failed, s.Dead, s.Expired = f.total[VerdictDelivered], f.total[VerdictFailed], f.total[VerdictDead], f.total[VerdictExpired]
	s.Released, s.Parked = f.total[VerdictReleased]+f.total[VerdictAside], f.total[VerdictParked]
	s.Classes, s.Begun, s.Acked = f.classes, f.begun, f.acked
}

// readTrouble sets what failures have in common in t.
func (f *figures) readTrouble(t *observe.Trouble) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t.Failures, t.FailingSince, t.LastErrorAt = f.trouble.failures, f.trouble.since, f.trouble.at
	if f.trouble.last != nil {
		t.LastError = f.trouble.last.Error() // a text of the lane's own: see reply
	}
}

// measureLocked counts the answer to a job: by class, and how old the event was.
// began is when the job's chunk was begun, in nanoseconds since 1970.
func (f *figures) measureLocked(j *job, began int64, out *outcome) {
	if out.verdict == VerdictParked {
		return // it shared the call of the previous job, and no answer is about it
	}
	f.classes[out.class]++
	if f.trouble.failures > 0 || out.class != 0 {
		f.trouble.note(out)
	}
	if j.Value.event.Replay > 0 || j.Value.delayed() {
		return // it waited for a person, or until it was available
	}
	age := time.Duration(began - j.Value.event.CreatedAt.UnixNano())
	if j.Value.failures() == 0 {
		f.begun.Observe(age + out.from)
	}
	if out.verdict == VerdictDelivered {
		f.acked.Observe(age + out.to)
	}
}

// trouble is the row of failures since the last delivery, and the newest failure of all.
type trouble struct {
	failures uint64
	since    time.Time // of the first in the row
	last     error
	at       time.Time // of last
}

// note records an answer. A throttled call shows that the destination works, and a fault of
// the relay says nothing about the destination.
func (t *trouble) note(out *outcome) {
	switch {
	case out.verdict == VerdictDelivered:
		t.failures, t.since = 0, time.Time{}
	case out.class == delivery.ClassOurs || out.throttled || out.err == nil:
	default:
		t.at, t.last = time.Now(), out.err
		if t.failures++; t.failures == 1 {
			t.since = t.at
		}
	}
}

// passings counts the deliveries that a lane did not begin.
type passings struct {
	refused   atomic.Uint64 // no room
	withdrawn atomic.Uint64 // given back before their turn
	withheld  atomic.Uint64 // for order
	filtered  atomic.Uint64 // not for the destination
	limited   atomic.Uint64 // for a rate limit

	limitedUntil atomic.Int64 // when the last of those may go, in ns since 1970
}

// limitedFor records until when a delivery waits.
func (p *passings) limitedFor(until time.Time) {
	p.limitedUntil.Store(max(p.limitedUntil.Load(), until.UnixNano()))
}

func (p *passings) count(v Verdict) {
	switch v {
	case VerdictParked:
		p.withheld.Add(1)
	default:
		p.withdrawn.Add(1)
	}
}
