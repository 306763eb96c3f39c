package mqtt

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// batch is one call of DeliverBatch.
type batch struct {
	h       *Handler
	events  []*delivery.Event
	packets []*packets.Publish // nil where none can be made
	errs    []error
}

func newBatch(h *Handler, events []*delivery.Event) *batch {
	return &batch{
		h:       h,
		events:  events,
		packets: make([]*packets.Publish, len(events)),
		errs:    make([]error, len(events)),
	}
}

func (b *batch) encode() {
	for i, ev := range b.events {
		p, err := b.h.encoder.packet(ev)
		if err != nil {
			b.errs[i] = outcome.Content(err)
		}
		b.packets[i] = p
	}
}

// all returns the events that have not failed yet.
func (b *batch) all() []int {
	todo := make([]int, 0, len(b.events))
	for i, err := range b.errs {
		if err == nil {
			todo = append(todo, i)
		}
	}
	return todo
}

func (b *batch) failAll(todo []int, err error) {
	for _, i := range todo {
		b.errs[i] = err
	}
}

// sendAll sends events, over several connections if the broker ends one over a message. Nothing else is repeated.
func (b *batch) sendAll(ctx context.Context, todo []int) {
	begun := time.Now()
	for len(todo) > 0 {
		for _, i := range b.send(ctx, todo) {
			b.sendAlone(ctx, i)
		}

		isLate := time.Since(begun) > b.h.cfg.Within()/2
		todo = slices.DeleteFunc(todo, func(i int) bool { return !errors.Is(b.errs[i], errAgain) })
		if isLate || ctx.Err() != nil {
			return
		}
	}
}

// send publishes events over the connection. If the broker ends it over one of several packets under way, send returns
// those of this batch: each of them has to be sent alone. Others that only share the connection with a message that was
// refused have the error errAgain.
func (b *batch) send(ctx context.Context, todo []int) (suspects []int) {
	events := make([]*delivery.Event, len(todo))
	for k, i := range todo {
		events[k] = b.events[i]
	}

	l, err := b.h.connect(ctx, events)
	if err != nil {
		b.failAll(todo, err)
		return nil
	}
	defer l.users.Done()

	b.publish(ctx, l, todo)

	answers := make([]error, 0, len(todo))
	for _, i := range todo {
		if isAboutPacket(b.errs[i]) && !isAlone(b.errs[i]) {
			suspects = append(suspects, i)
		}
		if errors.Is(b.errs[i], errLost) && l.hasRefused.Load() {
			b.errs[i] = errAgain
		}
		if b.errs[i] != nil {
			answers = append(answers, b.h.answer(ctx, b.errs[i]))
		}
	}
	l.record.Learn(answers)
	return suspects
}

// sendAlone publishes an event over a separate connection.
func (b *batch) sendAlone(ctx context.Context, i int) {
	l, err := b.h.dial(ctx)
	if err != nil {
		b.errs[i] = err
		return
	}
	defer l.end(errReplaced)
	b.publish(ctx, l, []int{i})
}

// under is a message whose acknowledgement is awaited.
type under struct {
	event int
	flight
}

// chain is the events of one aggregate, in order.
type chain struct {
	next   int // the place of the next one
	events []int
}

// chains splits events by aggregate, and returns the chains and the chain of each event. An event without an aggregate
// is a separate chain, and so is each event of a call without an order.
func (b *batch) chains(ctx context.Context, todo []int) (all []*chain, of map[int]*chain) {
	type aggregate struct{ kind, id string }
	known := make(map[aggregate]*chain)
	of = make(map[int]*chain, len(todo))
	isUnordered := delivery.CallOf(ctx).Unordered

	for _, i := range todo {
		key := aggregate{b.events[i].AggregateType, b.events[i].AggregateID}
		c := known[key]
		if c == nil || key.id == "" || isUnordered {
			c = &chain{}
			known[key] = c
			all = append(all, c)
		}

		c.events = append(c.events, i)
		of[i] = c
	}
	return all, of
}

// publish sends all events, and waits. Once the destination has failed, nothing more is sent.
func (b *batch) publish(ctx context.Context, l *link, todo []int) {
	ready, of := b.chains(ctx, todo)
	var flying []under
	var down error

	settle := func(i int, err error) {
		b.errs[i] = err
		if err != nil && down == nil && b.holds(ctx, err) {
			down = err
		}

		c := of[i]
		c.next++
		if c.next < len(c.events) {
			ready = append(ready, c)
		}
	}

	for len(ready) > 0 || len(flying) > 0 {
		maySend := down != nil || len(flying) < cap(l.ids)
		if len(ready) == 0 || !maySend {
			first := flying[0]
			flying = flying[1:]
			settle(first.event, l.await(ctx, first.flight))
			continue
		}

		i := ready[0].events[ready[0].next]
		ready = ready[1:]
		if down != nil {
			settle(i, notSent(down))
			continue
		}

		f, err := l.publish(ctx, b.packets[i])
		if err != nil {
			settle(i, err)
			continue
		}
		flying = append(flying, under{i, f})
	}

	if errors.Is(down, errAckTimeout) {
		l.end(errAckTimeout) // the connection may be dead; a new one finds out
	}
}

// holds reports whether nothing more of the batch may be sent after err.
func (b *batch) holds(ctx context.Context, err error) bool {
	class := outcome.Of(b.h.answer(ctx, err))
	isDown := class == outcome.Unavailable || class == outcome.Unauthorized || class == outcome.Throttled
	return isDown || isAboutPacket(err) || ctx.Err() != nil
}

// answers returns the errors of DeliverBatch.
func (b *batch) answers(ctx context.Context) []error {
	return outcome.Answers(b.errs, func(err error) error { return b.h.answer(ctx, err) })
}
