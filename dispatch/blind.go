package dispatch

import "time"

// ListenerStats are the figures of the connection that listens.
type ListenerStats struct {
	// Listening says that notifications are heard, as far as is known.
	Listening bool
	// Proven is when a notification of the relay's own was heard last; zero
	// before the first.
	Proven time.Time
	// RoundTrip is how long that one took, from being sent to being heard.
	RoundTrip time.Duration
	// Sent counts the notifications that were sent for proof, Unheard those that
	// were not heard in time, and Unsent those that could not be sent.
	Sent, Unheard, Unsent uint64
	// Lost counts the connections that were lost or given up.
	Lost uint64
	// Trouble is why notifications are not heard, or not known to be; nil while
	// they are.
	Trouble error
}

// Blind takes word that notifications are not heard, or not known to be, and
// that they are again. While it is so, the table is looked at every 20 ms. It
// never blocks.
func (d *Dispatcher) Blind(is bool) { d.sched.blind(is) }

// Awake reports whether the relay sweeps without a break: then nothing depends
// on notifications.
func (d *Dispatcher) Awake() bool {
	d.sched.mu.Lock()
	defer d.sched.mu.Unlock()
	return d.sched.sweep.awake()
}

// blind polls fast while nobody announces what may be there. As with every
// poll, sweeps that take long are further apart.
func (s *scheduler) blind(is bool) { //nolint:revive // the state itself
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep.poll = s.cfg.PollInterval
	if is {
		s.sweep.poll = min(fastPoll, s.cfg.PollInterval)
		s.sweep.begin(sweepLow)
	}
	s.cond.Broadcast()
}
