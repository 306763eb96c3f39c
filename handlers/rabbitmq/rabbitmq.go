// Package rabbitmq delivers events to RabbitMQ over AMQP 0.9.1.
//
// An event is delivered once the broker has confirmed the message and not returned
// it: it is in every queue that it was routed to, and on disk if the kind of the
// queue demands that. The message_id is the event's id, the same for every attempt,
// so that consumers can drop duplicates.
//
// A handler keeps one connection. It reconnects after a loss, and after a refusal, because
// another broker may answer at the same address. Messages without a confirmation when a
// connection is lost may or may not have arrived; they are sent again.
package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
)

// Handler publishes messages. It implements [delivery.BatchHandler] and
// io.Closer, and is safe for concurrent use; each delivery under way has a
// separate AMQP channel. With one delivery at a time, events arrive in the order
// of the calls.
type Handler struct {
	cfg         Config
	target      target
	tls         *tls.Config // nil without TLS
	enc         *encoder
	ownExchange bool // the exchange depends on the event
	ownRoute    bool // whether a queue takes a message depends on the event
	connector   *connector
	age         time.Duration // the longest use of a connection
	renewEvery  time.Duration // the shortest time between two connections because of failures
	unconfirmed atomic.Int64
	delays      delays
}

// New returns a handler for cfg. It reads the files that cfg names, and makes
// no connection: a relay starts also while its broker is down. The error joins
// every mistake, each a [*handlers.FieldError]. The caller closes the handler.
func New(cfg Config, options ...handlers.Option) (*Handler, error) {
	o := handlers.Apply(options)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	cfg = cfg.WithDefaults()
	h := &Handler{cfg: cfg, age: idle.MaxAge, renewEvery: idle.RenewEvery}

	var errs []error

	ts, err := parseTemplates(cfg)
	errs = append(errs, err)

	h.target, err = cfg.target()
	errs = append(errs, err)

	h.enc, err = newEncoder(cfg, ts)
	errs = append(errs, err)

	if cfg.TLS == nil && h.target.encrypted {
		cfg.TLS = &handlers.TLS{}
	}
	h.tls, err = tlsconf.Load(cfg.TLS, o.BaseDir)
	errs = append(errs, err)

	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	h.ownExchange = depends(ts.exchange)
	h.ownRoute = routesByEvent(cfg, ts)
	h.connector = newConnector(h.dial, o.Log)
	return h, nil
}

// routesByEvent reports whether some events can be unroutable and others not.
func routesByEvent(cfg Config, ts *templates) bool {
	if ts.routingKey == nil || depends(ts.routingKey) || depends(ts.exchange) {
		return true
	}
	for _, e := range cfg.Declare.Exchanges {
		if e.Type == "headers" && e.Name == cfg.Exchange {
			return true
		}
	}
	return false
}

// Deliver is [Handler.DeliverBatch] for one event.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return outcome.First(h.DeliverBatch(ctx, []*delivery.Event{e}))
}

// KeepsOrder implements delivery.OrderedBatchHandler: with strict_order nothing is sent
// behind an event of the same aggregate that has failed.
func (h *Handler) KeepsOrder() bool { return h.cfg.StrictOrder }

// DeliverBatch publishes the messages for events and waits for their
// confirmations. What an error means:
//
//   - [delivery.Permanent]: the message cannot be built from this event, or the
//     broker refuses it for its size.
//   - [delivery.Unclear]: the broker refuses a property of this message, or the event names an exchange or a routing key
//     that leads nowhere. The broker may refuse every event alike.
//   - [delivery.Unavailable]: the broker cannot be reached, has blocked
//     publishers, dropped the connection, did not confirm in time, has no room
//     (nack), or forbids publishing; or the exchange of all events has no queue.
//     The message may have arrived.
//   - any other: no queue takes this event's message, and Config.Unroutable is [UnroutableRetry].
//   - [delivery.Throttled], with Config.StrictOrder: an earlier event of the aggregate has failed.
//   - ctx's cause, if ctx was done first. The message may have arrived.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	b := h.newBatch(ctx, events)

	for next := b.next(); len(next) > 0; next = b.next() {
		if f := b.send(ctx, next); f != nil {
			if ctx.Err() != nil {
				// The end of ctx is not the broker's fault, whatever the failure.
				f = ended(ctx, f.at)
				f.ours = true
			}
			b.failAll(f)
			break
		}
	}

	b.learn()
	return b.answers()
}

// Report implements delivery.Reporter: whether there is a connection, and whether
// the broker has blocked publishers. It contacts nothing.
func (h *Handler) Report() delivery.Report {
	s := delivery.Report{Unconfirmed: int(h.unconfirmed.Load())}
	conn := h.connector.current()
	if conn == nil || !conn.fit() {
		return s
	}
	s.Connected = true
	if f, _ := conn.state(); f != nil && f.at == stageBlocked {
		s.Blocked = true
		s.Reason = f.text
	}
	return s
}

// Close closes the connection, politely and for a second at most. It is to be
// called after the last delivery has returned; a later one fails. Closing again
// does nothing.
func (h *Handler) Close() error {
	h.connector.close()
	return nil
}

// tlsClient returns the encrypted side of raw.
func tlsClient(raw net.Conn, cfg *tls.Config, host string) *tls.Conn {
	cfg = cfg.Clone()
	cfg.ServerName = cmp.Or(cfg.ServerName, host)
	return tls.Client(raw, cfg)
}

var _ delivery.BatchHandler = (*Handler)(nil)

var _ delivery.Reporter = (*Handler)(nil)
