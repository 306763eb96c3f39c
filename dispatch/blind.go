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
