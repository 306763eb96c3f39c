// Package eventbridge delivers events to an event bus of Amazon EventBridge.
//
// An event is delivered once EventBridge has assigned an id to it. Its resources hold
// notifyd-id:ID, by which consumers drop copies.
package eventbridge

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsevents "github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/awsapi"
)

// Handler puts events on a bus. It implements [delivery.BatchHandler] and io.Closer,
// and is safe for concurrent use.
type Handler struct {
	bus     string
	encoder *encoder
	conn    *awsapi.Conn
	client  *awsevents.Client
	sender  *awsapi.Sender[types.PutEventsRequestEntry]
	seen    atomic.Bool // the bus exists, or we may not ask
}

// New returns a handler for cfg. It reads the files that cfg names, and the AWS
// SDK's environment and files, and makes no connection: a
// relay starts also while EventBridge cannot be reached. The error joins every mistake,
// each a [*handlers.FieldError] if it is one of cfg. The caller closes the handler.
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

	conn, err := awsapi.Open(awsapi.Service{
		Name:     "eventbridge",
		ID:       awsevents.ServiceID,
		Title:    "EventBridge",
		Place:    "event bus",
		Settings: "event_bus",
		Rights:   "events:PutEvents on the event bus, with this source and detail-type",
	}, cfg.AWS, o.BaseDir)
	if err != nil {
		return nil, err
	}

	h := &Handler{bus: cfg.EventBus, encoder: enc, conn: conn}
	h.seen.Store(cfg.EventBus == defaultBus)
	h.client = awsevents.NewFromConfig(conn.AWS, func(o *awsevents.Options) { conn.Endpoint(&o.BaseEndpoint) })

	h.sender = &awsapi.Sender[types.PutEventsRequestEntry]{
		Conn:       conn,
		MaxEntries: maxEntries,
		MaxBytes:   maxBytes,
		Encode:     enc.encode,
		Begin:      h.begin,
	}

	return h, nil
}

// Deliver is DeliverBatch for one event.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return h.DeliverBatch(ctx, []*delivery.Event{e})[0]
}

// DeliverBatch puts each event on the bus, in requests of up to ten events and 1 MB, one
// after the other. EventBridge gives rules no order. What an error means:
//
//   - [delivery.Permanent]: the event is too large, or its detail is no JSON object.
//   - [delivery.Unclear]: EventBridge refuses an argument, or the whole request for a reason that is not known here: every event
//     may be refused alike.
//   - [delivery.Unavailable]: EventBridge cannot be reached, does not answer in time,
//     or denies access to the bus; or the bus does not exist.
//   - [delivery.Throttled]: EventBridge throttles requests.
//   - any other: EventBridge has taken other events of the same request and has an
//     internal error with this one, or a reason that is not known here.
//   - ctx's cause, if ctx was done first.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	return h.sender.Deliver(ctx, events)
}

// begin asks once whether the bus exists: EventBridge accepts events for one that does not, and
// drops them.
func (h *Handler) begin(ctx context.Context) (func(context.Context, []types.PutEventsRequestEntry) ([]awsapi.Answer, error), error) {
	if !h.seen.Load() {
		if err := h.Check(ctx); err != nil {
			return nil, err
		}
		h.seen.Store(true)
	}
	return h.send, nil
}

func (h *Handler) send(ctx context.Context, entries []types.PutEventsRequestEntry) ([]awsapi.Answer, error) {
	out, err := h.client.PutEvents(ctx, &awsevents.PutEventsInput{Entries: entries})
	if err != nil {
		return nil, err
	}

	answers := make([]awsapi.Answer, len(out.Entries))
	for i, e := range out.Entries {
		if e.ErrorCode != nil {
			answers[i].Refused = &awsapi.Reason{Code: *e.ErrorCode, Text: aws.ToString(e.ErrorMessage)}
			continue
		}

		answers[i].Taken = e.EventId != nil
	}

	return answers, nil
}

// Check asks about the bus, which takes credentials and a bus that exists.
// A policy that allows putting events and not asking passes. It implements
// delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	return h.conn.Ask(ctx, func(ctx context.Context) error {
		out, err := h.client.DescribeEventBus(ctx, &awsevents.DescribeEventBusInput{Name: aws.String(h.bus)})
		if err == nil && out.Arn == nil {
			return errors.New("the server that answers is not EventBridge: it says nothing about the bus (check endpoint)")
		}
		return err
	})
}

// DescribeCheck implements delivery.CheckDescriber.
func (*Handler) DescribeCheck() (tested, untested string) {
	return "the credentials, and that the event bus exists if the policy allows asking", "the right to put events, and rules"
}

// MaxBytes is the limit of EventBridge. It implements delivery.Sizer.
func (h *Handler) MaxBytes() int {
	if h.encoder.message.Renders() {
		return 0 // the size of the payload says nothing about the detail
	}
	return maxBytes
}

// Preview returns the event for e: bus, source, detail-type, time, resources and detail.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	in, _, err := h.encoder.encode(e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("eventbridge: %w", err))
	}
	return preview(in), nil
}

// Close closes the idle connections. A delivery that is under way finishes and
// closes its own. Closing again does nothing; a later delivery fails.
func (h *Handler) Close() error { return h.conn.Close() }

var (
	_ delivery.BatchHandler   = (*Handler)(nil)
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
	_ delivery.Sizer          = (*Handler)(nil)
	_ delivery.Previewer      = (*Handler)(nil)
)
