// Package redis delivers events as entries of Redis streams, or as messages to the
// subscribers of a channel.
//
// An event for a stream is delivered once the primary has answered XADD with the
// entry's id. Whether the entry then survives depends on the server: with appendfsync
// everysec a crash loses up to a second of acknowledged entries, and a failover loses
// entries that the new primary had not received. [Config.WaitReplicas] narrows the second
// case and does not close it: Redis may still promote a replica that lacks the entry.
//
// An event for a channel is delivered once Redis has taken the message, also without a
// subscriber: Redis does not keep it. [Config.RequireSubscribers] makes that a
// failure.
//
// Redis itself does not drop duplicates. An entry holds the event's id in the field
// "id", by which readers drop duplicates. With [Config.Deduplicate] a script adds an
// entry and, next to the stream, its id in one step. The script adds no copies of the
// newest events.
//
// Order: the events of a batch that go to the same stream or channel are sent in one
// transaction (MULTI), so that all of them are added, in their order, or none, and a
// later event never overtakes one that was refused. Batches that are delivered at the
// same time have no order; a destination that needs one has a concurrency of 1. A
// batch whose answer did not come in time may still be added when the server resumes,
// behind the copy that was sent in its place.
//
// The library that this package uses, go-redis, writes a line to standard error when a
// connection cannot be made. A program that does not want that calls its SetLogger.
package redis

import (
	"context"
	"crypto/tls"
	"slices"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
)

// Handler adds events to streams or publishes them. It implements
// [delivery.BatchHandler] and io.Closer, and is safe for concurrent use: each
// batch under way has a separate connection, which the next batch reuses.
type Handler struct {
	cfg     Config
	at      endpoint
	tls     *tls.Config // nil: without
	encoder *encoder
	out     *outcome.Destination

	idle idle.Pool[*lane]
	age  time.Duration // the longest use of a connection
}

// New returns a handler for cfg. It reads the certificates that cfg names, and
// makes no connection: a relay starts also while its Redis is down. The error
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

	h := &Handler{cfg: cfg, encoder: enc, age: idle.MaxAge}
	h.at, err = cfg.endpoint()
	if err != nil {
		return nil, err
	}

	h.out = outcome.New("redis", "check the port, or take tls out", h.at.password.Reveal(), cfg.SentinelPassword.Reveal())
	h.out.Safe = []error{errReplicas, errNoSubscribers, errReplica, errEvicts}

	h.tls, err = tlsconf.Load(h.at.tls, o.BaseDir)
	if err != nil {
		return nil, err
	}

	return h, nil
}

// Deliver adds or publishes e. See [Handler.DeliverBatch].
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return outcome.First(h.DeliverBatch(ctx, []*delivery.Event{e}))
}

// DeliverBatch adds or publishes events in one go and waits for the answers.
// What an error means:
//
//   - [delivery.Permanent]: no command can be made of this event, or it is too
//     large.
//   - [delivery.Unavailable]: Redis cannot be reached, does not answer in time,
//     or refuses to write for now or for this user; the error names the cure.
//   - [delivery.Unclear]: the key made of this event does not hold a stream, or this user
//     may not write to it, or the channel made of it has no subscriber.
//   - ctx's cause, if ctx was done first. Events that were under way may be
//     added all the same.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	if ctx.Err() != nil {
		return slices.Repeat([]error{h.out.Ended(ctx, "")}, len(events))
	}

	b := &batch{h: h, errs: make([]error, len(events))}
	var commands []command
	for i, ev := range events {
		c, err := h.encoder.command(i, ev)
		if err != nil {
			b.errs[i] = outcome.Content(err)
			continue
		}
		commands = append(commands, c)
	}

	if len(commands) > 0 {
		l, open := h.idle.Take(func() *lane { return newLane(ctx, h) })
		if !open {
			return slices.Repeat([]error{h.out.Closed()}, len(events))
		}

		if !l.record.Serves(events) {
			l.close()
			l = newLane(ctx, h)
		}

		b.run(ctx, l, groups(commands))
		answers := b.answers(ctx)
		l.record.Learn(answers)
		h.release(l)
		return answers
	}
	return b.answers(ctx)
}

// Close closes all connections. It waits for nothing: a batch that is under way
// closes its own, and a later one fails. Closing again does nothing.
func (h *Handler) Close() error {
	for _, l := range h.idle.Close() {
		l.close()
	}
	return nil
}

// release keeps a lane for later, unless something has gone wrong with it: a new
// one costs a connection, and finds the current primary.
func (h *Handler) release(l *lane) {
	if l.broken || !h.idle.Put(l) {
		l.close()
	}
}
