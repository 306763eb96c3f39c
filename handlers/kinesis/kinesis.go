// Package kinesis delivers events as records to a stream of Amazon Kinesis Data Streams.
//
// An event is delivered once Kinesis has given its record a sequence number. Records
// of one aggregate go to one shard.
package kinesis

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	awskinesis "github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/awsapi"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// Handler puts records. It implements [delivery.BatchHandler] and io.Closer,
// and is safe for concurrent use. It is no [delivery.OrderedBatchHandler]: PutRecords may write
// records behind one that has failed, and promises no order.
type Handler struct {
	cfg     Config
	encoder *encoder
	conn    *awsapi.Conn
	client  *awskinesis.Client
	sender  *awsapi.Sender[types.PutRecordsRequestEntry]
}

// New returns a handler for cfg. It reads the files that cfg names, and the AWS
// SDK's environment and files, and makes no connection: a
// relay starts also while Kinesis cannot be reached. The error joins every mistake,
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
		Name:     "kinesis",
		ID:       awskinesis.ServiceID,
		Title:    "Kinesis",
		Place:    "stream",
		Settings: "stream",
		Rights:   "kinesis:PutRecords on the stream",
	}, cfg.AWS, o.BaseDir)
	if err != nil {
		return nil, err
	}

	h := &Handler{cfg: cfg, encoder: enc, conn: conn}
	h.client = awskinesis.NewFromConfig(conn.AWS, func(o *awskinesis.Options) { conn.Endpoint(&o.BaseEndpoint) })

	h.sender = &awsapi.Sender[types.PutRecordsRequestEntry]{
		Conn:       conn,
		MaxEntries: maxEntries,
		MaxBytes:   maxRequest,
		Encode:     enc.encode,
		Send:       h.send,
	}

	return h, nil
}

// Deliver is DeliverBatch for one event.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return h.DeliverBatch(ctx, []*delivery.Event{e})[0]
}

// DeliverBatch puts a record for each event, in requests of up to 500 records
// and 5 MiB, one after the other. What an error means:
//
//   - [delivery.Permanent]: the record is too large.
//   - [delivery.Unclear]: Kinesis refuses an argument, or the whole request for a reason that is not known here: every record
//     may be refused alike.
//   - [delivery.Unavailable]: Kinesis cannot be reached, does not answer in time,
//     or denies access to the stream or its key; or the stream does not exist.
//   - [delivery.Throttled]: a shard, or KMS behind the stream, takes no more at the moment.
//   - any other: Kinesis has taken other records of the same request and has an
//     internal error with this one, or a reason that is not known here.
//   - ctx's cause, if ctx was done first.
//
// Kinesis may store a record behind one that it refuses, also one with the same key.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	return h.sender.Deliver(ctx, events)
}

func (h *Handler) send(ctx context.Context, records []types.PutRecordsRequestEntry) ([]awsapi.Answer, error) {
	in := &awskinesis.PutRecordsInput{Records: records}
	in.StreamName, in.StreamARN = h.stream()

	out, err := h.client.PutRecords(ctx, in)
	if err != nil {
		return nil, err
	}

	answers := make([]awsapi.Answer, len(out.Records))
	for i, r := range out.Records {
		if r.ErrorCode != nil {
			answers[i].Refused = &awsapi.Reason{Code: *r.ErrorCode, Text: aws.ToString(r.ErrorMessage)}
			continue
		}
		answers[i].Taken = r.SequenceNumber != nil
		answers[i].Shard = r.ShardId
	}

	return answers, nil
}

// stream returns the name or the ARN.
func (h *Handler) stream() (name, arn *string) {
	if h.cfg.isARN() {
		return nil, aws.String(h.cfg.Stream)
	}
	return aws.String(h.cfg.Stream), nil
}

// Check asks about the stream, which takes credentials and a stream that exists.
// A policy that allows putting records and not asking passes. It implements
// delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	return h.conn.Ask(ctx, func(ctx context.Context) error {
		in := &awskinesis.DescribeStreamSummaryInput{}
		in.StreamName, in.StreamARN = h.stream()
		out, err := h.client.DescribeStreamSummary(ctx, in)
		if err == nil && out.StreamDescriptionSummary == nil {
			return errors.New("the server that answers is not Kinesis: it says nothing about the stream (check endpoint)")
		}
		return err
	})
}

// DescribeCheck implements delivery.CheckDescriber.
func (*Handler) DescribeCheck() (tested, untested string) {
	return "the credentials, and that the stream exists if the policy allows asking", "the right to put records"
}

// MaxBytes is the limit of Kinesis. It implements delivery.Sizer.
func (h *Handler) MaxBytes() int {
	if h.encoder.message.Renders() {
		return 0 // the size of the payload says nothing about the record
	}
	return maxRecord
}

// Preview returns the record for e: its key and its data.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	in, _, err := h.encoder.encode(e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("kinesis: %w", err))
	}
	return message.Preview([]message.Header{{Name: "partition key", Value: *in.PartitionKey}}, in.Data), nil
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
