// Package watermill delivers events with any publisher of Watermill
// (github.com/ThreeDotsLabs/watermill), and so to every broker that has one.
//
// The package is a separate module: only programs that import it depend on
// Watermill.
package watermill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	wm "github.com/ThreeDotsLabs/watermill/message"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// Handler publishes events. It implements [delivery.BatchHandler], [delivery.Previewer] and
// io.Closer, and is safe for concurrent use, as publishers are.
type Handler struct {
	publisher wm.Publisher
	topic     func(*delivery.Event) string
	classify  func(error) error
	encoder   *message.Encoder
	closed    atomic.Bool
}

// Option changes how a handler is made.
type Option func(*Handler)

// WithClassify sets the function that marks the publisher's errors: see
// [delivery.Unavailable], [delivery.Throttled] and [delivery.Permanent]. An error that
// it returns as it is counts as an attempt of the event. Without this option every error is
// [delivery.Unclear]: Watermill does not say what an error means.
func WithClassify(classify func(error) error) Option {
	return func(h *Handler) { h.classify = classify }
}

// Topic is for events that all go to one topic.
func Topic(name string) func(*delivery.Event) string {
	return func(*delivery.Event) string { return name }
}

// New returns a handler that publishes each event to the topic that topic returns for it.
//
// The publisher must return from Publish only when the broker has the message. A
// publisher that buffers, or sends in the background, loses unsent messages when the
// process ends. Publish should return when the context of the message is done. The
// handler closes the publisher, and the caller closes the handler.
func New(publisher wm.Publisher, topic func(*delivery.Event) string, options ...Option) (*Handler, error) {
	if publisher == nil || topic == nil {
		return nil, errors.New("watermill: there has to be a publisher, and a function that names the topic")
	}
	encoder, err := message.New(handlers.Message{}, message.Binding{})
	if err != nil {
		return nil, fmt.Errorf("watermill: %w", err)
	}
	h := &Handler{publisher: publisher, topic: topic, classify: delivery.Unclear, encoder: encoder}
	for _, option := range options {
		option(h)
	}
	return h, nil
}

// errClosed is the error of a delivery after Close. No attempt counts: the event is not at fault.
var errClosed = delivery.Unavailable(errors.New("watermill: the handler is closed"))

// Deliver publishes a message: its UUID is the event's DedupeID, its payload that of the event,
// byte for byte, and its metadata are notifyd-id, notifyd-type and the other
// headers of the form "payload", and the event's own headers.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return h.DeliverBatch(ctx, []*delivery.Event{e})[0]
}

// DeliverBatch publishes all events of a topic with one call of Publish. If that call fails,
// it is not known which events were published, so each event is published once more in a
// separate call, unless the error is marked as the destination's: one bad event fails alone,
// and others may arrive twice.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	errs := make([]error, len(events))
	groups := make(map[string][]int)
	var topics []string // in the order of the events
	for i, e := range events {
		topic := h.topic(e)
		if topic == "" {
			errs[i] = delivery.Permanent(fmt.Errorf("watermill: there is no topic for an event of the type %s", e.Type))
			continue
		}

		if groups[topic] == nil {
			topics = append(topics, topic)
		}
		groups[topic] = append(groups[topic], i)
	}

	for _, topic := range topics {
		h.group(ctx, topic, groups[topic], events, errs)
	}

	return errs
}

func (h *Handler) group(ctx context.Context, topic string, group []int, events []*delivery.Event, errs []error) {
	err := h.publish(ctx, topic, group, events)
	if err == nil {
		return
	}
	for _, i := range group {
		if len(group) > 1 && mayBeOneEvents(ctx, err) {
			errs[i] = h.publish(ctx, topic, []int{i}, events)
			continue
		}
		errs[i] = err
	}
}

// mayBeOneEvents reports whether one event may be why all of a call have failed.
func mayBeOneEvents(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !delivery.IsUnavailable(err) && !delivery.IsThrottled(err)
}

func (h *Handler) publish(ctx context.Context, topic string, group []int, events []*delivery.Event) error {
	switch {
	case h.closed.Load():
		return errClosed
	case ctx.Err() != nil:
		return fmt.Errorf("watermill: %w", context.Cause(ctx))
	}

	messages := make([]*wm.Message, len(group))
	for n, i := range group {
		messages[n] = h.encode(ctx, events[i])
	}

	err := h.publisher.Publish(topic, messages...)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("watermill: maybe sent: %w", context.Cause(ctx))
	default:
		return h.classify(fmt.Errorf("watermill: %w", err))
	}
}

// encode makes a message that shares nothing with the event, which others deliver as well.
func (h *Handler) encode(ctx context.Context, e *delivery.Event) *wm.Message {
	m := h.encoder.Encode(e)
	out := wm.NewMessageWithContext(ctx, e.DedupeID(), bytes.Clone(m.Body))
	for _, header := range m.Headers {
		out.Metadata.Set(header.Name, header.Value)
	}
	return out
}

// Preview returns topic, UUID, metadata and payload of the message for e.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	m := h.encoder.Encode(e)
	fields := []message.Header{{Name: "topic", Value: h.topic(e)}, {Name: "uuid", Value: e.DedupeID()}}
	return message.Preview(append(fields, m.Headers...), m.Body), nil
}

// Close closes the publisher, which decides how messages under way end. Closing again
// does nothing; a later delivery fails.
func (h *Handler) Close() error {
	if h.closed.Swap(true) {
		return nil
	}
	return h.publisher.Close()
}

var (
	_ delivery.BatchHandler = (*Handler)(nil)
	_ delivery.Previewer    = (*Handler)(nil)
)
