package dispatch

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/safecall"
	"github.com/notifyd/notifyd/observe"
)

// figures counts the answers to the jobs of a lane. No decision of the lane depends on figures, except
// limitWaitsLocked.
type figures struct {
	skipped  skipped
	reported atomic.Bool // a failure of the handler's Report was logged

	mu      sync.Mutex                      // a leaf; guards the fields below
	total   [VerdictExpired + 1]uint64      // a leaf lock; guards the fields below
	classes [delivery.ClassRelay + 1]uint64 // answers by class; index 0 counts answers without an error
	begun   observe.Histogram               // from the event's creation to the handler
	acked   observe.Histogram               // from the event's creation to the acknowledgement
	trouble trouble
}

// record counts the answers to jobs. elapsed is notBegun if the handler was not called. Outcome times count from
// begin. Call it before the jobs are answered: an answered batch may be refilled.
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

// fault records a failure that concerned no single event.
func (f *figures) fault(at time.Time, err error) {
	text := safecall.Text(err) // it may be the handler's own
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trouble.last = errors.New(text)
	f.trouble.at = at
}

// answers counts the deliveries with a verdict, begun or not.
func (f *figures) answers() (n uint64) {
	f.mu.Lock()
	for _, one := range f.total {
		n += one
	}
	f.mu.Unlock()

	p := &f.skipped
	return n + p.refused.Load() + p.withdrawn.Load() + p.withheld.Load() + p.limited.Load()
}

// read sets the counters and latencies of s.
func (f *figures) read(s *observe.DestinationStats) {
	p := &f.skipped
	s.Refused = p.refused.Load()
	s.Withdrawn = p.withdrawn.Load()
	s.Withheld = p.withheld.Load()
	s.Filtered = p.filtered.Load()
	s.RateLimits = p.limited.Load()

	f.mu.Lock()
	defer f.mu.Unlock()

	s.Delivered = f.total[VerdictDelivered]
	s.Failed = f.total[VerdictFailed]
	s.Dead = f.total[VerdictDead]
	s.Expired = f.total[VerdictExpired]
	s.Released = f.total[VerdictReleased] + f.total[VerdictQuarantined]
	s.Parked = f.total[VerdictParked]
	s.Classes = f.classes
	s.Started = f.begun
	s.Acked = f.acked
}

// readTrouble sets the failure figures of t.
func (f *figures) readTrouble(t *observe.Trouble) {
	f.mu.Lock()
	defer f.mu.Unlock()

	t.Failures = f.trouble.failures
	t.FailingSince = f.trouble.since
	t.LastErrorAt = f.trouble.at

	if f.trouble.last != nil {
		t.LastError = f.trouble.last.Error() // the lane's own text: see result
	}
}

// measureLocked counts the answer to a job by class and event age. began is when the job's chunk began, in
// nanoseconds since 1970.
func (f *figures) measureLocked(j *job, began int64, out *outcome) {
	if out.verdict == VerdictParked {
		return // the job shared the call of the previous job, and has no answer
	}

	f.classes[out.class]++
	if f.trouble.failures > 0 || out.class != 0 {
		f.trouble.note(out)
	}
	if e := j.Value.event; e.Replay > 0 || e.DeadLetter != nil || j.Value.delayed() {
		return // a person, attempts elsewhere or a start time delayed the event
	}

	age := time.Duration(began - j.Value.event.CreatedAt.UnixNano())
	trace := sampledTrace(j.Value.event.Headers["traceparent"])

	if j.Value.failures() == 0 {
		f.begun.Observe(age + out.from)
		f.begun.Trace(age+out.from, trace, time.Unix(0, began).Add(out.from))
	}

	if out.verdict == VerdictDelivered {
		f.acked.Observe(age + out.to)
		f.acked.Trace(age+out.to, trace, time.Unix(0, began).Add(out.to))
	}
}

// sampledTrace returns the trace id of a traceparent of version 00 that is sampled, and "" otherwise:
// https://www.w3.org/TR/trace-context/#traceparent-header
func sampledTrace(traceparent string) string {
	const (
		begin = 3 // of the trace id
		end   = 35
		flags = 53
	)

	hasForm := len(traceparent) == flags+2 && traceparent[:begin] == "00-"
	if !hasForm || traceparent[end] != '-' || traceparent[flags-1] != '-' {
		return ""
	}

	for _, c := range []byte(traceparent[begin:end]) {
		isDigit := '0' <= c && c <= '9'
		isLetter := 'a' <= c && c <= 'f'
		if !isDigit && !isLetter {
			return ""
		}
	}

	if n, err := strconv.ParseUint(traceparent[flags:], 16, 8); err != nil || n&1 == 0 {
		return ""
	}

	return traceparent[begin:end]
}

// trouble counts the failures since the last delivery, and holds the newest failure.
type trouble struct {
	failures uint64
	since    time.Time // of the first of these failures
	last     error
	at       time.Time // of last
}

// note records an answer. A throttled call shows that the destination works, and a failure of the relay says nothing
// about the destination.
func (t *trouble) note(out *outcome) {
	switch {
	case out.verdict == VerdictDelivered:
		t.failures = 0
		t.since = time.Time{}
	case out.class == delivery.ClassRelay || out.throttled || out.err == nil:
	default:
		t.at = time.Now()
		t.last = out.err
		if t.failures++; t.failures == 1 {
			t.since = t.at
		}
	}
}

// skipped counts the deliveries that a lane did not begin.
type skipped struct {
	refused   atomic.Uint64 // no capacity
	withdrawn atomic.Uint64 // released before their turn
	withheld  atomic.Uint64 // parked for order
	filtered  atomic.Uint64 // not for the destination
	limited   atomic.Uint64 // delayed by a rate limit

	limitedUntil atomic.Int64 // when the last delayed delivery may begin, in ns since 1970
}

// limitedFor records until when a delivery waits.
func (p *skipped) limitedFor(until time.Time) {
	p.limitedUntil.Store(max(p.limitedUntil.Load(), until.UnixNano()))
}

func (p *skipped) count(v Verdict) {
	switch v {
	case VerdictParked:
		p.withheld.Add(1)
	default:
		p.withdrawn.Add(1)
	}
}
