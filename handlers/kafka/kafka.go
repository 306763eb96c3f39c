// Package kafka delivers events as records to the topics of an Apache Kafka
// cluster, or of one that speaks its protocol.
//
// An event is delivered once all in-sync replicas have acknowledged its record
// (acks=all). The producer is idempotent: a record that it sends again because an
// answer was lost is not written twice. A record carries the event's id in a header, so
// that consumers can drop an event that the relay itself has delivered twice.
//
// Order: within a batch, and from one batch to the next, records of a partition
// are written in the order of the events, unless an event cannot be delivered at
// all. When a batch is given up while its records are on their way, the
// producer's epoch is raised: the broker refuses the rest of the old batch once it
// has taken a record of a newer one. Batches that are delivered at the
// same time have no order; a destination that needs one has a concurrency of 1.
package kafka

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// Handler writes events to topics. It implements [delivery.BatchHandler] and
// io.Closer, and is safe for concurrent use: each batch under way has a separate
// producer, which the next batch reuses.
type Handler struct {
	cfg     Config
	encoder *encoder
	options []kgo.Opt
	secrets *secrets
	out     *outcome.Destination

	registry *registry // nil without one

	refused  refusedTopics // where topics are made of events
	sessions sessions      // with exactly_once
	idle     idle.Pool[*producer]
	made     int // producers, for transactional ids; guarded by idle
}

// New returns a handler for cfg. It reads the certificates that cfg names, and
// makes no connection: a relay starts also while its brokers are down. The error
// joins every mistake, each a [*handlers.FieldError]. The caller closes the handler.
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

	h := &Handler{cfg: cfg, encoder: enc, secrets: newSecrets(cfg)}
	h.out = destination(h.secrets)

	h.options, err = clientOptions(cfg, o.BaseDir, h.secrets)
	if err != nil {
		return nil, err
	}

	h.registry, err = newRegistry(cfg.SchemaRegistry, o.BaseDir, h.secrets)
	if err != nil {
		return nil, err
	}

	return h, nil
}

// Deliver writes the record for e. See [Handler.DeliverBatch].
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return outcome.First(h.DeliverBatch(ctx, []*delivery.Event{e}))
}

// KeepsOrder implements delivery.OrderedBatchHandler: records of one aggregate go to one
// partition, where none is written after one that will be tried again. A broker with a custom
// policy is the exception: it may refuse one record and take the next. A topic, a key or a partition made of the event may
// separate the records of an aggregate.
//
// In a transaction all records are written, or none, whatever their partitions.
func (h *Handler) KeepsOrder() bool {
	isInOrder := h.encoder.byID && h.encoder.fixedTopic != "" && h.encoder.partition == nil
	return h.cfg.ExactlyOnce || isInOrder
}

// DeliverBatch writes the records for events and waits for their acknowledgement.
// What an error means:
//
//   - [delivery.Permanent]: this event cannot become a record, or is too large.
//   - [delivery.Unclear] and Permanent: the broker refuses the record, the topic lacks the partition that was made of
//     this event, or the schema registry lacks the schema.
//   - [delivery.Unclear]: the topic that was made of this event does not exist, this user may not write to it or read
//     its schema, or the broker has a policy against the record.
//   - [delivery.Unavailable]: no broker, or no registry, answers in time, or takes our
//     credentials, or lets this user write the topic; or a topic, a subject or a partition of all events is missing. The
//     error names the cause.
//   - ctx's cause, if ctx was done first. Records that were under way may be
//     written all the same, but not behind records of a later batch.
//
// With exactly_once a batch comes after OpenPosition, one at a time, and any failure but that of a
// record is a [delivery.ErrReopen].
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	if h.cfg.ExactlyOnce {
		return h.deliverExactly(ctx, events)
	}

	if ctx.Err() != nil {
		return slices.Repeat([]error{h.out.Ended(ctx, "")}, len(events))
	}

	p, open := h.idle.Take(h.newProducer)
	if !open {
		return slices.Repeat([]error{h.out.Closed()}, len(events))
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
	h.sessions.close()
	for _, p := range h.idle.Close() {
		p.close()
	}
	return nil
}

// newProducer returns another producer. With one batch at a time there is only one: see
// the package comment.
func (h *Handler) newProducer() *producer {
	h.made++
	if !h.cfg.Transactional {
		return newProducer(h.cfg, h.options, "")
	}
	// A new id for each process: two relays with the same id would fence each
	// other forever. The broker aborts an open transaction of a killed relay
	// after the transaction's timeout.
	host, _ := os.Hostname() // for people who read the id
	return newProducer(h.cfg, h.options, fmt.Sprintf("%s-%s-%s-%d", h.cfg.TransactionalID, host, rand.Text()[:8], h.made))
}

func (h *Handler) release(p *producer) {
	if !h.idle.Put(p) {
		p.close()
	}
}
