//go:build testall

package sns

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssns "github.com/aws/aws-sdk-go-v2/service/sns"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/handlers/internal/awsapi"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// newTopic makes a topic with a queue behind it; the suffix is "" or ".fifo".
func newTopic(tb testing.TB, endpoint, suffix string) (arn string, q *awstest.Queue) {
	tb.Helper()
	q = awstest.NewQueue(tb, endpoint, suffix, nil)
	client := awssns.NewFromConfig(awstest.Config(endpoint))
	in := &awssns.CreateTopicInput{Name: aws.String(q.Name)}
	if suffix == awsapi.FIFO {
		in.Attributes = map[string]string{"FifoTopic": "true"}
	}
	topic, err := client.CreateTopic(awstest.Context(tb), in)
	if err != nil {
		tb.Fatal(err)
	}
	arn = aws.ToString(topic.TopicArn)
	// The emulator's account need not be that of awstest.
	q.ARN = strings.Replace(arn, ":sns:", ":sqs:", 1)
	if _, err := client.Subscribe(awstest.Context(tb), &awssns.SubscribeInput{
		TopicArn: topic.TopicArn, Protocol: aws.String("sqs"), Endpoint: aws.String(q.ARN), Attributes: map[string]string{"RawMessageDelivery": "true"},
	}); err != nil {
		tb.Fatal(err)
	}
	return arn, q
}

// TestConformance runs a standard and a FIFO topic of the emulator through the suite.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, suffix := range map[string]string{"standard": "", "fifo": awsapi.FIFO} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint := testenv.SQS(t)
			arn, q := newTopic(t, endpoint, suffix)
			proxy := handlertest.StartProxy(t, inOrder(t, endpoint))
			cfg := Config{TopicARN: arn, AWS: awstest.Access("http://" + proxy.Addr())}
			big := func(id int64) *delivery.Event { return awstest.Big(id, awsapi.MaxMessage) }
			handlertest.Run(t, handlertest.Destination{
				Open:     deliverytest.Opener(New, cfg),
				Received: func(tb testing.TB) []int64 { tb.Helper(); return q.IDs(tb) },
				Message:  q.Message,
				Rejected: big,
				Network:  proxy,
				Secrets:  []string{awstest.Secret},
				Ordered:  suffix == awsapi.FIFO,
				Cases: []handlertest.Case{
					{
						Name: "no such topic", Class: delivery.ClassDestination, Text: "check topic_arn, region and account",
						Provoke: deliverytest.Once(New, cfg, awstest.Event(1, `{}`), func(c *Config) { c.TopicARN = strings.TrimSuffix(arn, suffix) + "-nowhere" + suffix }),
					},
					{
						Name: "too large for SNS", Class: delivery.ClassEvent, Permanent: true, Text: "SNS takes 1048576",
						Provoke: deliverytest.Once(New, cfg, big(1)),
					},
					{
						Name: "no payload", Class: delivery.ClassEvent, Permanent: true, Text: "empty",
						Provoke: deliverytest.Once(New, cfg, &delivery.Event{ID: 1, Type: "x", Payload: json.RawMessage{}}),
					},
				},
			})
		})
	}
}

// TestMessage: what a queue behind a FIFO topic gets.
func TestMessage(t *testing.T) {
	t.Parallel()
	endpoint := testenv.SQS(t)
	arn, q := newTopic(t, endpoint, awsapi.FIFO)
	h := deliverytest.Open(t, New, Config{TopicARN: arn, AWS: awstest.Access(endpoint)})
	e := awstest.Event(42, `{"a":  1}`)
	e.Headers = map[string]string{"traceparent": "00-1", "odd name": "x"}
	for range 2 { // the second time it is a duplicate
		if err := h.Deliver(awstest.Context(t), e); err != nil {
			t.Fatal(err)
		}
	}
	got := q.Messages(t)
	if len(got) != 1 || aws.ToString(got[0].Body) != `{"a":  1}` {
		t.Fatalf("got %v", got)
	}
	m := got[0]
	for name, want := range map[string]string{
		"notifyd-id": "42", "notifyd-type": "order.created", "notifyd-aggregate-id": "A-7", "traceparent": "00-1", "notifyd-headers": `{"odd name":"x"}`,
	} {
		if got := aws.ToString(m.MessageAttributes[name].StringValue); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if m.Attributes["MessageGroupId"] != "A-7" || !strings.HasPrefix(m.Attributes["MessageDeduplicationId"], "42.") {
		t.Errorf("%v", m.Attributes)
	}
	if text, err := h.Preview(e); err != nil || !strings.Contains(text, "group id: A-7\n") || !strings.Contains(text, "attribute notifyd-id: 42\n") {
		t.Errorf("%v: %s", err, text)
	}
	if err := h.Check(awstest.Context(t)); err != nil {
		t.Error(err)
	}
}
