// Package sqs delivers events as messages to a queue of Amazon SQS, standard or
// FIFO.
//
// An event is delivered once SQS lists its message as successful. The message's
// attribute notifyd-id is the event's id; a FIFO queue drops copies that arrive
// within five minutes.
package sqs

import (
	"context"
	"errors"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/awsapi"
)

// Handler sends messages. It implements [delivery.BatchHandler] and io.Closer,
// and is safe for concurrent use.
type Handler struct {
	cfg     Config
	encoder *awsapi.MessageEncoder
	conn    *awsapi.Conn
	client  *awssqs.Client
	sender  *awsapi.Sender[*awsapi.Message]

	mu    sync.Mutex
	queue string // its URL, "" while it is not known
}

// service describes SQS for errors.
func service() awsapi.Service {
	return awsapi.Service{
		Name: "sqs", ID: awssqs.ServiceID, Title: "SQS", Place: "queue", Settings: "queue or queue_url",
		Rights: "sqs:SendMessage on the queue, and sqs:GetQueueUrl if it is given by name",
	}
}

// New returns a handler for cfg. It reads the files that cfg names, and the AWS
// SDK's environment and files, and makes no connection: a
// relay starts also while SQS cannot be reached. The error joins every mistake,
// each a [*handlers.FieldError] if it is one of cfg. The caller closes the handler.
func New(cfg Config, options ...handlers.Option) (*Handler, error) {
	o := handlers.Apply(options)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	cfg = cfg.WithDefaults()

	enc, err := awsapi.NewMessageEncoder("SQS", cfg.Message, cfg.GroupID, cfg.fifo())
	if err != nil {
		return nil, err
	}

	conn, err := awsapi.Open(service(), cfg.AWS, o.BaseDir)
	if err != nil {
		return nil, err
	}

	client := awssqs.NewFromConfig(conn.AWS, func(o *awssqs.Options) { conn.Endpoint(&o.BaseEndpoint) })
	h := &Handler{cfg: cfg, encoder: enc, conn: conn, client: client, queue: cfg.QueueURL}

	h.sender = &awsapi.Sender[*awsapi.Message]{
		Conn:       conn,
		MaxEntries: awsapi.MaxMessages,
		MaxBytes:   awsapi.MaxMessage,
		Encode:     enc.Entry,
		Begin:      h.begin,
		Lost:       h.forget,
	}

	return h, nil
}

// Deliver is DeliverBatch for one event.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return h.DeliverBatch(ctx, []*delivery.Event{e})[0]
}

// DeliverBatch sends a message for each event, in requests of up to ten messages
// and 1 MiB, one after the other. What an error means:
//
//   - [delivery.Permanent]: the message is too large, holds characters that SQS
//     does not take, or is refused by SQS for its content.
//   - [delivery.Unclear]: SQS refuses a parameter, or the whole request for a reason that is not known here: every message
//     may be refused alike.
//   - [delivery.Unavailable]: SQS cannot be reached, does not answer in time,
//     or denies access to the queue or its key; or the queue does not exist.
//   - [delivery.Throttled]: SQS, or KMS behind it, throttles requests.
//   - any other: SQS has taken other messages of the same request and has an
//     internal error with this one, or a reason that is not known here.
//   - ctx's cause, if ctx was done first.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	return h.sender.Deliver(ctx, events)
}

// queueURL returns the URL of the queue, and asks for it if need be.
func (h *Handler) queueURL(ctx context.Context) (string, error) {
	if err := h.conn.Ready(ctx); err != nil {
		return "", err
	}

	h.mu.Lock()
	queue := h.queue
	h.mu.Unlock()

	if queue != "" {
		return queue, nil
	}

	rctx, cancel := h.conn.Request(ctx)
	defer cancel()

	in := &awssqs.GetQueueUrlInput{QueueName: aws.String(h.cfg.Queue)}
	if h.cfg.QueueOwner != "" {
		in.QueueOwnerAWSAccountId = aws.String(h.cfg.QueueOwner)
	}

	out, err := h.client.GetQueueUrl(rctx, in)
	if err != nil {
		return "", h.conn.ClassifyQuestion(ctx, rctx, err)
	}

	queue = aws.ToString(out.QueueUrl)
	if queue == "" {
		return "", delivery.Unavailable(errors.New("sqs: the server that answers is not SQS: it gives no URL for the " +
			"queue (check endpoint)"))
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

// Close closes the idle connections. A delivery that is under way finishes and
// closes its own. Closing again does nothing; a later delivery fails.
func (h *Handler) Close() error { return h.conn.Close() }

var _ delivery.BatchHandler = (*Handler)(nil)
