// Package slack delivers events as messages to Slack, with a bot token or
// through an incoming webhook.
//
// An event is delivered once Slack has confirmed that the message is posted. Slack
// has no idempotency key, so a message whose answer was lost is posted twice;
// messages posted with a token carry the event's id in their metadata.
package slack

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/httpconn"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
)

// Handler posts messages. It implements [delivery.Handler] and io.Closer, and is
// safe for concurrent use. Deliveries to one channel wait for each other, so
// that there is one message a second at most.
type Handler struct {
	cfg       Config
	templates *templates
	gate      *gate
	transport *httpconn.Transport
	poster    poster
	out       *outcome.Destination
	closed    atomic.Bool
}

// New returns a handler for cfg. It reads the files that cfg names, and makes no
// connection: a relay starts also while Slack is down. The error joins every
// mistake, each a [*handlers.FieldError]. The caller closes the handler.
func New(cfg Config, options ...handlers.Option) (*Handler, error) {
	o := handlers.Apply(options)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	conf, err := tlsconf.Load(cfg.TLS, o.BaseDir)
	if err != nil {
		return nil, err
	}

	ts, err := parseTemplates(cfg)
	if err != nil {
		return nil, err // Validate has found it already
	}

	cfg = cfg.WithDefaults()
	h := &Handler{
		cfg:       cfg,
		templates: ts,
		gate:      newGate(perChannel),
		transport: httpconn.New(newTransport(conf), idle.MaxAge),
		out:       destination(cfg.Token.Reveal(), cfg.WebhookURL.Reveal()),
	}

	if cfg.Token.IsZero() {
		h.poster = &webhookPoster{h.transport, cfg.WebhookURL.Reveal()}
	} else {
		h.poster = &apiPoster{h.transport, cfg.APIURL, cfg.Token.Reveal()}
	}

	return h, nil
}

// Deliver posts the message for e. What an error means:
//
//   - [delivery.Permanent]: the message cannot be made of this event, or is too long.
//   - [delivery.Unclear]: Slack refuses this message, or the channel or thread that the event names, or for an
//     unknown reason, perhaps as it refuses every one; or it has not answered within Config.RequestTimeout,
//     and may have posted the message.
//   - [delivery.Unavailable]: Slack cannot be reached, has failed, throttles
//     requests, or refuses the token or the channel that all events go to. After a
//     Retry-After, nothing is sent before its end.
//   - any other: a server on the way to Slack takes no message of this size.
//   - ctx's cause, if ctx was done first.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	if h.closed.Load() {
		return h.out.Closed()
	}

	m, err := h.templates.build(e)
	if err != nil {
		return h.out.Refuse(err)
	}

	if err := h.gate.wait(ctx, m.channel); err != nil {
		err = fmt.Errorf("slack: waiting for a turn: %w", err)
		if busy, ok := errors.AsType[*busyError](err); ok {
			if !busy.asked {
				busy.wait = 0 // the turn of other channels may come sooner
			}
			return delivery.Throttled(busy.wait, err)
		}
		return err
	}

	rctx, cancel := outcome.Within(httpconn.ForEvents(ctx, e), "request_timeout", h.cfg.RequestTimeout)
	defer cancel()

	err = h.verdict(ctx, rctx, h.poster.post(rctx, m))
	h.transport.Learn(rctx, err)
	return err
}

// Close closes the idle connections. A Deliver that is under way finishes and
// closes its own. Closing again does nothing; a later Deliver fails.
func (h *Handler) Close() error {
	h.closed.Store(true)
	h.transport.CloseIdleConnections()
	return nil
}

var _ delivery.Handler = (*Handler)(nil)
