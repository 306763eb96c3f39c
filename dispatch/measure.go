package dispatch

import (
	"sync/atomic"
	"time"
)

// measureLocked counts the answer to a job: by class, and how old the event was.
// began is when the job's chunk was begun, in nanoseconds since 1970.
func (l *lane) measureLocked(j *job, began int64, out *outcome) {
	if out.verdict == parked {
		return // it shared a call with the one before it, and has no answer of its own
	}
	l.classes[out.class]++
	if j.event.Replay > 0 || j.delayed() {
		return // it waited for a person, or until it was to be available
	}
	age := time.Duration(began - j.event.CreatedAt.UnixNano())
	if j.failures() == 0 {
		l.begun.Observe(age + out.from)
	}
	if out.verdict == delivered {
		l.acked.Observe(age + out.to)
	}
}

// passings count the deliveries that a lane did not begin with.
type passings struct {
	refused   atomic.Uint64 // no room
	withdrawn atomic.Uint64 // taken back before their turn
	withheld  atomic.Uint64 // for order
}

func (p *passings) count(v verdict) {
	if v == parked {
		p.withheld.Add(1)
	} else {
		p.withdrawn.Add(1)
	}
}
