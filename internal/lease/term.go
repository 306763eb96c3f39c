package lease

import (
	"sync/atomic"
	"time"
)

const (
	// Term is how long a relay that does not renew keeps its shards. After kill -9 another relay goes on
	// within a term and [renewEvery], less than 2 s.
	Term = 1500 * time.Millisecond
	// margin is how much earlier the relay itself starts nothing more: between its look at the clock and
	// the start of a delivery the machine may do other things.
	margin = 200 * time.Millisecond
	// renewEvery is how often a relay renews its membership: three renewals in a row may be late.
	renewEvery = 300 * time.Millisecond
)

// term is one membership of a relay. One goroutine writes it, any may read it.
type term struct {
	sent atomic.Pointer[time.Time] // when the last successful renewal was sent; nil: it has ended
}

// answered records that the renewal that was sent at that time has succeeded.
func (t *term) answered(sent time.Time) { t.sent.Store(&sent) }

// end records that other relays may have the shards.
func (t *term) end() { t.sent.Store(nil) }

// valid reports whether no other relay can have removed this one yet. Both clocks must agree: the
// monotonic one stops while a machine is suspended, and the other may be set back.
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
