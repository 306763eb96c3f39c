package dispatch

import (
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// figures count the answers to the jobs of a lane. Its lock guards what is not atomic.
type figures struct {
	total    [aside + 1]uint64              // answers by verdict
	classes  [delivery.ClassOurs + 1]uint64 // the same by class; 0 has those without an error
	begun    observe.Histogram              // from the event's creation to the handler
	acked    observe.Histogram              // from the event's creation to the acknowledgement
	passings passings
	reported atomic.Bool // the failure of the handler's Report was logged
}

// measureLocked counts the answer to a job: by class, and how old the event was.
// began is when the job's chunk was begun, in nanoseconds since 1970.
func (f *figures) measureLocked(j *job, began int64, out *outcome) {
	if out.verdict == parked {
		return // it shared a call with the previous job, and has no answer of its own
	}
	f.classes[out.class]++
	if j.event.Replay > 0 || j.delayed() {
		return // it waited for a person, or until it was available
	}
	age := time.Duration(began - j.event.CreatedAt.UnixNano())
	if j.failures() == 0 {
		f.begun.Observe(age + out.from)
	}
	if out.verdict == delivered {
		f.acked.Observe(age + out.to)
	}
}

// passings counts the deliveries that a lane did not begin.
type passings struct {
	refused   atomic.Uint64 // no room
	withdrawn atomic.Uint64 // given back before their turn
	withheld  atomic.Uint64 // for order
}

func (p *passings) count(v verdict) {
	if v == parked {
		p.withheld.Add(1)
	} else {
		p.withdrawn.Add(1)
	}
}
