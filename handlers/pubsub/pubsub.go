// Package pubsub delivers events as messages to a topic of Google Cloud Pub/Sub.
//
// An event is delivered once Pub/Sub has answered with an id for its message. The
// message's attribute notifyd-id is the event's id; Pub/Sub itself drops no copies.
//
// Messages go by the REST API: its Publish is one request with one answer, and the
// client library for gRPC would bring some thirty modules into every program.
package pubsub

import (
	"cmp"
	"context"
	"os"
	"strings"
	"sync/atomic"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/httpconn"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
)

// emulatorVariable names the host and port of an emulator, for all programs that use
// Pub/Sub.
const emulatorVariable = "PUBSUB_EMULATOR_HOST"

// Handler sends messages. It implements [delivery.BatchHandler] and io.Closer,
// and is safe for concurrent use.
type Handler struct {
	cfg       Config
	url       string // of the topic
	encoder   *encoder
	transport *httpconn.Transport
	tokens    *tokens // nil for an emulator
	out       *outcome.Destination
	closed    atomic.Bool
}

// New returns a handler for cfg. It reads the files that cfg and the environment
// name, and makes no connection: a relay starts also while Pub/Sub cannot be
// reached. The error joins every mistake, each a [*handlers.FieldError] if it is one of cfg. The
// caller closes the handler.
func New(cfg Config, options ...handlers.Option) (*Handler, error) {
	o := handlers.Apply(options)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	conf, err := tlsconf.Load(cfg.TLS, o.BaseDir)
	if err != nil {
		return nil, err
	}

	cfg = cfg.WithDefaults()
	enc, err := newEncoder(cfg)
	if err != nil {
		return nil, err
	}

	endpoint, err := endpointOf(cfg)
	if err != nil {
		return nil, err
	}

	project, topic := cfg.names()
	h := &Handler{
		cfg:       cfg,
		encoder:   enc,
		transport: httpconn.New(newTransport(conf), idle.MaxAge),
		out:       destination(),
		url:       endpoint + "/v1/projects/" + project + "/topics/" + strings.ReplaceAll(topic, "%", "%25"),
	}

	if isPlain(endpoint) {
		return h, nil
	}

	h.tokens, err = newTokens(cfg.CredentialsFile, o.BaseDir, h.transport)
	if err != nil {
		return nil, err
	}

	return h, nil
}

// endpointOf returns the URL of Pub/Sub, without a slash at its end.
func endpointOf(cfg Config) (string, error) {
	if host := os.Getenv(emulatorVariable); cfg.Endpoint == "" && host != "" {
		endpoint := host
		if !strings.Contains(host, "://") {
			endpoint = "http://" + host
		}
		if err := checkEndpoint("endpoint", endpoint); err != nil {
			return "", field.Errorf("endpoint", "the environment variable %s is not host:port", emulatorVariable)
		}
		return strings.TrimRight(endpoint, "/"), nil
	}
	return strings.TrimRight(cmp.Or(cfg.Endpoint, defaultEndpoint), "/"), nil
}

// Deliver is DeliverBatch for one event.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return h.DeliverBatch(ctx, []*delivery.Event{e})[0]
}

// DeliverBatch sends a message for each event: all of an ordering key in one request, as
// far as it takes them, and requests for several keys at the same time. The errors mean:
//
//   - [delivery.Permanent]: no message can be made of this event, or it is too large.
//   - [delivery.Unclear]: Pub/Sub refuses this message, perhaps as it refuses every one: it is not as the schema of
//     the topic wants it, or the reason is not known here.
//   - [delivery.Unavailable]: Pub/Sub cannot be reached, does not answer in time, has no
//     such topic, or denies access to it; or credentials are missing.
//   - [delivery.Throttled]: a quota is used up.
//   - ctx's cause, if ctx was done first.
//
// An event behind a failed one of its aggregate is not sent: it gets the same error, so that it does not
// overtake, unless the call is [delivery.Call].Unordered.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	b := &batch{h: h, entries: make([]*entry, len(events)), errs: make([]error, len(events))}
	for i, e := range events {
		var err error
		b.entries[i], err = h.encoder.encode(e)
		if err != nil {
			b.errs[i] = h.out.Refuse(err)
		}
	}
	b.send(httpconn.ForEvents(ctx, events...))
	return b.errs
}

// KeepsOrder implements delivery.OrderedBatchHandler: messages of one aggregate have one
// key, unless a template makes it.
func (h *Handler) KeepsOrder() bool { return h.encoder.key == nil }

// Close closes the idle connections. A delivery that is under way finishes and
// closes its own. Closing again does nothing; a later delivery fails.
func (h *Handler) Close() error {
	h.closed.Store(true)
	h.transport.CloseIdleConnections()
	return nil
}

var (
	_ delivery.BatchHandler        = (*Handler)(nil)
	_ delivery.OrderedBatchHandler = (*Handler)(nil)
)
