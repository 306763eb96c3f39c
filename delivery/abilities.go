package delivery

import "context"

// Previewer is implemented by a [Handler] that can show the request for an event without sending it.
type Previewer interface {
	// Preview returns the message that Deliver would send for e, readable for people and without
	// any credential. It sends nothing and contacts no server. It fails where Deliver would fail
	// before sending.
	Preview(e *Event) (string, error)
}

// Checker is implemented by a [Handler] that can test whether its destination is usable, without
// sending anything to it.
type Checker interface {
	// Check connects and authenticates as Deliver would, and returns the obstacle to a delivery;
	// nil if none was found. It may be called before and between deliveries, leaves nothing at the
	// destination, and its error holds no credential.
	Check(ctx context.Context) error
}

// CheckDescriber is implemented by a [Checker] that describes the coverage of its check, so that operators do not take a
// passed check for proof that events arrive.
type CheckDescriber interface {
	// DescribeCheck returns what Check tests, empty for nothing, and what a delivery needs beyond
	// that: each as part of a sentence, such as "the TCP connection" and "the credentials".
	DescribeCheck() (tested, untested string)
}

// Adviser is implemented by a [Handler] that can find out what hinders an event after the destination has taken it: for a mail,
// records of the DNS by which receivers judge it. "notifyd doctor" prints the result as notes.
type Adviser interface {
	// Advise returns a text for each obstacle, with its cure. Events are delivered all the same. It returns soon after ctx is
	// done.
	Advise(ctx context.Context) []string
}

// Sizer is implemented by a [Handler] with a largest message size.
type Sizer interface {
	// MaxBytes returns that size in bytes: an event whose payload alone is larger cannot be
	// delivered. It returns 0 where the size of a message does not follow from the payload.
	MaxBytes() int
}

// Reporter is implemented by a [Handler] that knows the state of its destination.
type Reporter interface {
	// Report returns the known state. It contacts no server and returns at once.
	Report() Report
}

// Report is the state of a handler at one moment.
type Report struct {
	// Connected reports an open connection. A handler that connects on first use reports false before.
	Connected bool
	// Blocked reports that the destination has asked for a pause, as RabbitMQ does when it runs out
	// of memory. Reason is its reason, verbatim.
	Blocked bool
	Reason  string
	// Unconfirmed is how many messages are sent and not answered yet.
	Unconfirmed int
}
