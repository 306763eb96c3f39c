//go:build testall

package kinesis

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awskinesis "github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// stream is a stream of the emulator.
type stream struct {
	client    *awskinesis.Client
	name, arn string
}

func newStream(tb testing.TB, endpoint string, shards int32) *stream {
	tb.Helper()
	s := &stream{client: awskinesis.NewFromConfig(awstest.Config(endpoint)), name: awstest.Name()}
	if _, err := s.client.CreateStream(awstest.Context(tb), &awskinesis.CreateStreamInput{StreamName: aws.String(s.name), ShardCount: aws.Int32(shards)}); err != nil {
		tb.Fatal(err)
	}
	out, err := s.client.DescribeStreamSummary(awstest.Context(tb), &awskinesis.DescribeStreamSummaryInput{StreamName: aws.String(s.name)})
	if err != nil {
		tb.Fatal(err)
	}
	s.arn = aws.ToString(out.StreamDescriptionSummary.StreamARN)
	return s
}

// records returns all records of each shard.
func (s *stream) records(tb testing.TB) (all [][]types.Record) {
	tb.Helper()
	ctx, cancel := context.WithCancel(awstest.Context(tb))
	defer cancel()
	shards, err := s.client.ListShards(ctx, &awskinesis.ListShardsInput{StreamName: aws.String(s.name)})
	if err != nil {
		tb.Fatal(err)
	}
	for _, shard := range shards.Shards {
		it, err := s.client.GetShardIterator(ctx, &awskinesis.GetShardIteratorInput{
			StreamName: aws.String(s.name), ShardId: shard.ShardId, ShardIteratorType: types.ShardIteratorTypeTrimHorizon,
		})
		if err != nil {
			tb.Fatal(err)
		}
		var in []types.Record
		// A page without records may be followed by one that has some.
		for next, idle := it.ShardIterator, 0; next != nil && idle < 3; idle++ {
			out, err := s.client.GetRecords(ctx, &awskinesis.GetRecordsInput{ShardIterator: next})
			if err != nil {
				tb.Fatal(err)
			}
			if len(out.Records) > 0 {
				in, idle = append(in, out.Records...), 0
			}
			next = out.NextShardIterator
		}
		all = append(all, in)
	}
	return all
}

// ids returns the ids of all events that have arrived, shard by shard.
func (s *stream) ids(tb testing.TB) (ids []int64) {
	tb.Helper()
	for _, in := range s.records(tb) {
		for _, r := range in {
			var e struct{ ID string }
			if err := json.Unmarshal(r.Data, &e); err != nil {
				tb.Fatal(err)
			}
			ids = append(ids, awstest.Number(tb, e.ID))
		}
	}
	return ids
}

func TestConformance(t *testing.T) {
	t.Parallel()
	endpoint := testenv.AWS(t)
	s := newStream(t, endpoint, 2)
	proxy := handlertest.StartProxy(t, strings.TrimPrefix(endpoint, "http://"))
	cfg := Config{Stream: s.name, AWS: awstest.Access("http://" + proxy.Addr())}
	const limit = 1 << 20 // of a stream, unless it was raised
	big := func(id int64) *delivery.Event { return awstest.Big(id, limit) }
	handlertest.Run(t, handlertest.Destination{
		Open:     deliverytest.Opener(New, cfg),
		Received: func(tb testing.TB) []int64 { tb.Helper(); return s.ids(tb) },
		Rejected: big,
		Network:  proxy,
		Secrets:  []string{awstest.Secret},
		Cases: []handlertest.Case{
			{
				Name: "no such stream", Class: delivery.ClassDestination, Text: "check stream, region and account",
				Provoke: deliverytest.Once(New, cfg, awstest.Event(1, `{}`), func(c *Config) { c.Stream = "nowhere" }),
			},
			{
				Name: "no such ARN", Class: delivery.ClassDestination, Text: "check stream, region and account",
				Provoke: deliverytest.Once(New, cfg, awstest.Event(1, `{}`), func(c *Config) { c.Stream = s.arn + "-nowhere" }),
			},
			{
				Name: "too large for the stream", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "less than or equal to 1048576",
				Provoke: deliverytest.Once(New, cfg, big(1)),
			},
			{
				Name: "too large for Kinesis", Class: delivery.ClassEvent, Permanent: true, Text: "Kinesis takes 10485760",
				Provoke: deliverytest.Once(New, cfg, awstest.Big(1, maxRecord)),
			},
		},
	})
}

// TestRecord compares records with events, and sends by the ARN of the stream.
func TestRecord(t *testing.T) {
	t.Parallel()
	endpoint := testenv.AWS(t)
	none := awstest.Event(43, `{"a":  1}`)
	none.AggregateID = ""
	long := awstest.Event(44, `{"a":  1}`)
	long.AggregateID = strings.Repeat("ä", maxKey+1)
	for name, c := range map[string]struct {
		change    func(*Config)
		event     *delivery.Event
		key, data string
	}{
		"CloudEvent": {
			func(*Config) {}, awstest.Event(42, `{"a":  1}`), "A-7",
			`{"specversion":"1.0","id":"42","source":"/notifyd","type":"order.created","datacontenttype":"application/json","subject":"A-7",` +
				`"time":"2026-03-04T05:06:07Z","partitionkey":"A-7","aggregatetype":"order","data":{"a":  1}}`,
		},
		"payload":      {func(c *Config) { c.Format = handlers.FormatPayload }, awstest.Event(42, `{"a":  1}`), "A-7", `{"a":  1}`},
		"no aggregate": {func(c *Config) { c.Format = handlers.FormatPayload }, none, "43", `{"a":  1}`},
		"long key":     {func(c *Config) { c.Format = handlers.FormatPayload }, long, "sha256:", `{"a":  1}`},
		"templates": {
			func(c *Config) {
				c.PartitionKey, c.Body, c.ContentType = "k{{ .Payload.a }}", "{{ .Event.DedupeID }};{{ .Payload.a }}", "text/csv"
			}, awstest.Event(42, `{"a":  1}`), "k1", "42;1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStream(t, endpoint, 1)
			cfg := Config{Stream: s.arn, AWS: awstest.Access(endpoint)}
			c.change(&cfg)
			h := deliverytest.Open(t, New, cfg)
			if err := h.Deliver(awstest.Context(t), c.event); err != nil {
				t.Fatal(err)
			}
			got := s.records(t)[0]
			if len(got) != 1 || !strings.HasPrefix(aws.ToString(got[0].PartitionKey), c.key) || string(got[0].Data) != c.data {
				t.Errorf("got %+v", got)
			}
			if text, err := h.Preview(c.event); err != nil || !strings.Contains(text, "partition key: "+c.key) || !strings.Contains(text, c.data) {
				t.Errorf("%v: %s", err, text)
			}
			if err := h.Check(awstest.Context(t)); err != nil {
				t.Error(err)
			}
		})
	}
}
