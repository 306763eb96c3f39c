package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/routing"
)

// Relay calls handlers for the events of a source, at once and in the order of ids, without a daemon and without
// marking anything. Read through the transaction of the test: the relay then has the events of the test alone. Through
// a pool or a connection it has all committed events of the schema, those of tests that run at the same time included: see
// [Source.Now] and [Source.In]. Routes count as they do for a relay. It knows no retries: an error of a
// handler is the result. The zero value is ready; it is for one goroutine.
type Relay struct {
	routes []route
	after  int64
}

type route struct {
	destination, pattern string
	handler              delivery.Handler
}

// Handle adds a destination for a pattern: an event type, a prefix such as "order.*", or "*". As in a
// relay, an event goes to the destinations of its most specific pattern: the type itself, else the longest
// prefix, else "*". An invalid pattern ends the test.
func (r *Relay) Handle(tb testing.TB, destination, pattern string, h delivery.Handler) {
	tb.Helper()
	if err := routing.Check(pattern); err != nil {
		tb.Fatalf("outboxtest: %v", err)
	}
	r.routes = append(r.routes, route{destination, pattern, h})
}

// Deliver calls the handlers for all events that this relay has not delivered yet, delayed ones included,
// and returns the events that went to at least one destination. The error joins the handlers' errors.
// Events behind a failed one are delivered nevertheless, and the next call delivers no event again.
// Events that handlers write into the outbox meanwhile are delivered, too.
func (r *Relay) Deliver(tb testing.TB, s Source) (delivered []*Event, err error) {
	tb.Helper()

	var errs []error
	for {
		s.after = max(s.after, r.after)
		all := s.Events(tb)
		if len(all) == 0 {
			return delivered, errors.Join(errs...)
		}

		for _, e := range all {
			n, err := r.deliver(tb.Context(), e)
			if n > 0 {
				delivered = append(delivered, e)
			}
			errs = append(errs, err)
			r.after = e.ID
		}
	}
}

// deliver calls the handlers of one event, and returns how many there are.
func (r *Relay) deliver(ctx context.Context, e *Event) (n int, err error) {
	patterns := make([]string, len(r.routes))
	for i := range r.routes {
		patterns[i] = r.routes[i].pattern
	}

	best := routing.Best(patterns, e.Type)
	if best < 0 {
		return 0, nil
	}

	var errs []error
	for _, to := range r.routes {
		if to.pattern != patterns[best] {
			continue
		}

		n++
		err := to.handler.Deliver(ctx, &delivery.Event{
			ID:            e.ID,
			Type:          e.Type,
			AggregateType: e.AggregateType,
			AggregateID:   e.AggregateID,
			Payload:       e.Payload,
			ContentType:   e.ContentType,
			Headers:       e.Headers,
			CreatedAt:     e.CreatedAt,
			Attempt:       1,
			Destination:   to.destination,
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("event %d (%s) to %s: %w", e.ID, e.Type, to.destination, err))
		}
	}

	return n, errors.Join(errs...)
}
