// Package nats delivers events as messages to the streams of NATS JetStream, or
// to the subscribers of core NATS.
//
// With JetStream an event is delivered once a stream has acknowledged it. The
// header Nats-Msg-Id holds the event's id, so that a stream drops the copy that
// a lost acknowledgement causes, within its duplicate window (two minutes unless
// it says otherwise); such an acknowledgement counts like any other. With mode
// core an event is delivered once the server has it: a consumer that does not
// listen at that moment never gets it.
//
// Order: the events of one aggregate are published one after the other, each
// when the one before it was acknowledged, so that none overtakes one that has
// failed for want of the server; those of different aggregates are under way at
// the same time. Events without an aggregate have no order. NATS before 2.12 has
// no way to store several messages together, and nothing else keeps the second
// from being stored where the first was not. Batches that are delivered at the
// same time have no order; a destination that needs one has a concurrency of 1.
//
// There is one connection. After a loss, or a refusal that another server may not
// give, the next delivery makes a new one, and returns the error if it cannot; the
// library's reconnection is off, because it hides the error, and would hold back
// messages.
package nats

import (
	"context"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// Handler publishes events. It implements [delivery.BatchHandler] and io.Closer,
// and is safe for concurrent use.
type Handler struct {
	cfg     Config
	options []natsgo.Option
	encoder *encoder
	out     *outcome.Destination
	closing context.Context //nolint:containedctx // done when the handler is closed
	close   context.CancelFunc
	dialing chan struct{} // held while a connection is made
	age     time.Duration // the longest use of a connection
	core    chan struct{} // held while events are published with mode core

	mu    sync.Mutex
	link  *link                   // nil before the first delivery
	found *jetstream.StreamConfig // by the last Check; nil if it depends on the event, or this user may not ask
}

// New returns a handler for cfg. It reads the files that cfg names, and makes no
// connection: a relay starts also while NATS is down. The error joins every
// mistake, each a [*handlers.FieldError]. The caller closes the handler.
func New(cfg Config, options ...handlers.Option) (*Handler, error) {
	o := handlers.Apply(options)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	cfg = cfg.WithDefaults()
	enc, err := newEncoder(cfg)
	if err != nil {
		return nil, err
	}

	h := &Handler{
		cfg:     cfg,
		encoder: enc,
		age:     idle.MaxAge,
		dialing: make(chan struct{}, 1),
		core:    make(chan struct{}, 1),
	}

	h.out = outcome.New("nats", "check servers, or take tls out",
		cfg.Password.Reveal(), cfg.Token.Reveal(), cfg.NKeySeed.Reveal())
	h.out.Safe = []error{errLost, errNoStream, errFlushTimeout, natsgo.ErrMaxPayload}

	h.options, err = connectOptions(cfg, o.BaseDir)
	if err != nil {
		return nil, err
	}

	h.closing, h.close = context.WithCancel(context.Background()) //nolint:forbidigo // the handler's own life
	return h, nil
}

// Deliver publishes e. See [Handler.DeliverBatch].
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return outcome.First(h.DeliverBatch(ctx, []*delivery.Event{e}))
}

// DeliverBatch publishes events and waits for their acknowledgements. What an
// error means:
//
//   - [delivery.Permanent]: no message can be made of this event, or it is too
//     large for the server or the stream.
//   - [delivery.Unavailable]: no server can be reached, or takes our credentials,
//     or acknowledges in time; or the stream is full, missing, or closed to
//     this user. The error names the cure.
//   - [delivery.Unclear]: no stream takes the subject that was made of this event, or this
//     user may not publish to it.
//   - ctx's cause, if ctx was done first. Events that were under way may be stored
//     all the same; the stream then drops the copies.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	b := &batch{
		h:      h,
		events: events,
		errs:   make([]error, len(events)),
		msgs:   make([]*natsgo.Msg, len(events)),
	}

	if ctx.Err() != nil {
		b.failAll(b.all(), context.Cause(ctx))
		return b.answers(ctx)
	}

	for i, ev := range events {
		m, err := h.encoder.msg(ev)
		if err != nil {
			b.errs[i] = outcome.Content(err)
		}
		b.msgs[i] = m
	}

	todo := b.all()
	if len(todo) == 0 {
		return b.answers(ctx)
	}

	l, err := h.connect(ctx, events...)
	if err != nil {
		b.failAll(todo, err)
		return b.answers(ctx)
	}

	defer l.users.Done()

	if h.cfg.Mode == ModeCore {
		b.publishCore(ctx, l, todo)
	} else {
		b.publish(ctx, l, todo)
	}

	answers := b.answers(ctx)
	l.record.Learn(answers)
	return answers
}

// Close closes the connection. Deliveries that are under way fail, and so do
// later ones. Closing again does nothing.
func (h *Handler) Close() error {
	h.close()
	h.mu.Lock()
	l := h.link
	h.link = nil
	h.mu.Unlock()
	if l != nil {
		l.close()
	}
	return nil
}

// connect returns a connection for events. It makes a new one if the handler has no connection, or an old one, or one that
// must not serve these events. The caller becomes a user of the connection.
func (h *Handler) connect(ctx context.Context, events ...*delivery.Event) (*link, error) {
	select {
	case h.dialing <- struct{}{}:
		defer func() { <-h.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-h.closing.Done():
		return nil, outcome.ErrClosed
	}

	if l := h.fit(events); l != nil {
		return l, nil
	}

	if h.closing.Err() != nil {
		return nil, outcome.ErrClosed
	}

	l, err := h.dial(ctx)
	if err != nil {
		return nil, err
	}

	h.mu.Lock()
	closed := h.closing.Err() != nil
	if !closed {
		h.link = l
		l.users.Add(1)
	}
	h.mu.Unlock()

	if closed {
		l.close()
		return nil, outcome.ErrClosed
	}

	return l, nil
}

// fit returns the connection for another user. It returns nil without a connection, or if the connection is old, or must
// not serve the events. Such a connection closes when its users are done.
func (h *Handler) fit(events []*delivery.Event) *link {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.link

	switch {
	case l == nil || l.isClosed():
		return nil
	case time.Since(l.born) > h.age || !l.record.Serves(events):
		h.link = nil
		go func() {
			stop := context.AfterFunc(h.closing, l.close)
			defer stop()
			l.users.Wait()
			l.close()
		}()
		return nil
	}

	l.users.Add(1)
	return l
}
