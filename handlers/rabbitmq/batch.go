package rabbitmq

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// batch is one delivery of several events.
type batch struct {
	h        *Handler
	conn     *connection // the last one used; nil before the first
	events   []*delivery.Event
	messages []*outgoing // nil where the message cannot be built
	failures []*failure  // by event; nil where delivered or still open
	open     []bool      // not answered yet
	// alone sends one message at a time, to find out which of several made the
	// broker close the channel.
	alone bool
	// total treats all events as events of one aggregate.
	total bool
}

// aggregate is the unit of order.
type aggregate struct{ kind, id string }

func (h *Handler) newBatch(ctx context.Context, events []*delivery.Event) *batch {
	b := &batch{
		h:        h,
		events:   events,
		total:    delivery.CallOf(ctx).TotalOrder,
		messages: make([]*outgoing, len(events)),
		failures: make([]*failure, len(events)),
		open:     make([]bool, len(events)),
	}

	for i, e := range events {
		m, err := h.enc.encode(e)
		if err != nil {
			b.failures[i] = &failure{at: stageMessage, text: err.Error()}
			continue
		}
		b.messages[i] = m
		b.open[i] = true
	}

	return b
}

// next returns the events to publish together: the first open ones
// in order, up to a window.
func (b *batch) next() []int {
	limit := maxWindow
	if b.alone {
		limit = 1
	}

	var next []int
	var seen map[aggregate]bool
	if b.h.cfg.StrictOrder {
		seen = make(map[aggregate]bool)
		b.holdBack()
	}

	for i, open := range b.open {
		if !open {
			continue
		}
		if len(next) == limit {
			break
		}

		if a := b.unit(b.events[i]); seen != nil && a.id != "" {
			if seen[a] {
				continue
			}
			seen[a] = true
		}

		next = append(next, i)
	}

	return next
}

// holdBack fails the open events that come after a failed one of their
// aggregate. One that is dead holds nothing back.
func (b *batch) holdBack() {
	failed := make(map[aggregate]*failure)
	for i, e := range b.events {
		a := b.unit(e)
		f := b.failures[i]
		switch head := failed[a]; {
		case a.id == "":
		case b.open[i] && head != nil:
			b.settle(i, behind(head))
		case f != nil && !delivery.IsPermanent(classify(f)):
			failed[a] = f
		}
	}
}

// behind returns the failure of an event that follows a failed one: a fault of the
// broker is also that of the event, and for any other no attempt counts.
func behind(head *failure) *failure {
	why := cmp.Or(head.text, head.at.String())
	if head.class().MayBeEvents() && !head.ours {
		return &failure{at: stageBehind, text: why}
	}
	f := *head
	f.text = fmt.Sprintf("%s: %s", stageBehind, why)
	return &f
}

// unit returns the unit of order of an event; without an id it is in none.
func (b *batch) unit(e *delivery.Event) aggregate {
	if b.total {
		return aggregate{id: "all"}
	}
	return aggregate{e.AggregateType, e.AggregateID}
}

// settle notes the answer for an event; nil is delivered.
func (b *batch) settle(i int, f *failure) {
	b.open[i] = false
	b.failures[i] = f
}

// failAll fails the open events.
func (b *batch) failAll(f *failure) {
	for i, open := range b.open {
		if open {
			b.settle(i, f)
		}
	}
}

// send publishes events, waits for the answers and settles the answered events. A
// failure is the destination's, for all events that are still open.
func (b *batch) send(ctx context.Context, next []int) *failure {
	conn, err := b.h.connector.get(ctx)
	if err != nil {
		return asFailure(err)
	}

	b.conn = conn
	defer conn.leave()

	ctx, cancel := outcome.Within(ctx, "confirm_timeout", b.h.cfg.ConfirmTimeout)
	defer cancel()

	ch, f := conn.acquire(ctx, b.h)
	if f != nil {
		return f
	}

	defer conn.release(ch)

	next = b.dropUnfit(next, conn)
	next = b.dropDelayed(ctx, next, conn)

	messages := make([]*outgoing, len(next))
	for i, at := range next {
		messages[i] = b.messages[at]
	}

	n, f := ch.publish(ctx, conn, messages, b.mandatory)
	b.h.unconfirmed.Add(int64(n))
	defer b.h.unconfirmed.Add(-int64(n))

	if waited := ch.await(ctx, conn); f == nil {
		f = waited
	}

	open := b.collect(ctx, ch, conn, next, n)
	if len(open) == 0 {
		return nil
	}

	if f == nil { // the only answer is that the channel is closed
		f = ch.closedBy(ctx, conn)
	}

	if f.at != stageRefused || !aboutMessage(f.code, b.h.ownExchange) {
		return f
	}

	f.own = b.h.ownExchange
	b.accuse(open, f)
	return nil
}

// dropUnfit fails the messages whose properties are too large for a frame: the
// broker would close the connection.
func (b *batch) dropUnfit(next []int, conn *connection) []int {
	limit := conn.conn.Config.FrameSize - frameOverhead
	fit := next[:0]
	for _, i := range next {
		if size := b.messages[i].header; size > limit {
			b.settle(i, &failure{at: stageMessage, text: fmt.Sprintf("the headers have some %d bytes: this broker takes %d", size, limit)})
			continue
		}
		fit = append(fit, i)
	}

	return fit
}

