// Package sns delivers events as messages to a topic of Amazon SNS, standard or
// FIFO.
//
// An event is delivered once SNS lists its message as successful. The message's
// attribute notifyd-id is the event's id; a FIFO topic drops copies that arrive
// within five minutes.
package sns

import (
	"context"
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssns "github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/awsapi"
)

// maxRequest is the largest request in bytes to a topic whose MaximumMessageSize is the
// default. Where it is more, up to 1 MiB, a larger message is sent alone.
const maxRequest = 256 << 10

// Handler publishes messages. It implements [delivery.BatchHandler] and io.Closer,
// and is safe for concurrent use.
type Handler struct {
	topic   string
	encoder *awsapi.MessageEncoder
	conn    *awsapi.Conn
	client  *awssns.Client
	sender  *awsapi.Sender[*awsapi.Message]
}

// New returns a handler for cfg. It reads the files that cfg names, and the AWS
// SDK's environment and files, and makes no connection: a
// relay starts also while SNS cannot be reached. The error joins every mistake,
// each a [*handlers.FieldError] if it is one of cfg. The caller closes the handler.
func New(cfg Config, options ...handlers.Option) (*Handler, error) {
	o := handlers.Apply(options)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	cfg = cfg.WithDefaults()

	enc, err := awsapi.NewMessageEncoder("SNS", cfg.Message, cfg.GroupID, cfg.fifo())
	if err != nil {
		return nil, err
	}

	conn, err := awsapi.Open(awsapi.Service{
		Name:     "sns",
		ID:       awssns.ServiceID,
		Title:    "SNS",
		Place:    "topic",
		Settings: "topic_arn",
		Rights:   "sns:Publish on the topic",
	}, cfg.AWS, o.BaseDir)
	if err != nil {
		return nil, err
	}

	h := &Handler{topic: cfg.TopicARN, encoder: enc, conn: conn}
	h.client = awssns.NewFromConfig(conn.AWS, func(o *awssns.Options) { conn.Endpoint(&o.BaseEndpoint) })

	h.sender = &awsapi.Sender[*awsapi.Message]{
		Conn:       conn,
		MaxEntries: awsapi.MaxMessages,
		MaxBytes:   maxRequest,
		Encode:     enc.Entry,
		Send:       h.send,
	}

	return h, nil
}

// Deliver is DeliverBatch for one event.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return h.DeliverBatch(ctx, []*delivery.Event{e})[0]
}

// DeliverBatch publishes a message for each event, in requests of up to ten messages
// and 256 KiB, one after the other. What an error means:
//
//   - [delivery.Permanent]: the message is too large, holds characters that a queue behind
//     the topic does not take, or is refused by SNS for its content.
//   - [delivery.Unclear]: SNS refuses a parameter, or the whole request for a reason that is not known here: every message
//     may be refused alike.
//   - [delivery.Unavailable]: SNS cannot be reached, does not answer in time,
//     or denies access to the topic or its key; or the topic does not exist.
//   - [delivery.Throttled]: SNS, or KMS behind it, throttles requests.
//   - any other: SNS has taken other messages of the same request and has an
//     internal error with this one, or a reason that is not known here.
//   - ctx's cause, if ctx was done first.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	return h.sender.Deliver(ctx, events)
}

func (h *Handler) send(ctx context.Context, messages []*awsapi.Message) ([]awsapi.Answer, error) {
	out, err := h.client.PublishBatch(ctx, &awssns.PublishBatchInput{
		TopicArn:                   aws.String(h.topic),
		PublishBatchRequestEntries: input(messages),
	})
	if err != nil {
		return nil, err
	}

	answers := make([]awsapi.Answer, len(messages))
	for _, ok := range out.Successful {
		awsapi.Answered(answers, ok.Id, awsapi.Answer{Taken: true})
	}

	for _, failed := range out.Failed {
		awsapi.Answered(answers, failed.Id, awsapi.Answer{Refused: &awsapi.Reason{
			Code: aws.ToString(failed.Code), Text: aws.ToString(failed.Message), Ours: failed.SenderFault,
		}})
	}

	return answers, nil
}

func input(messages []*awsapi.Message) []types.PublishBatchRequestEntry {
	all := make([]types.PublishBatchRequestEntry, len(messages))
	for n, m := range messages {
		in := types.PublishBatchRequestEntry{
			Id: aws.String(strconv.Itoa(n)), Message: aws.String(m.Body),
			MessageAttributes: make(map[string]types.MessageAttributeValue, len(m.Attributes)),
		}

		for _, a := range m.Attributes {
			in.MessageAttributes[a.Name] = types.MessageAttributeValue{
				DataType:    aws.String(awsapi.StringType),
				StringValue: aws.String(a.Value),
			}
		}

		if m.Group != "" {
			in.MessageGroupId = aws.String(m.Group)
		}
		if m.DedupID != "" {
			in.MessageDeduplicationId = aws.String(m.DedupID)
		}

		all[n] = in
	}

	return all
}

// Check asks for the topic's attributes, which takes credentials and a topic that exists.
// A policy that allows publishing and not asking passes. It implements
// delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	return h.conn.Ask(ctx, func(ctx context.Context) error {
		_, err := h.client.GetTopicAttributes(ctx, &awssns.GetTopicAttributesInput{TopicArn: aws.String(h.topic)})
		return err
	})
}

// DescribeCheck implements delivery.CheckDescriber.
func (*Handler) DescribeCheck() (tested, untested string) {
	return "the credentials, and that the topic exists if the policy allows asking", "the right to publish"
}

// MaxBytes is the limit of SNS. It implements delivery.Sizer.
func (h *Handler) MaxBytes() int { return h.encoder.MaxBytes() }

// Preview returns the message for e: group and deduplication id where there are
// any, attributes and body.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	m, err := h.encoder.Encode(e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("sns: %w", err))
	}
	return m.Preview(), nil
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
