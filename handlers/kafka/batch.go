package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// batch is one call of DeliverBatch.
type batch struct {
	h      *Handler
	p      *producer
	ctx    context.Context //nolint:containedctx // the context of the call, bounded by delivery_timeout
	events []*delivery.Event
	exact  *opened // nil without exactly_once
	errs   []error // by event; nil while nothing has failed
	again  bool    // a transaction that failed for a topic of unknown records was tried again
}

// errBehind is the failure of a record behind one that failed.
var errBehind = errors.New("an earlier event of the batch was not delivered")

// fail records the failure of event i.
func (b *batch) fail(i int, err error) {
	if b.errs == nil {
		b.errs = make([]error, len(b.events))
	}
	b.errs[i] = err
}

// failure returns the failure of event i, nil for none.
func (b *batch) failure(i int) error {
	if b.errs == nil {
		return nil
	}
	return b.errs[i]
}

func (b *batch) failAll(todo []int, err error) {
	for _, i := range todo {
		b.fail(i, err)
	}
}

// failOthers fails the events that have not failed yet.
func (b *batch) failOthers(err error) {
	for i := range b.events {
		if b.failure(i) == nil {
			b.fail(i, err)
		}
	}
}

// run delivers all events.
func (b *batch) run() {
	todo := b.p.encode(b)
	if len(todo) == 0 {
		return
	}

	if b.exact == nil {
		if err := b.p.ready(b.ctx); err != nil {
			b.failAll(todo, err)
			return
		}
	}

	if b.h.encoder.partition != nil {
		todo = placed(b, todo)
	}

	if b.exact != nil {
		b.settle(todo)
		return
	}

	b.deliver(todo)
}

// deliver writes records and, where the broker refuses the content of some, finds
// out which: a broker refuses all records of a partition in a request together.
// Halves are written one after the other, so that the order stays.
func (b *batch) deliver(todo []int) {
	if b.errs != nil && b.inOrder() {
		todo = b.standing(todo)
	}
	if len(todo) == 0 {
		return
	}

	for _, i := range todo {
		if b.errs != nil {
			b.errs[i] = nil
		}
	}
	b.p.produce(b, todo)

	redo := b.refused(todo)
	if len(redo) == 0 {
		redo = b.spoilt(todo)
		if len(redo) > 0 {
			b.deliver(redo)
		}
		return
	}

	if len(todo) == 1 {
		return
	}

	mid := (len(redo) + 1) / 2
	b.deliver(redo[:mid])

	if rest := redo[mid:]; b.stuck(redo[:mid]) {
		b.failAll(rest, errBehind)
	} else if len(rest) > 0 {
		b.deliver(rest)
	}
}

// inOrder reports whether no event may be written behind one of its aggregate that will be tried again.
func (b *batch) inOrder() bool { return b.h.KeepsOrder() && !delivery.CallOf(b.ctx).Unordered }

// refused returns the records of todo that are to be tried in smaller lots. A
// transaction that one record has spoilt is tried again as a whole.
func (b *batch) refused(todo []int) (redo []int) {
	if b.errs == nil {
		return nil
	}
	for _, i := range todo {
		if isContent(b.errs[i]) {
			redo = append(redo, i)
		}
	}
	if len(redo) > 0 && b.h.cfg.Transactional {
		return todo
	}
	return redo
}

// spoilt returns the records of todo whose transaction failed because of other records, whose topics are at fault:
// without these records the transaction may succeed. If the error does not show which they are, the transaction is
// tried once more, by a client that asks.
func (b *batch) spoilt(todo []int) (redo []int) {
	for _, i := range todo {
		if err, ok := errors.AsType[*spoiltError](b.failure(i)); ok && b.ownTopic(err.reason) {
			redo = append(redo, i)
		}
	}
	if len(redo) == len(todo) {
		if b.again {
			return nil
		}
		b.again = true
	}
	return redo
}

// ownTopic reports whether an error is about a topic that was made of the event.
func (b *batch) ownTopic(err error) bool { return b.h.encoder.fixedTopic == "" && isTopic(err) }

// stuck reports whether one of todo failed through no fault of an event: then no later event is tried. The refusal of a
// record holds up its aggregate alone, as [batch.standing] sees to. A failure about a topic that was made of the event does
// not count: order is not kept between topics.
func (b *batch) stuck(todo []int) bool {
	return slices.ContainsFunc(todo, func(i int) bool {
		err := b.failure(i)
		isOfEvent := isContent(err) || b.ownTopic(err) || errors.Is(err, errBehind)
		return err != nil && !isOfEvent
	})
}

// answers returns the errors of DeliverBatch, and reports where the other events are.
func (b *batch) answers(ctx context.Context) []error {
	for i, e := range b.events {
		if r := &b.p.records[i]; b.failure(i) == nil {
			e.Acknowledged(func() delivery.Ack {
				return delivery.Ack{Partition: strconv.Itoa(int(r.Partition)), Offset: r.Offset}
			})
		}
	}
	return outcome.Answers(b.errs, func(err error) error { return b.answer(ctx, err) })
}

func (b *batch) answer(ctx context.Context, err error) error {
	undecided := isUndecided(err)
	if undecided && ctx.Err() != nil {
		if b.exact != nil {
			return fmt.Errorf("kafka: %w: %w", delivery.ErrReopen, context.Cause(ctx))
		}
		return b.h.out.Ended(ctx, "")
	}

	if undecided {
		err = b.p.link.explain(fmt.Errorf("no acknowledgement within delivery_timeout of %v", b.h.cfg.DeliveryTimeout))
	}

	if b.exact != nil {
		return b.verdict(err)
	}

	return b.h.answer(err, b.h.encoder.fixedTopic == "")
}
