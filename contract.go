package notifyd

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// The contract between the relay and handlers is package delivery, and the figures of a relay are
// in package observe. These are their names for programs that embed a relay.
type (
	// Event is one event on its way to one destination.
	Event = delivery.Event
	// Handler delivers one event; see delivery.Handler for its contract.
	Handler = delivery.Handler
	// HandlerFunc adapts a function to a Handler.
	HandlerFunc = delivery.HandlerFunc
	// BatchHandler is a Handler that takes several events in one call.
	BatchHandler = delivery.BatchHandler
	// BatchHandlerFunc adapts a function to a BatchHandler.
	BatchHandlerFunc = delivery.BatchHandlerFunc
	// Filter decides whether an event is for a destination.
	Filter = delivery.Filter
	// Candidate is an event about which filters decide.
	Candidate = delivery.Candidate
	// Middleware wraps a Handler in another.
	Middleware = delivery.Middleware
	// Observer is notified of incidents, such as a dead letter.
	Observer = delivery.Observer
	// Incident is an event that an operator may want to know at once.
	Incident = delivery.Incident
	// Stats are the figures of a relay.
	Stats = observe.Stats
	// Backlog is the backlog of the tables.
	Backlog = observe.Backlog
	// Health says whether a relay works.
	Health = observe.Health
	// Pause is by whom and why a destination is paused.
	Pause = observe.Pause
	// Backoff is the wait between attempts.
	Backoff = delivery.Backoff
	// Rate is how many deliveries may begin in a time.
	Rate = delivery.Rate
	// RateKey returns the key by which a Rate counts.
	RateKey = delivery.RateKey
)

// Permanent marks err as a failure that no further attempt can cure: the event
// becomes a dead letter at once. Permanent(nil) is nil.
func Permanent(err error) error { return delivery.Permanent(err) }

// RetryAfter marks err as a failure that may be retried after d, instead of the backoff. The
// attempt counts. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error { return delivery.RetryAfter(d, err) }

// Unavailable marks err as a fault of the destination, not of the event: its
// events wait until it answers again, and no attempt is counted.
// Unavailable(nil) is nil.
func Unavailable(err error) error { return delivery.Unavailable(err) }

// Throttled marks err as the answer of a destination that works and wants fewer
// deliveries: they slow down, none begins before after is over, and no attempt is
// counted. An after of 0 leaves the pace to notifyd. Throttled(after, nil) is nil.
func Throttled(after time.Duration, err error) error { return delivery.Throttled(after, err) }
