package delivery

import "errors"

// Filter decides whether an event is for a destination. False means that it is not: for this destination
// nothing is left to do. An error means that the filter cannot tell: the event becomes a dead letter
// of the destination, at once, with the class [ClassEvent].
//
// It is called whenever the event is about to be handed to the destination's handler: at first, and again
// before a retry or a replay. It is called from several goroutines at once, holds up those that
// call it, and must not change the event. A panic counts as an error.
type Filter func(c *Candidate) (bool, error)

// Candidate is an event about which filters decide. Its Attempt, Replay and Destination may not be set yet.
type Candidate struct {
	*Event
	// Memo lets filters share work, such as decoding the payload. It is nil for the first filter of an event; each later
	// filter gets the value that the previous one left.
	Memo any
}

// ErrPattern is wrapped by errors about an invalid pattern of event types. A pattern is an event type ("order.created"), a prefix
// ("order.*") or "*".
var ErrPattern = errors.New("invalid pattern")
