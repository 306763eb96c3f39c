// Package kafka delivers events as records to the topics of an Apache Kafka
// cluster, or of one that speaks its protocol.
//
// An event is delivered once all in-sync replicas have acknowledged its record
// (acks=all). The producer is idempotent: what it sends again because an answer
// was lost is not written twice. A record carries the event's id in a header, so
// that consumers can drop what the relay itself has delivered twice.
//
// Order: within a batch, and from one batch to the next, records of a partition
// are written in the order of the events, unless an event cannot be delivered at
// all. When a batch is given up while its records are on their way, the
// producer's epoch is raised: the broker refuses what is left of the old batch
// once it has taken a record of a newer one. Batches that are delivered at the
// same time have no order; a destination that needs one has a concurrency of 1.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/delivery"
)

// Handler writes events to topics. It implements [delivery.BatchHandler] and
// io.Closer, and is safe for concurrent use: each batch under way has a producer
// of its own, which then waits for the next one.
type Handler struct {
	cfg     Config
	encoder *encoder
	options []kgo.Opt
	secrets *secrets

	mu     sync.Mutex
	idle   []*producer // the last one is the next to be used
	made   int         // producers, for transactional ids
	closed bool
}

// Option changes how [New] makes a handler.
type Option func(*options)

type options struct{ baseDir string }

// WithBaseDir sets the directory that tls.ca_file, tls.cert_file, tls.key_file
// and sasl.token_file are relative to; the default is the working directory.
func WithBaseDir(dir string) Option { return func(o *options) { o.baseDir = dir } }

// New returns a handler for cfg. It reads the certificates that cfg names, and
// makes no connection: a relay starts also while its brokers are down. The error
// joins every mistake, each a field.Error. The caller closes the handler.
func New(cfg Config, opts ...Option) (*Handler, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	enc, err := newEncoder(cfg)
	if err != nil {
		return nil, err
	}
	h := &Handler{cfg: cfg, encoder: enc, secrets: newSecrets(cfg)}
	h.options, err = clientOptions(cfg, o.baseDir, h.secrets)
	if err != nil {
		return nil, err
	}
	return h, nil
}

var errClosed = errors.New("kafka: the destination is closed")

// Deliver writes the record for e. See [Handler.DeliverBatch].
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	if errs := h.DeliverBatch(ctx, []*delivery.Event{e}); errs != nil {
		return errs[0]
	}
	return nil
}

// KeepsOrder implements delivery.OrderKeeper: records of one aggregate go to one
// partition, where none is written after one that failed. A broker with a policy
// of its own is the exception: it may refuse one record and take the next.
func (h *Handler) KeepsOrder() bool { return h.encoder.byID && h.encoder.fixedTopic != "" }

// DeliverBatch writes the records for events and waits for their acknowledgement.
// What an error means:
//
//   - [delivery.Permanent]: no record can be made of this event, or the broker
//     refuses it for good: it is too large, or not as the topic wants it.
//   - [delivery.Unavailable]: no broker answers in time, or takes our
//     credentials, or may write the topic for us; what is in its place is said.
//   - any other: the topic that was made of this event does not exist, or is not
//     ours to write to.
//   - ctx's cause, if ctx was done first. What was under way may be written all
//     the same, but not behind records of a later batch.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	if ctx.Err() != nil {
		return repeat(fmt.Errorf("kafka: %w", context.Cause(ctx)), len(events))
	}
	p, err := h.acquire()
	if err != nil {
		return repeat(err, len(events))
	}
	defer h.release(p)
	within, cancel := context.WithTimeoutCause(ctx, h.cfg.DeliveryTimeout, errTimeout)
	defer cancel()
	b := batch{h: h, p: p, ctx: within, events: events}
	b.run() //nolint:contextcheck // the batch holds it
	return b.answers(ctx)
}

// Close closes all producers. It waits for nothing: a batch that is under way
// closes its own, and a later one fails. Closing again does nothing.
func (h *Handler) Close() error {
	h.mu.Lock()
	idle := h.idle
	h.idle, h.closed = nil, true
	h.mu.Unlock()
	for _, p := range idle {
		p.close()
	}
	return nil
}

// acquire returns the producer that was used last, so that with one batch at a
// time it is always the same: see the package comment.
func (h *Handler) acquire() (*producer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errClosed
	}
	if n := len(h.idle); n > 0 {
		p := h.idle[n-1]
		h.idle = h.idle[:n-1]
		return p, nil
	}
	h.made++
	return newProducer(h.cfg, h.options, h.made), nil
}

func (h *Handler) release(p *producer) {
	h.mu.Lock()
	closed := h.closed
	if !closed {
		h.idle = append(h.idle, p)
	}
	h.mu.Unlock()
	if closed {
		p.close()
	}
}

func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