// dropDelayed fails delayed messages for an exchange that may keep them: each attempt would be a copy.
func (b *batch) dropDelayed(ctx context.Context, next []int, conn *connection) []int {
	if !slices.ContainsFunc(next, func(i int) bool { return b.messages[i].delayed }) {
		return next
	}

	send := next[:0]
	asked := make(map[string]bool)
	for _, i := range next {
		m := b.messages[i]
		f, _ := b.h.delays.of(m.exchange)
		isUnknown := m.delayed && f != nil && f.at == stageDelay
		if isUnknown && !asked[m.exchange] {
			asked[m.exchange] = true
			f = b.h.delays.ask(ctx, conn, m.exchange)
			isUnknown = f != nil && f.at == stageDelay
		}

		if isUnknown {
			b.settle(i, f)
			continue
		}

		send = append(send, i)
	}

	return send
}

// mandatory reports whether the broker returns the message if no queue takes it. An exchange that delays a message
// routes it later, so the broker would return each.
func (b *batch) mandatory(m *outgoing) bool {
	if b.h.cfg.Unroutable == UnroutableDrop {
		return false
	}
	if !m.delayed {
		return true
	}
	f, known := b.h.delays.of(m.exchange)
	return !known || f != nil
}

// collect settles the first n of next by their answers, and returns the events
// of next that have no answer yet. A channel that has its answers is ready for
// other events.
func (b *batch) collect(ctx context.Context, ch *channel, conn *connection, next []int, n int) (open []int) {
	returned := ch.takeReturns()
	pending := ch.sent[:0]
	for i, at := range next {
		if i >= n {
			open = append(open, at)
			continue
		}

		dc := ch.sent[i]
		select {
		case <-dc.Done():
		default:
			pending = append(pending, dc)
			open = append(open, at)
			continue
		}

		r, back := returned[b.messages[at].publishing.MessageId]
		switch {
		case dc.Acked() && back:
			b.settle(at, b.returned(ctx, conn, at, r))
		case dc.Acked():
			b.settle(at, nil)
		case ch.amqp.IsClosed():
			// The library answers for a broker that is gone.
			open = append(open, at)
		default:
			b.settle(at, &failure{at: stageNack, text: "its queue is full or has failed"})
		}
	}

	ch.sent = pending
	return open
}

// returned is the failure of a message that came back, nil if the exchange has kept it.
func (b *batch) returned(ctx context.Context, conn *connection, at int, r amqp.Return) *failure {
	if m := b.messages[at]; m.delayed && m.exchange != "" {
		f, known := b.h.delays.of(m.exchange)
		if !known {
			f = b.h.delays.ask(ctx, conn, m.exchange)
		}
		if f == nil || f.at == stageDelay {
			return f
		}
	}

	conn.declareAgain()
	return &failure{
		at: stageReturned, code: int(r.ReplyCode),
		own:    b.h.ownRoute && b.h.cfg.Unroutable != UnroutableWait,
		counts: b.h.cfg.Unroutable == UnroutableRetry,
		text: conn.target.clean(fmt.Sprintf("%d %s: exchange %q has no queue for routing key %q (bind one, or set unroutable: %s)",
			r.ReplyCode, r.ReplyText, r.Exchange, r.RoutingKey, UnroutableDrop)),
	}
}

// accuse blames the one message for a channel that the broker has closed, or has the
// candidates sent again, one by one, until the message is found: the broker does not
// name it.
func (b *batch) accuse(open []int, f *failure) {
	if len(open) > 1 {
		b.alone = true
		return
	}
	b.settle(open[0], f)
	b.alone = false
}

// learn makes the connection suspect if the broker has refused what another one may take.
func (b *batch) learn() {
	if b.conn != nil && slices.ContainsFunc(b.failures, mayBeBroker) {
		b.conn.suspect()
	}
}

// mayBeBroker reports whether a failure is the answer of one broker, and another broker may take the event. setAlarm treats
// alarms. A message without a confirmation may still arrive: newer messages on another connection could overtake it.
func mayBeBroker(f *failure) bool {
	if f == nil || f.ours {
		return false
	}

	isWait := f.at == stageBlocked || f.at == stageConfirm
	if isWait {
		return false
	}
	return f.class() != outcome.Permanent
}

// answers returns the result of DeliverBatch.
func (b *batch) answers() []error {
	b.repeatBehind()
	var errs []error
	for i, f := range b.failures {
		if f == nil {
			continue
		}
		if errs == nil {
			errs = make([]error, len(b.events))
		}
		errs[i] = classify(f)
	}
	return errs
}

// repeatBehind repeats confirmed events whose earlier event of the same
// aggregate has to be sent again because of the connection or the broker.
// Otherwise the last message that consumers see would not be the last event of
// the aggregate.
func (b *batch) repeatBehind() {
	failed := make(map[aggregate]*failure)
	for i, e := range b.events {
		a := b.unit(e)
		if a.id == "" {
			continue
		}

		f := b.failures[i]
		if head := failed[a]; f == nil && head != nil {
			b.failures[i] = behind(head)
		} else if f != nil && delivery.IsUnavailable(classify(f)) {
			failed[a] = f
		}
	}
}

// asFailure returns the *failure that connector.get has returned.
func asFailure(err error) *failure {
	f, ok := err.(*failure) //nolint:errorlint // it is not wrapped
	if !ok {
		return &failure{at: stageConnect, text: err.Error()}
	}
	return f
}
