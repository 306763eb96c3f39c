package lease

import (
	"sync/atomic"
	"time"
)

const (
	// Term is how long a relay that does not renew keeps its shards. After kill -9 another relay continues within a
	// term and [renewEvery], less than 2 s.
	Term = 1500 * time.Millisecond
	// margin is how much earlier the relay itself stops starting deliveries: the machine may pause between the check of
	// the clock and the start of a delivery.
	margin = 200 * time.Millisecond
	// renewEvery is how often a relay renews its membership: three renewals in a row may be late.
	renewEvery = 300 * time.Millisecond
)

// term is one membership of a relay. One goroutine writes it, any may read it.
type term struct {
	sent atomic.Pointer[time.Time] // when the last successful renewal was sent; nil: the term has ended
}

// answered records the success of the renewal that was sent at that time.
func (t *term) answered(sent time.Time) { t.sent.Store(&sent) }

// end records that other relays may have the shards.
func (t *term) end() { t.sent.Store(nil) }

// valid reports whether no other relay can have removed this one yet. Both clocks must agree: the monotonic one stops
// while a machine is suspended, and the wall clock may be set back.
func (t *term) valid() bool {
	if t == nil {
		return false
	}

	sent := t.sent.Load()
	if sent == nil {
		return false
	}

	now := time.Now()
	return now.Sub(*sent) < Term-margin && now.UnixNano()-sent.UnixNano() < int64(Term-margin)
}
