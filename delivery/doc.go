// Package delivery is the contract between a relay and its handlers. Applications need the first three sections, authors of
// destinations all of them. The package imports only the standard library.
//
// # Handle events
//
// A [Handler] delivers one [Event]. [HandlerFunc] makes one of a function, and [HandleJSON] decodes the payload as well:
//
//	relay.Handle("order.placed", notifyd.Destination{
//		Name: "warehouse",
//		Handler: delivery.HandleJSON(func(ctx context.Context, e *delivery.Event, order Order) error {
//			return warehouse.Reserve(ctx, e.DedupeID(), order)
//		}),
//	})
//
// A relay delivers each event at least once. [Event.DedupeID] is the same for every attempt: drop duplicates by it.
//
// # Results
//
// The result of a handler decides what happens to the event:
//
//	nil                     it is delivered
//	err                     it is tried again later; Lane.MaxAttempts failures make a dead letter
//	RetryAfter(d, err)      the same, and not before d has passed
//	Permanent(err)          it is a dead letter at once
//	Unavailable(err)        the destination is down: its lane pauses, and no attempt counts
//	Unauthorized(err)       the same, and the destination is tried less often
//	Throttled(d, err)       the destination wants fewer deliveries: its lane slows down, and no attempt counts
//	Unclear(err)            the event or the destination is at fault: other events show which
//
// # Settings of a destination
//
// [Lane] has concurrency, batches, attempts, order and limits. A zero field has its default. A [Filter] drops events before
// they are delivered, and a [RateKey] counts them by customer, for example. An [Observer] receives each [Incident], such as a
// new dead letter. [Around] makes [Middleware] for logs, metrics and traces.
//
// # Write a destination
//
// A handler implements more interfaces for what else it can do. [BatchHandler] takes several events in one call,
// [OrderedBatchHandler] keeps their order, and [CallOf] returns the order that the relay requires. [Checker] tests the connection,
// [Previewer] shows a message, [Sizer] bounds it, [Reporter] reports the state, and [PositionStore] delivers exactly once.
// [As] finds these behind middleware. Package handlers/handlertest proves that a handler keeps the contract.
package delivery
