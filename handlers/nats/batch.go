package nats

import (
	"context"
	"errors"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// window is how many messages of a batch are under way at a time: enough for a
// round trip to any place on earth at ten thousand a second.
const window = 1000

// batch is one call of DeliverBatch.
type batch struct {
	h      *Handler
	events []*delivery.Event
	msgs   []*natsgo.Msg // nil where none can be made
	errs   []error
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

// flight is a message whose acknowledgement is awaited.
type flight struct {
	event int
	ack   jetstream.PubAckFuture
}

// chain is the events of one aggregate, in order.
type chain struct {
	next   int // the place of the next one
	events []int
}

// chains splits a batch by aggregate, and returns the chains and the chain
// of each event. An event without an aggregate is a separate chain.
func (b *batch) chains(todo []int) (all []*chain, of map[int]*chain) {
	type aggregate struct{ kind, id string }
	known := make(map[aggregate]*chain)
	of = make(map[int]*chain, len(todo))

	for _, i := range todo {
		key := aggregate{b.events[i].AggregateType, b.events[i].AggregateID}
		c := known[key]
		if c == nil || key.id == "" {
			c = &chain{}
			known[key] = c
			all = append(all, c)
		}

		c.events = append(c.events, i)
		of[i] = c
	}
	return all, of
}

// publish sends all events to their streams, and waits. Once the destination has
// failed, nothing more is sent.
func (b *batch) publish(ctx context.Context, l *link, todo []int) {
	ready, of := b.chains(todo)
	var flying []flight
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
		if len(ready) > 0 && (down != nil || len(flying) < window) {
			i := ready[0].events[ready[0].next]
			ready = ready[1:]
			if down != nil {
				settle(i, down)
				continue
			}

			l.forget(b.msgs[i].Subject)
			ack, err := l.stream.PublishMsgAsync(b.msgs[i], jetstream.WithRetryAttempts(0))
			if err != nil {
				settle(i, err)
				continue
			}
			flying = append(flying, flight{i, ack})
			continue
		}

		first := flying[0]
		flying = flying[1:]
		settle(first.event, b.await(ctx, l, first))
	}

	if errors.Is(down, jetstream.ErrAsyncPublishTimeout) {
		// The connection may be dead. A new one finds out.
		l.close()
	}
}

// holds reports whether nothing more of the batch may be sent after err.
func (b *batch) holds(ctx context.Context, err error) bool {
	answer := b.h.answer(ctx, err)
	return delivery.IsUnavailable(answer) || ctx.Err() != nil
}

// await waits for one acknowledgement.
func (b *batch) await(ctx context.Context, l *link, f flight) error {
	subject := b.msgs[f.event].Subject
	for {
		changed, refused := l.refusal(subject)
		select {
		case <-f.ack.Ok(): // also for a duplicate: the stream has it
			return nil
		case err := <-f.ack.Err():
			return b.explain(ctx, l, subject, err)
		default:
		}

		if refused != nil {
			return refused
		}

		select {
		case <-f.ack.Ok():
			return nil
		case err := <-f.ack.Err():
			return b.explain(ctx, l, subject, err)
		case <-changed:
		case <-l.gone:
			return errors.Join(errLost, l.conn.LastError())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// explain finds out why no answer came: no stream takes the subject, or the stream
// that takes it has no leader at the moment. Where all events have one subject it
// makes no difference.
func (b *batch) explain(ctx context.Context, l *link, subject string, err error) error {
	if b.h.encoder.fixed != "" || !errors.Is(err, jetstream.ErrNoStreamResponse) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.h.cfg.AckTimeout)
	defer cancel()
	if _, asked := l.stream.StreamNameBySubject(ctx, subject); errors.Is(asked, jetstream.ErrStreamNotFound) {
		return errNoStream
	}
	return err
}

// publishCore sends all events, and waits until the server has read them. The
// server answers nothing for an event that it takes, and reports a refusal before
// it answers the ping that follows; so there is a ping behind each run of events
// with the same subject.
func (b *batch) publishCore(ctx context.Context, l *link, todo []int) {
	select {
	case b.h.core <- struct{}{}: // the server's errors do not name the publisher
		defer func() { <-b.h.core }()
	case <-ctx.Done():
		b.failAll(todo, context.Cause(ctx))
		return
	}

	for len(todo) > 0 {
		n := 1
		for n < len(todo) && b.msgs[todo[n]].Subject == b.msgs[todo[0]].Subject {
			n++
		}

		err := b.flush(ctx, l, todo[:n])
		if err != nil && b.holds(ctx, err) {
			b.failAll(todo[n:], err)
			break
		}

		todo = todo[n:]
	}
}

// flush sends events with one subject. The error belongs to all events that
// could be sent.
func (b *batch) flush(ctx context.Context, l *link, run []int) error {
	before := l.conn.LastError()
	sent := make([]int, 0, len(run))

	for k, i := range run {
		err := l.conn.PublishMsg(b.msgs[i])
		if err != nil && b.holds(ctx, err) {
			b.failAll(append(sent, run[k:]...), err)
			return err
		}

		b.errs[i] = err
		if err == nil {
			sent = append(sent, i)
		}
	}

	within, cancel := context.WithTimeoutCause(ctx, b.h.cfg.AckTimeout, errFlushTimeout)
	defer cancel()
	err := l.conn.FlushWithContext(within)

	if err != nil && within.Err() != nil {
		err = context.Cause(within)
		l.close() // the pong may still come, and would answer a later ping
	}

	said := l.conn.LastError()
	isNew := said != nil && said != before //nolint:errorlint // whether it is a new one
	if err == nil && isNew && refusedSubject(said) != "" {
		err = said
	}

	if err != nil {
		b.failAll(sent, err)
	}

	return err
}

// answers returns the errors of DeliverBatch.
func (b *batch) answers(ctx context.Context) []error {
	return outcome.Answers(b.errs, func(err error) error { return b.h.answer(ctx, err) })
}
