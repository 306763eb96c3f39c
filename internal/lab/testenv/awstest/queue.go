package awstest

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/notifyd/notifyd/delivery"
)

// names makes the names of tests in one binary unique.
var names atomic.Int64 //nolint:gochecknoglobals // they share a server

// Name returns a name that no other test has.
func Name() string { return fmt.Sprintf("t-%d-%d", os.Getpid(), names.Add(1)) }

// Config is for clients of the tests. Each request closes its connection, because these tests check for connections that
// were left open.
func Config(endpoint string) aws.Config {
	return aws.Config{
		Region:       Region,
		BaseEndpoint: aws.String(endpoint),
		Credentials:  credentials.NewStaticCredentialsProvider("AKIDEXAMPLE", Secret, ""),
		HTTPClient:   &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// Queue is a queue of the emulator.
type Queue struct {
	Client         *awssqs.Client
	Name, URL, ARN string

	mu  sync.Mutex
	got []types.Message // in the order of arrival
}

// NewQueue makes a queue; the suffix is "" or ".fifo".
func NewQueue(tb testing.TB, endpoint, suffix string, attributes map[string]string) *Queue {
	tb.Helper()
	q := &Queue{Client: awssqs.NewFromConfig(Config(endpoint)), Name: Name() + suffix}

	attributes = maps.Clone(attributes)
	if attributes == nil {
		attributes = make(map[string]string)
	}
	if suffix == ".fifo" {
		attributes["FifoQueue"] = "true"
	}

	out, err := q.Client.CreateQueue(Context(tb), &awssqs.CreateQueueInput{QueueName: aws.String(q.Name), Attributes: attributes})
	if err != nil {
		tb.Fatal(err)
	}

	q.URL = aws.ToString(out.QueueUrl)
	q.ARN = fmt.Sprintf("arn:aws:sqs:%s:123456789012:%s", Region, q.Name)
	return q
}

// Messages empties the queue, and returns all messages so far.
func (q *Queue) Messages(tb testing.TB) []types.Message {
	tb.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	defer cancel()

	for {
		out, err := q.Client.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
			QueueUrl:                    aws.String(q.URL),
			MaxNumberOfMessages:         10,
			MessageAttributeNames:       []string{"All"},
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		})
		if err != nil {
			tb.Fatal(err)
		}

		if len(out.Messages) == 0 {
			return q.got
		}
		q.got = append(q.got, out.Messages...)

		done := make([]types.DeleteMessageBatchRequestEntry, len(out.Messages))
		for i, m := range out.Messages {
			done[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: m.ReceiptHandle}
		}
		_, err = q.Client.DeleteMessageBatch(ctx, &awssqs.DeleteMessageBatchInput{QueueUrl: aws.String(q.URL), Entries: done})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// IDs returns the ids of all events that have arrived, by the attribute notifyd-id.
func (q *Queue) IDs(tb testing.TB) []int64 {
	tb.Helper()
	var ids []int64
	for _, m := range q.Messages(tb) {
		ids = append(ids, Number(tb, aws.ToString(m.MessageAttributes["notifyd-id"].StringValue)))
	}
	return ids
}

// Number reads an id, which may be between quotes.
func Number(tb testing.TB, text string) (id int64) {
	tb.Helper()
	if _, err := fmt.Sscan(strings.Trim(text, `"`), &id); err != nil {
		tb.Fatalf("%q: %v", text, err)
	}
	return id
}

// Message returns an event as it arrived, decoded as a consumer does.
func (q *Queue) Message(tb testing.TB, id int64) (body []byte, contentType string) {
	tb.Helper()
	attribute := func(m types.Message, name string) string { return aws.ToString(m.MessageAttributes[name].StringValue) }
	for _, m := range q.Messages(tb) {
		if attribute(m, "notifyd-id") != strconv.FormatInt(id, 10) {
			continue
		}

		body = []byte(aws.ToString(m.Body))
		contentType = cmp.Or(attribute(m, "content-type"), delivery.ContentTypeJSON)
		if attribute(m, "content-transfer-encoding") == "base64" {
			decoded, err := base64.StdEncoding.DecodeString(string(body))
			if err != nil {
				tb.Fatal(err)
			}
			body = decoded
		}
	}

	return body, contentType
}
