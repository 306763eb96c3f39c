//go:build testall

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"
	kinesistypes "github.com/aws/aws-sdk-go-v2/service/kinesis/types"
	"github.com/aws/aws-sdk-go-v2/service/sns"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
)

// clouds are the places of the destinations at AWS.
type clouds struct {
	sqs, aws string // emulators
	queue    *awstest.Queue
	topic    string         // ARN
	behind   *awstest.Queue // the queue behind the topic
	bus      *awstest.Bus
	records  *kinesis.Client
}

// startClouds makes a queue, a topic, a bus, and a stream with the given name.
func startClouds(t *testing.T, name string) clouds {
	t.Helper()
	c := clouds{sqs: testenv.SQS(t), aws: testenv.AWS(t)}
	c.queue, c.behind = awstest.NewQueue(t, c.sqs, "", nil), awstest.NewQueue(t, c.sqs, "", nil)
	topics := sns.NewFromConfig(awstest.Config(c.sqs))
	topic, err := topics.CreateTopic(t.Context(), &sns.CreateTopicInput{Name: aws.String(name)})
	if err != nil {
		t.Fatal(err)
	}
	c.topic = aws.ToString(topic.TopicArn)
	if _, err := topics.Subscribe(t.Context(), &sns.SubscribeInput{
		TopicArn: topic.TopicArn, Protocol: aws.String("sqs"), Attributes: map[string]string{"RawMessageDelivery": "true"},
		Endpoint: aws.String(strings.Replace(c.topic[:strings.LastIndex(c.topic, ":")+1], ":sns:", ":sqs:", 1) + c.behind.Name),
	}); err != nil {
		t.Fatal(err)
	}
	c.bus = awstest.NewBus(t, c.aws)
	c.records = kinesis.NewFromConfig(awstest.Config(c.aws))
	if _, err := c.records.CreateStream(t.Context(), &kinesis.CreateStreamInput{StreamName: aws.String(name), ShardCount: aws.Int32(1)}); err != nil {
		t.Fatal(err)
	}
	return c
}

// fromClouds adds what has arrived at AWS.
func (e *everywhere) fromClouds(got map[string]string) {
	e.Helper()
	for name, q := range map[string]*awstest.Queue{"sqs": e.queue, "sns": e.behind} {
		for _, m := range q.Messages(e) {
			got[name] = fmt.Sprintf("%d attributes, %s", len(m.MessageAttributes), *m.Body)
			e.traces[name] = aws.ToString(m.MessageAttributes["traceparent"].StringValue)
		}
	}
	for _, a := range e.bus.Events(e) {
		got["eventbridge"] = a.Header("notifyd-id") + ": " + string(a.Detail)
		e.traces["eventbridge"] = a.Header("traceparent")
	}
	it, err := e.records.GetShardIterator(awstest.Context(e), &kinesis.GetShardIteratorInput{
		StreamName: aws.String(e.name), ShardId: aws.String("shardId-000000000000"), ShardIteratorType: kinesistypes.ShardIteratorTypeTrimHorizon,
	})
	if err != nil {
		e.Fatal(err)
	}
	out, err := e.records.GetRecords(awstest.Context(e), &kinesis.GetRecordsInput{ShardIterator: it.ShardIterator})
	if err != nil {
		e.Fatal(err)
	}
	for _, r := range out.Records {
		got["kinesis"] = string(r.Data)
		e.traces["kinesis"] = traceOf(string(r.Data))
	}
}
