package notifyd

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// The contract between the relay and handlers is package delivery, and what can be
// observed of a relay is package observe; these are their names for programs that embed
// a relay.
type (
	// Event is one event on its way to one destination.
	Event = delivery.Event
	// Handler delivers one event; see delivery.Handler for what it must keep to.
	Handler = delivery.Handler
	// HandlerFunc makes a Handler of a function.
	HandlerFunc = delivery.HandlerFunc
	// BatchHandler is a Handler that takes several events in one go.
	BatchHandler = delivery.BatchHandler
	// BatchHandlerFunc makes a BatchHandler of a function.
	BatchHandlerFunc = delivery.BatchHandlerFunc
	// Middleware wraps a Handler in another.
	Middleware = delivery.Middleware
	// Observer is told of incidents, such as a dead letter.
	Observer = delivery.Observer
	// Incident is something that an operator may want to know of at once.
	Incident = delivery.Incident
	// Stats are the figures of a relay.
	Stats = observe.Stats
	// Backlog is what waits in the tables.
	Backlog = observe.Backlog
	// Backoff says how long to wait between attempts.
	Backoff = delivery.Backoff
)

// Permanent marks err as a failure that no further attempt can cure: the event
// becomes a dead letter at once. Permanent(nil) is nil.
func Permanent(err error) error { return delivery.Permanent(err) }

// RetryAfter marks err as a failure that may be tried again after d, in place
// of the backoff. The attempt counts. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error { return delivery.RetryAfter(d, err) }

// Unavailable marks err as a fault of the destination, not of the event: its
// events wait until it answers again, and no attempt is counted.
// Unavailable(nil) is nil.
func Unavailable(err error) error { return delivery.Unavailable(err) }

// Throttled marks err as the answer of a destination that works and wants fewer
// deliveries: they slow down, none begins before after is over, and no attempt is
// counted. An after of 0 leaves the pace to notifyd. Throttled(after, nil) is nil.
func Throttled(after time.Duration, err error) error { return delivery.Throttled(after, err) }
