package bench

import (
	"context"
	"fmt"
	"strconv"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// place is the target of a drain.
type place struct {
	// note describes the place for people.
	note string
	// handlers get the events, spread evenly over them by event type.
	handlers []delivery.Handler
	lane     delivery.Lane
	// exact are handlers that deliver to the same places exactly once; nil if the place does not support that.
	exact []delivery.Handler
	// exactly is their lane.
	exactly delivery.Lane
	// pid is the process of a private server, or 0.
	pid int
	// arrived calls note with the id of every event in the place. If nil, the place cannot be read back, and handled
	// events count.
	arrived func(ctx context.Context, note func(id int64)) error
	// close ends a private server, or removes the drain's topics or queue.
	close func(ctx context.Context) error
}

// noSink is the word for no sink.
const noSink = "noop"

// sinks returns the function that opens each place, by the word of [Drain.To].
func sinks() map[string]func(context.Context, *Drain) (*place, error) {
	return map[string]func(context.Context, *Drain) (*place, error){
		noSink:     openNoop,
		"kafka":    openKafka,
		"rabbitmq": openRabbitMQ,
	}
}

// openNoop opens a place whose handler does nothing.
func openNoop(context.Context, *Drain) (*place, error) {
	return &place{
		note:     "a Go function that does nothing",
		handlers: []delivery.Handler{delivery.HandlerFunc(doNothing)},
		close:    func(context.Context) error { return nil },
	}, nil
}

func doNothing(context.Context, *delivery.Event) error { return nil }

// openSink opens the place of a drain.
func (d *drain) openSink(ctx context.Context) (err error) {
	d.place, err = sinks()[d.want.To](ctx, d.want)
	if err != nil {
		return fmt.Errorf("drain to %s: %w", d.want.To, err)
	}
	d.Cleanup(d.place.close)
	return nil
}

// sinkName is the prefix of the names of destinations; a number follows.
const sinkName = "sink-"

// routeType returns the type of the events for the i-th handler.
func routeType(i int) string { return eventType + "." + strconv.Itoa(i) }

// register adds the destinations to the relay, and records their deliveries.
func (d *drain) register(relay *notifyd.Relay, l load, seen []*sightings) error {
	handlers := d.place.handlers
	lane := d.place.lane

	if l.exact {
		handlers = d.place.exact
		lane = d.place.exactly
	}

	if d.want.Total {
		lane.Order = delivery.OrderTotal
	}
	lane.Shards = l.shards

	for i, h := range handlers {
		var names []string
		for copied, one := range seen {
			name := sinkName + strconv.Itoa(i)
			if copied > 0 {
				name += "-" + strconv.Itoa(copied)
			}
			if err := relay.Add(notifyd.Destination{Name: name, Handler: noting(h, one), Lane: lane}); err != nil {
				return err
			}
			names = append(names, name)
		}
		if err := relay.Route(routeType(i), names...); err != nil {
			return err
		}
	}

	if l.urgent == 0 {
		return nil
	}
	h := noting(delivery.HandlerFunc(doNothing), seen[0])
	return relay.Handle(urgentType, notifyd.Destination{Name: urgentType, Handler: h, Lane: delivery.Lane{Priority: l.priority}})
}

// noting returns h with its deliveries recorded in seen.
func noting(h delivery.Handler, seen *sightings) delivery.Handler {
	if batches, ok := h.(delivery.BatchHandler); ok {
		return notedBatches{batches, seen}
	}
	return delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
		seen.begin(e)
		err := h.Deliver(ctx, e)
		if err == nil {
			seen.note(e.ID)
		}
		return err
	})
}

// notedBatches records the deliveries of a handler of batches.
type notedBatches struct {
	delivery.BatchHandler
	seen *sightings
}

// Deliver implements delivery.Handler.
func (b notedBatches) Deliver(ctx context.Context, e *delivery.Event) error {
	b.seen.begin(e)
	err := b.BatchHandler.Deliver(ctx, e)
	if err == nil {
		b.seen.note(e.ID)
	}
	return err
}

// DeliverBatch implements delivery.BatchHandler.
func (b notedBatches) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	for _, e := range events {
		b.seen.begin(e)
	}
	errs := b.BatchHandler.DeliverBatch(ctx, events)
	for i, e := range events {
		if errs == nil || errs[i] == nil {
			b.seen.note(e.ID)
		}
	}
	return errs
}

// Unwrap returns the handler, for delivery.As.
func (b notedBatches) Unwrap() delivery.Handler { return b.BatchHandler }

// KeepsOrder implements delivery.OrderedBatchHandler with the handler's result. Without this method a batch would have at most
// one event of an aggregate.
func (b notedBatches) KeepsOrder() bool {
	k, ok := b.BatchHandler.(delivery.OrderedBatchHandler)
	return ok && k.KeepsOrder()
}

// recount counts the events that have arrived, instead of the handled events, if the place can be read back.
func (d *drain) recount(ctx context.Context, l load, result *drained) error {
	if d.place == nil || d.place.arrived == nil {
		return nil
	}
	there := l.sightings()
	if err := d.place.arrived(ctx, there.note); err != nil {
		return fmt.Errorf("read back what has arrived: %w", err)
	}
	result.Lost = max(result.Lost, there.missing())
	result.Duplicates = there.faults().Duplicates
	return nil
}
