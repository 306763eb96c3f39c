package kinesis

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awskinesis "github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/handlers/handlertest/faultproxy"
	"github.com/notifyd/notifyd/handlers/message"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/testenv"
	"github.com/notifyd/notifyd/internal/testenv/awstest"
)

func TestMain(m *testing.M) {
	awstest.Isolate()
	testenv.Main(m)
}

func newHandler(tb testing.TB, cfg Config) *Handler {
	tb.Helper()
	h, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = h.Close() })
	return h
}

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
		for next := it.ShardIterator; next != nil; {
			out, err := s.client.GetRecords(ctx, &awskinesis.GetRecordsInput{ShardIterator: next})
			if err != nil {
				tb.Fatal(err)
			}
			if len(out.Records) == 0 {
				break
			}
			in, next = append(in, out.Records...), out.NextShardIterator
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
	proxy := faultproxy.Start(t, strings.TrimPrefix(endpoint, "http://"))
	cfg := Config{Stream: s.name, Access: awstest.Access("http://" + proxy.Addr())}
	once := func(stream string, e *delivery.Event) func(testing.TB) error {
		return func(tb testing.TB) error {
			tb.Helper()
			c := cfg
			c.Stream = stream
			return newHandler(tb, c).Deliver(tb.Context(), e)
		}
	}
	const limit = 1 << 20 // of a stream, unless it was raised
	big := func(id int64) *delivery.Event { return awstest.Big(id, limit) }
	handlertest.Run(t, handlertest.Destination{
		Open:     func(tb testing.TB) delivery.Handler { tb.Helper(); return newHandler(tb, cfg) },
		Received: func(tb testing.TB) []int64 { tb.Helper(); return s.ids(tb) },
		Rejected: big,
		Network:  proxy,
		Secrets:  []string{awstest.Secret},
		Cases: []handlertest.Case{
			{
				Name: "no such stream", Class: delivery.ClassDestination, Text: "check stream, region and account",
				Provoke: once("nowhere", awstest.Event(1, `{}`)),
			},
			{
				Name: "no such ARN", Class: delivery.ClassDestination, Text: "check stream, region and account",
				Provoke: once(s.arn+"-nowhere", awstest.Event(1, `{}`)),
			},
			{
				Name: "too large for the stream", Class: delivery.ClassEvent, Permanent: true, Text: "less than or equal to 1048576",
				Provoke: once(s.name, big(1)),
			},
			{
				Name: "too large for Kinesis", Class: delivery.ClassEvent, Permanent: true, Text: "Kinesis takes 10485760",
				Provoke: once(s.name, awstest.Big(1, maxRecord)),
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
		"payload":      {func(c *Config) { c.Format = message.Payload }, awstest.Event(42, `{"a":  1}`), "A-7", `{"a":  1}`},
		"no aggregate": {func(c *Config) { c.Format = message.Payload }, none, "43", `{"a":  1}`},
		"long key":     {func(c *Config) { c.Format = message.Payload }, long, "sha256:", `{"a":  1}`},
		"templates": {
			func(c *Config) {
				c.PartitionKey, c.Body, c.ContentType = "k{{ .Payload.a }}", "{{ .Event.DedupeID }};{{ .Payload.a }}", "text/csv"
			}, awstest.Event(42, `{"a":  1}`), "k1", "42;1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStream(t, endpoint, 1)
			cfg := Config{Stream: s.arn, Access: awstest.Access(endpoint)}
			c.change(&cfg)
			h := newHandler(t, cfg)
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

// request is one of PutRecords to the fake.
type request struct {
	Records []struct{ PartitionKey string }
}

func read(tb testing.TB, a awstest.Asked) (r request) {
	tb.Helper()
	if err := json.Unmarshal(a.Body, &r); err != nil {
		tb.Error(err)
	}
	return r
}

// taken is the answer to a request whose records are all taken but for those of failed, by number.
func taken(r request, failed map[int]string) awstest.Said {
	var all []string
	for i := range r.Records {
		if code := failed[i]; code != "" {
			all = append(all, fmt.Sprintf(`{"ErrorCode":%q,"ErrorMessage":"because"}`, code))
			continue
		}
		all = append(all, fmt.Sprintf(`{"SequenceNumber":"%d","ShardId":"s"}`, i))
	}
	return awstest.Said{Body: fmt.Sprintf(`{"FailedRecordCount":%d,"Records":[%s]}`, len(failed), strings.Join(all, ","))}
}

func fakeConfig(f *awstest.Fake) Config {
	return Config{Stream: "orders", Access: awstest.Access(f.URL)}
}

// TestRefusedRequests: the whole request is refused.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer      awstest.Said
		class, text string
	}{
		"throttled":   {awstest.Problem(400, "ProvisionedThroughputExceededException", "Rate exceeded"), "throttled", "Rate exceeded"},
		"limit":       {awstest.Problem(400, "LimitExceededException", ""), "throttled", "LimitExceededException"},
		"key is busy": {awstest.Problem(400, "KMSThrottlingException", ""), "throttled", "KMSThrottlingException"},
		"denied":      {awstest.Problem(400, "AccessDeniedException", "not authorized"), "unavailable", "allow kinesis:PutRecords on the stream"},
		"credentials": {awstest.Problem(400, "UnrecognizedClientException", ""), "unavailable", "check the credentials"},
		"no stream":   {awstest.Problem(400, "ResourceNotFoundException", ""), "unavailable", "check stream"},
		"key":         {awstest.Problem(400, "KMSDisabledException", ""), "unavailable", "look at the KMS key of the stream"},
		"internal":    {awstest.Problem(500, "InternalFailureException", ""), "unavailable", "InternalFailureException"},
		"record":      {awstest.Problem(400, "InvalidArgumentException", "bad"), "permanent", "InvalidArgumentException: bad"},
		"unknown":     {awstest.Problem(400, "SomethingNew", "said "+awstest.Secret), "retry", "SomethingNew: said [redacted]"},
		"not Kinesis": {awstest.Said{Status: 503, Body: "<html>"}, "unavailable", ""},
		"nothing":     {awstest.Said{Body: `{}`}, "unavailable", "neither success nor failure"},
		"no number":   {awstest.Said{Body: `{"Records":[{"ShardId":"s"}]}`}, "unavailable", "neither success nor failure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := awstest.StartFake(t, func(int, awstest.Asked) awstest.Said { return c.answer })
			err := newHandler(t, fakeConfig(f)).Deliver(awstest.Context(t), awstest.Event(1, `{}`))
			if awstest.Class(err) != c.class || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), awstest.Secret) {
				t.Errorf("%s, want %s with %q: %v", awstest.Class(err), c.class, c.text, err)
			}
			if n := len(f.Asked()); n != 1 {
				t.Errorf("%d requests: the SDK tries again by itself", n)
			}
		})
	}
}

// TestNothingOvertakes: the key of a record that was not taken waits in later requests, others do not.
func TestNothingOvertakes(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"ProvisionedThroughputExceededException": awstest.Times("throttled", 2) + " delivered", "InternalFailure": awstest.Times("retry", 2) + " delivered",
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			f := awstest.StartFake(t, func(n int, a awstest.Asked) awstest.Said {
				if n == 0 {
					return taken(read(t, a), map[int]string{4: code})
				}
				return taken(read(t, a), nil)
			})
			all := awstest.Events(maxEntries + 2)
			for i, e := range all {
				if i != 4 && i != maxEntries {
					e.AggregateID = fmt.Sprint("other ", i)
				}
			}
			errs := newHandler(t, fakeConfig(f)).DeliverBatch(awstest.Context(t), all)
			got := awstest.Classes([]error{errs[4], errs[maxEntries], errs[maxEntries+1]})
			if got != want || len(f.Asked()) != 2 {
				t.Errorf("got %s, want %s, in %d requests", got, want, len(f.Asked()))
			}
		})
	}
}

