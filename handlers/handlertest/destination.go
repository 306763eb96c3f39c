package handlertest

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

const (
	// defaultPatience is for real servers on a busy machine.
	defaultPatience = time.Minute
	// defaultPrompt is far above the time to notice that a context is done.
	defaultPrompt = 5 * time.Second
)

// Destination is a handler together with the place that it delivers to, and the
// faults of that place. Only Open is required.
type Destination struct {
	// Open returns a new handler for the same place. It fails tb if it cannot.
	// The suite closes the handler if it is an io.Closer. It is also called
	// while the server is down: a relay starts while its destinations are down.
	Open func(tb testing.TB) delivery.Handler
	// Received returns the ids of all events that have arrived so far, in the
	// order of arrival, with an id twice where an event came twice. Ids that
	// the suite has not sent are ignored. It is nil where the place cannot be
	// asked; then the suite checks only answers.
	Received func(tb testing.TB) []int64
	// Message returns what arrived of the event with this id, which has: the body, and its content type as
	// the protocol carries it. It is for handlers that send a payload as it is; nil for others.
	Message func(tb testing.TB, id int64) (body []byte, contentType string)
	// Event returns a new event with this id, which is below 2^53. It is called
	// by several goroutines. nil is for JSON objects of a few bytes that belong
	// to one of three aggregates.
	Event func(id int64) *delivery.Event
	// Rejected returns an event with this id that the destination refuses
	// permanently and alone, such as one that is too large: the refusal may be
	// unclear at first. It is nil if the destination refuses none.
	Rejected func(id int64) *delivery.Event

	// Network is the network between the handler and the server. Received must not
	// go through it. It is nil where none can fail.
	Network Network
	// Stop stops the server, and Start starts it again with all events that it
	// has received; the suite calls them in turn. Stop returns when the server
	// is down, Start once the server answers. Both are nil for a server that
	// cannot be stopped.
	Stop  func(tb testing.TB)
	Start func(tb testing.TB)

	// Secrets are texts that must not be seen in any error or log, such as the
	// password that Open gives to the handler. Take long ones: they are looked
	// for as they are, escaped for a URL, in base64 and in hexadecimal.
	Secrets []string
	// Log returns the log of the handler and its libraries so far. It is nil if
	// they do not log.
	Log func() string

	// Ordered says that events of one aggregate arrive in the order in which
	// they were delivered, also after a fault: an event is not sent while an
	// earlier one of its aggregate has failed in the same batch.
	Ordered bool
	// Resends is how often the handler, or a library in it, may resend an event
	// within one delivery because of one fault, so that the event arrives
	// again. It is 0 if only a failed delivery can cause a copy.
	Resends int

	// Cases is the table of faults and their classes.
	Cases []Case

	// Patience bounds the wait for anything that has to happen; the default is a
	// minute. No test that passes takes as long. It is more than twice Prompt.
	Patience time.Duration
	// Prompt is how soon a delivery returns once its context is done, or its
	// connection is reset. The default is 5s. The suite takes a handler that
	// needs longer after a reset for one that retries within a delivery.
	Prompt time.Duration
}

// Case is a fault, and its class by the handler.
type Case struct {
	// Name is the name of the subtest: the fault, such as "the queue does not
	// exist".
	Name string
	// Provoke makes one delivery that meets the fault, undoes the fault, and
	// returns the handler's answer.
	Provoke func(tb testing.TB) error
	// Class is the party at fault: [delivery.ClassEvent] or
	// [delivery.ClassDestination]. Zero means that the event is delivered.
	Class delivery.Class
	// Permanent is true if no further attempt can cure the fault; for ClassEvent
	// only.
	Permanent bool
	// Unclear is true for an unclear refusal. Class and Permanent then describe its
	// meaning after the destination took another event. For ClassEvent only.
	Unclear bool
	// Throttled is true if the destination works and wants fewer deliveries;
	// for ClassDestination only.
	Throttled bool
	// RetryAfter is the pause that the destination asked for, zero if none.
	RetryAfter time.Duration
	// Text is in the text of the error, "" if that does not matter.
	Text string
}

// Network is the way between a handler and its server, with the faults that it
// can have. All of them are in effect when the method returns. A
// [Proxy] is one.
type Network interface {
	// Cut resets all current connections. Mute and Refuse stay in effect.
	Cut()
	// Mute holds back the server's answers, on current and new connections.
	// Requests pass. It lasts until Heal, which releases the answers if their
	// connection is still there.
	Mute()
	// Refuse refuses new connections, until Heal. Current connections stay.
	Refuse()
	// Heal ends all faults.
	Heal()
}

// withDefaults returns a copy with every default filled in.
func (d Destination) withDefaults() Destination {
	if d.Event == nil {
		d.Event = defaultEvent
	}
	if d.Patience == 0 {
		d.Patience = defaultPatience
	}
	if d.Prompt == 0 {
		d.Prompt = defaultPrompt
	}
	return d
}

// defaultEvent belongs to one of three aggregates.
func defaultEvent(id int64) *delivery.Event {
	const aggregates = 3
	return &delivery.Event{
		ID: id, Type: "handlertest.event", AggregateType: "thing", AggregateID: fmt.Sprintf("T-%d", id%aggregates),
		Payload: json.RawMessage(fmt.Sprintf(`{"n": %d}`, id)), Headers: map[string]string{"tenant": "acme"},
		CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Attempt: 1, Destination: "handlertest",
	}
}
