package dispatch

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// ErrStopping is the cause of contexts of handlers that end because the relay stops.
var ErrStopping = errors.New("the relay is stopping")

// errLapsed is why deliveries that waited under a lease are given back.
var errLapsed = errors.New("the lease may have run out before the delivery began")

// Verdict is the outcome of a delivery.
type Verdict uint8

const (
	// VerdictDelivered says that the destination has acknowledged the delivery.
	VerdictDelivered Verdict = iota + 1
	// VerdictFailed says that the delivery is retried after a delay.
	VerdictFailed
	// VerdictDead says that the delivery has failed for the last time.
	VerdictDead
	// VerdictReleased says that the delivery is returned as if it had never been tried: the destination is down or throttles,
	// or the lane no longer begins deliveries.
	VerdictReleased
	// VerdictParked says that the delivery waits as a row: an earlier one of its aggregate must be dealt with first.
	VerdictParked
	// VerdictAside says that the delivery is retried after a delay, and no attempt counts.
	VerdictAside
	// VerdictExpired says that the event is too old: nothing is left to do.
	VerdictExpired
)

// counts reports whether an attempt counts.
func (v Verdict) counts() bool { return v == VerdictFailed || v == VerdictDead }

// Settles reports whether the delivery is finished: the destination has acknowledged it, or it has
// expired.
func (v Verdict) Settles() bool { return v == VerdictDelivered || v == VerdictExpired }

// outcome is the answer to a job.
type outcome struct {
	verdict  Verdict
	delay    time.Duration
	class    delivery.Class
	err      error
	from, to time.Duration // when the handler ran, relative to the start of the chunk

	throttled bool // the destination requested fewer deliveries
	silent    bool // the destination has not answered: the call was lost, or timed out
	permanent bool // no attempt could have helped
	behind    bool // of a parcel's job: see Answer.Behind
}

// answered reports whether the destination itself has answered.
func (o *outcome) answered() bool {
	return o.verdict == VerdictDelivered || o.verdict.counts() && !o.silent
}
