package dispatch

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/health"
)

// ErrStopping is the cause of handlers' contexts that end because the relay stops.
var ErrStopping = errors.New("the relay is stopping")

// errLapsed is the error of deliveries that waited longer than their lease, and are released.
var errLapsed = errors.New("the lease may have run out before the delivery began")

// Verdict is the outcome of a delivery.
type Verdict uint8

const (
	// VerdictDelivered means that the destination has acknowledged the delivery.
	VerdictDelivered Verdict = iota + 1
	// VerdictFailed means that the delivery is retried after a delay.
	VerdictFailed
	// VerdictDead means that the delivery has failed for the last time.
	VerdictDead
	// VerdictReleased means that the delivery returns to the engine as if it had never been tried. The destination is down or
	// throttles, or the lane no longer begins deliveries.
	VerdictReleased
	// VerdictParked means that the delivery waits as a row until an earlier one of its aggregate is handled.
	VerdictParked
	// VerdictQuarantined means that the event is in quarantine: the delivery is retried after a delay, and no attempt counts.
	VerdictQuarantined
	// VerdictExpired means that the event is too old, and nothing remains to do.
	VerdictExpired
)

// verdictOf returns the verdict on a failed delivery.
func verdictOf(next health.Next) Verdict {
	return [...]Verdict{
		health.Retry:    VerdictFailed,
		health.Bury:     VerdictDead,
		health.SetAside: VerdictQuarantined,
		health.Return:   VerdictReleased,
	}[next]
}

// counts reports whether the verdict counts as an attempt.
func (v Verdict) counts() bool { return v == VerdictFailed || v == VerdictDead }

// Settles reports whether the delivery is finished: acknowledged or expired.
func (v Verdict) Settles() bool { return v == VerdictDelivered || v == VerdictExpired }

// outcome is the answer to a job.
type outcome struct {
	verdict  Verdict
	delay    time.Duration
	class    delivery.Class
	err      error
	from, to time.Duration // when the handler ran, relative to the start of the chunk

	throttled bool // the destination requested fewer deliveries
	silent    bool // the destination did not answer: the call was lost or timed out
	unclear   bool // the destination refused the event, and perhaps every event
	permanent bool // no retry could help
	behind    bool // see Answer.Behind
}

// answered reports whether the destination itself answered, to this event and not perhaps to every event.
func (o *outcome) answered() bool {
	if o.verdict == VerdictDelivered {
		return true
	}
	return o.verdict.counts() && !o.silent && !o.unclear
}
