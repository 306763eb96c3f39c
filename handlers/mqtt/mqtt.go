// Package mqtt delivers events as messages to brokers of MQTT 5.
//
// An event is published with QoS 1, and is delivered once the broker has acknowledged it. QoS 0 has no
// acknowledgement. QoS 2 drops the copies of one session only: after a lost connection it is not known either whether
// the broker has the message. So consumers drop copies by the user property notifyd-id.
//
// Order: the events of one aggregate are published one after the other, each when the one before it was
// acknowledged, so that none overtakes one that was refused; those of different aggregates are under way at the same
// time. Batches that are delivered at the same time have no order; a destination that needs one has a concurrency of 1.
//
// There is one connection, with a client id that no other connection has: a broker ends the older one of two
// connections with the same id. A connection has no session, and is not resumed. After a loss the next delivery makes
// a new connection, and returns the error if it cannot.
//
// Of github.com/eclipse/paho.golang, which speaks MQTT 5, the package uses the packets alone. The library's client
// ignores the maximum packet size that a broker announces, cuts texts of more than 64 KiB, and its publishing blocks
// beyond its context while a broker reads nothing; its reconnection hides errors. The older
// github.com/eclipse/paho.mqtt.golang has neither reason codes nor user properties, because it speaks MQTT 3.1.1.
package mqtt

import (
	"context"
	"crypto/tls"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// Handler publishes events. It implements [delivery.BatchHandler] and io.Closer, and is safe for concurrent use.
type Handler struct {
	cfg     Config
	tls     *tls.Config // nil without TLS for mqtt://
	encoder *encoder
	out     *outcome.Destination
	closing context.Context //nolint:containedctx // done when the handler is closed
	close   context.CancelFunc
	dialing chan struct{} // held while a connection is made
	age     time.Duration // the longest use of a connection
	ping    time.Duration // the longest silence on a connection

	mu   sync.Mutex
	link *link // nil before the first delivery
	next int   // the server to try first
}

// New returns a handler for cfg. It reads the files that cfg names, and makes no connection: a relay starts also while
// the broker is down. The error joins every mistake, each a [*handlers.FieldError]. The caller closes the handler.
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

	security, err := loadTLS(cfg, o.BaseDir)
	if err != nil {
		return nil, err
	}

	h := &Handler{
		cfg:     cfg,
		tls:     security,
		encoder: enc,
		dialing: make(chan struct{}, 1),
		age:     idle.MaxAge,
		ping:    pingEvery,
		out:     outcome.New("mqtt", "write mqtt:// in servers, or the port for TLS", cfg.Password.Reveal()),
	}
	h.out.Safe = []error{errLost, errSilent, errAckTimeout, errTooLarge, errAgain, errVersion, errForeign, errNoAnswer, errNoQoS, errNoRetain}
	h.closing, h.close = context.WithCancel(context.Background()) //nolint:forbidigo // the handler's own life
	return h, nil
}

// Deliver publishes e. See [Handler.DeliverBatch].
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return outcome.First(h.DeliverBatch(ctx, []*delivery.Event{e}))
}

// DeliverBatch publishes events and waits for their acknowledgements. What an error means:
//
//   - [delivery.Permanent]: no message can be made of this event, or it is too large for the broker.
//   - [delivery.Unavailable]: no broker can be reached, or takes our credentials, or acknowledges in time; or it
//     forbids the topic. The error names the cure.
//   - [delivery.Throttled]: the broker has reached a quota.
//   - [delivery.Unclear]: the broker refuses this message, or the topic that was made of the event.
//   - ctx's cause, if ctx was done first. Subscribers may get events that were under way all the same.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	b := newBatch(h, events)
	if ctx.Err() != nil {
		b.failAll(b.all(), context.Cause(ctx))
		return b.answers(ctx)
	}

	b.encode()
	todo := b.all()
	if len(todo) == 0 {
		return b.answers(ctx)
	}

	b.sendAll(ctx, todo)
	return b.answers(ctx)
}

// Close closes the connection. Deliveries that are under way fail, and so do later ones. Closing again does nothing.
func (h *Handler) Close() error {
	h.close()
	h.mu.Lock()
	l := h.link
	h.link = nil
	h.mu.Unlock()
	if l != nil {
		l.end(outcome.ErrClosed)
	}
	return nil
}

// connect returns a connection for events. It makes a new one if the handler has no connection, or an old one, or one
// that must not serve these events. The caller becomes a user of the connection.
func (h *Handler) connect(ctx context.Context, events []*delivery.Event) (*link, error) {
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

	l, err := h.dial(ctx)
	if err != nil {
		return nil, err
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing.Err() != nil {
		l.end(outcome.ErrClosed)
		return nil, outcome.ErrClosed
	}

	h.link = l
	l.users.Add(1)
	return l, nil
}

// fit returns the connection for another user. It returns nil without a connection, or if the connection is old, or must
// not serve the events. Such a connection ends when its users are done.
func (h *Handler) fit(events []*delivery.Event) *link {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.link

	switch {
	case l == nil || l.isGone():
		return nil
	case time.Since(l.born) > h.age || !l.record.Serves(events):
		h.link = nil
		go func() {
			stop := context.AfterFunc(h.closing, func() { l.end(outcome.ErrClosed) })
			defer stop()
			l.users.Wait()
			l.end(errReplaced)
		}()
		return nil
	}

	l.users.Add(1)
	return l
}
