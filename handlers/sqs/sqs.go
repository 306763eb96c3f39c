// Package sqs delivers events as messages to a queue of Amazon SQS, standard or
// FIFO.
//
// An event is delivered once SQS lists its message as successful. The message's
// attribute notifyd-id is the event's id; a FIFO queue drops copies that come
// within five minutes by itself.
package sqs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/tlsconf"
	"github.com/notifyd/notifyd/internal/secret"
)

// Handler sends messages. It implements [delivery.BatchHandler] and io.Closer,
// and is safe for concurrent use.
type Handler struct {
	cfg       Config
	encoder   *encoder
	client    *awssqs.Client
	transport *http.Transport
	redact    *strings.Replacer

	mu     sync.Mutex
	queue  string // its URL, "" while it is not known
	closed bool
}

// New returns a handler for cfg. It reads the files that cfg names, and the AWS
// SDK's environment and files, and makes no connection: a
// relay starts also while SQS cannot be reached. The error joins every mistake,
// each a field.Error if it is one of cfg. The caller closes the handler.
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
	client, transport, err := newClient(cfg, conf)
	if err != nil {
		return nil, err
	}
	return &Handler{
		cfg: cfg, encoder: enc, client: client, transport: transport, queue: cfg.QueueURL,
		redact: redactor(cfg.SecretAccessKey, cfg.SessionToken, cfg.ExternalID),
	}, nil
}

// redactor replaces secrets that AWS, or an emulator, repeats.
func redactor(secrets ...secret.String) *strings.Replacer {
	var pairs []string
	for _, s := range secrets {
		if text := s.Reveal(); text != "" {
			pairs = append(pairs, text, secret.Redacted, url.QueryEscape(text), secret.Redacted)
		}
	}
	return strings.NewReplacer(pairs...)
}

// errClosed is the error of a delivery after Close.
var errClosed = errors.New("sqs: the handler is closed")

// Deliver is DeliverBatch for one event.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return h.DeliverBatch(ctx, []*delivery.Event{e})[0]
}

// DeliverBatch sends a message for each event, in requests of up to ten messages
// and 1 MiB, one after the other. What an error means:
//
//   - [delivery.Permanent]: the message is too large, holds characters that SQS
//     does not take, or is refused by SQS for its content.
//   - [delivery.Unavailable]: SQS cannot be reached, does not answer in time,
//     or denies access to the queue or its key; or the queue does not exist.
//   - [delivery.Throttled]: SQS, or KMS behind it, throttles requests.
//   - any other: SQS has taken other messages of the same request and has an
//     internal error with this one, or a reason that is not known here.
//   - ctx's cause, if ctx was done first.
//
// On a FIFO queue, an event whose group has failed in an earlier request is not
// sent: it gets the same error, so that it does not overtake.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	if len(events) == 0 {
		return nil
	}
	b := &batch{
		h: h, entries: make([]*entry, len(events)), errs: make([]error, len(events)), blocked: make(map[string]error),
	}
	for i, e := range events {
		var err error
		if b.entries[i], err = h.encoder.encode(e); err != nil {
			b.errs[i] = delivery.Permanent(fmt.Errorf("sqs: %w", err))
		}
	}
	var err error
	if b.queue, err = h.queueURL(ctx); err != nil {
		b.fail(0, err)
		return b.errs
	}
	b.send(ctx)
	return b.errs
}

// queueURL returns the URL of the queue, and asks for it if need be.
func (h *Handler) queueURL(ctx context.Context) (string, error) {
	h.mu.Lock()
	queue, closed := h.queue, h.closed
	h.mu.Unlock()
	switch {
	case closed:
		return "", errClosed
	case ctx.Err() != nil:
		return "", fmt.Errorf("sqs: %w", context.Cause(ctx))
	case queue != "":
		return queue, nil
	}
	rctx, cancel := h.requestContext(ctx)
	defer cancel()
	in := &awssqs.GetQueueUrlInput{QueueName: aws.String(h.cfg.Queue)}
	if h.cfg.QueueOwner != "" {
		in.QueueOwnerAWSAccountId = aws.String(h.cfg.QueueOwner)
	}
	out, err := h.client.GetQueueUrl(rctx, in)
	if err != nil {
		err = h.judge(ctx, rctx, err)
		if _, ok := errors.AsType[*refusal](err); ok && !delivery.IsUnavailable(err) && !delivery.IsThrottled(err) {
			err = delivery.Unavailable(err) // no event is in this request
		}
		return "", err
	}
	queue = aws.ToString(out.QueueUrl)
	if queue == "" {
		return "", delivery.Unavailable(errors.New("sqs: the server that answers is not SQS: it gives no URL for the queue (check endpoint)"))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queue = queue
	return queue, nil
}

// forget has the queue looked up again: a queue that was deleted and made again may
// have another URL.
func (h *Handler) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queue = h.cfg.QueueURL
}

func (h *Handler) requestContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, h.cfg.RequestTimeout, fmt.Errorf("request_timeout of %v is over", h.cfg.RequestTimeout))
}

// Close closes the idle connections. A delivery that is under way finishes and
// closes its own. Closing again does nothing; a later delivery fails.
func (h *Handler) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.transport.CloseIdleConnections()
	return nil
}

var _ delivery.BatchHandler = (*Handler)(nil)
