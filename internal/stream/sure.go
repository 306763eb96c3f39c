package stream

import (
	"sync/atomic"
	"time"
)

const (
	// sureFor is how long a session that has been proven to live counts as alive, from
	// the moment at which the question was sent that it answered. Nothing begins after
	// that. It is also how long whoever takes a unit from an owner that did not hand it
	// over waits: the session of that owner was alive at the last proof, so the lock was
	// free at that time at the earliest.
	sureFor = time.Second
	// proveEvery is how often the session is used at least: of four proofs three may be
	// late before deliveries pause.
	proveEvery = 250 * time.Millisecond
)

// proof says until when one session is known to live. The zero value has no proof.
// One goroutine writes it, any may read it.
type proof struct {
	sent atomic.Pointer[time.Time] // of the last question that was answered
}

// answered takes word that the server answered what was sent at that time.
func (p *proof) answered(sent time.Time) { p.sent.Store(&sent) }

// end takes word that the session is gone.
func (p *proof) end() { p.sent.Store(nil) }

// sure reports whether the session was alive within the last second. Both clocks have
// to say so: the monotonic one stands still while a machine is suspended, and the
// other may be set back.
func (p *proof) sure() bool {
	sent := p.sent.Load()
	if sent == nil {
		return false
	}
	now := time.Now()
	return now.Sub(*sent) < sureFor && now.UnixNano()-sent.UnixNano() < int64(sureFor)
}