// TestRequests: a batch takes as few requests as it can; a record that is larger than what a
// request holds of several is sent alone; and a record that spoils its request fails alone, after few others.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := awstest.StartFake(t, func(_ int, a awstest.Asked) awstest.Said {
		r := read(t, a)
		if slices.ContainsFunc(r.Records, func(r struct{ PartitionKey string }) bool { return r.PartitionKey == "bad" }) {
			return awstest.Problem(400, "ValidationException", "bad")
		}
		return taken(r, nil)
	})
	h := newHandler(t, fakeConfig(f))
	all := awstest.Events(1010)
	all[0], all[1], all[2] = awstest.Big(1, 6<<20), awstest.Big(2, 3<<20), awstest.Big(3, 3<<20)
	if errs := h.DeliverBatch(awstest.Context(t), all); awstest.Classes(errs) != awstest.Times("delivered", len(all)) {
		t.Error("not all are delivered")
	}
	var got []int
	for _, a := range f.Asked() {
		got = append(got, len(read(t, a).Records))
	}
	if want := []int{1, 1, 500, 500, 8}; !slices.Equal(got, want) {
		t.Errorf("records in each request: %v, want %v", got, want)
	}
	all = awstest.Events(maxEntries)
	all[300].AggregateID = "bad"
	errs := h.DeliverBatch(awstest.Context(t), all)
	if got := awstest.Class(errs[300]); got != "permanent" {
		t.Errorf("the bad record is %s", got)
	}
	errs[300] = nil
	if n := len(f.Asked()) - len(got); awstest.Classes(errs) != awstest.Times("delivered", maxEntries) || n > 20 {
		t.Errorf("%d requests", n)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change     func(*Config)
		path, text string
	}{
		"no stream": {func(c *Config) { c.Stream = "" }, "stream", "missing"},
		"name":      {func(c *Config) { c.Stream = "a b" }, "stream", "must be the name of a stream"},
		"ARN":       {func(c *Config) { c.Stream = "arn:aws:kinesis:eu-central-1:123456789012:orders" }, "stream", "must be the name of a stream"},
		"region":    {func(c *Config) { c.Region = "eu-west-1" }, "region", "is not that of stream, eu-central-1"},
		"key":       {func(c *Config) { c.PartitionKey = "{{ .Paylod.x }}" }, "partition_key", "there is no .Paylod"},
		"binary":    {func(c *Config) { c.Format = message.CloudEventsBinary }, "format", "a record has no headers"},
		"source":    {func(c *Config) { c.Format, c.Source = message.Payload, "/x" }, "cloudevents_source", "has no effect"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Stream: "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"}
			c.change(&cfg)
			errs := field.Split(cfg.Validate())
			if len(errs) != 1 || field.Path(errs[0]) != c.path || !strings.Contains(errs[0].Error(), c.text) {
				t.Errorf("got %v, want %s: %s", errs, c.path, c.text)
			}
			if _, err := New(cfg); err == nil {
				t.Error("New takes it")
			}
		})
	}
	cfg := Config{Stream: "orders", Access: awstest.Access("")}
	cfg.Source = "/shop" // of the default form
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}
