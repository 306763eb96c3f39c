package stream

import (
	"sync/atomic"
	"time"
)

const (
	// sureFor is how long a session that was proven alive counts as alive, from the moment at which
	// the answered query was sent. No delivery starts after that. A relay that takes a unit from an
	// owner that did not hand it over waits for the same time: the session of that owner was alive
	// at the last proof, so the lock became free after that proof.
	sureFor = time.Second
	// proveEvery is how often the session is used at least: three of four proofs may be late before
	// deliveries pause.
	proveEvery = 250 * time.Millisecond
)

// proof is how long one session is known to be alive. The zero value has no proof. One goroutine
// writes it, any may read it.
type proof struct {
	sent atomic.Pointer[time.Time] // send time of the last answered query
}

// answered records that the server answered the query that was sent at that time.
func (p *proof) answered(sent time.Time) { p.sent.Store(&sent) }

// end records that the session is gone.
func (p *proof) end() { p.sent.Store(nil) }

// sure reports whether the session was alive within the last second. Both clocks must agree: the
// monotonic one stops while a machine is suspended, and the other may be set back.
func (p *proof) sure() bool {
	sent := p.sent.Load()
	if sent == nil {
		return false
	}
	now := time.Now()
	return now.Sub(*sent) < sureFor && now.UnixNano()-sent.UnixNano() < int64(sureFor)
}
