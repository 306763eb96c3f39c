package kinesis

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestMain(m *testing.M) {
	awstest.Main(m)
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
	return Config{Stream: "orders", AWS: awstest.Access(f.URL)}
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
		"record":      {awstest.Problem(400, "InvalidArgumentException", "bad"), "unclear-permanent", "InvalidArgumentException: bad"},
		"unknown":     {awstest.Problem(400, "SomethingNew", "said "+awstest.Secret), "unclear-retry", "SomethingNew: said [redacted]"},
		"not Kinesis": {awstest.Said{Status: 503, Body: "<html>"}, "unavailable", ""},
		"nothing":     {awstest.Said{Body: `{}`}, "unavailable", "neither success nor failure"},
		"no number":   {awstest.Said{Body: `{"Records":[{"ShardId":"s"}]}`}, "unavailable", "neither success nor failure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := awstest.StartFake(t, func(int, awstest.Asked) awstest.Said { return c.answer })
			err := deliverytest.Open(t, New, fakeConfig(f)).Deliver(awstest.Context(t), awstest.Event(1, `{}`))
			if deliverytest.Class(err) != c.class || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), awstest.Secret) {
				t.Errorf("%s, want %s with %q: %v", deliverytest.Class(err), c.class, c.text, err)
			}
			if n := len(f.Asked()); n != 1 {
				t.Errorf("%d requests: the SDK tries again by itself", n)
			}
		})
	}
}

// TestRefusedRecordHoldsNothingBack: later records of its key are put: Kinesis itself stores records behind one that it refuses.
func TestRefusedRecordHoldsNothingBack(t *testing.T) {
	t.Parallel()
	for code, class := range map[string]string{"ProvisionedThroughputExceededException": "throttled", "InternalFailure": "retry"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			f := awstest.StartFake(t, func(n int, a awstest.Asked) awstest.Said {
				if n == 0 {
					return taken(read(t, a), map[int]string{4: code})
				}
				return taken(read(t, a), nil)
			})
			errs := deliverytest.Open(t, New, fakeConfig(f)).DeliverBatch(awstest.Context(t), awstest.Events(maxEntries+2))
			want := deliverytest.Times("delivered", 4) + " " + class + " " + deliverytest.Times("delivered", maxEntries-3)
			if got := deliverytest.Classes(errs); got != want || len(f.Asked()) != 2 {
				t.Errorf("got %s in %d requests", got, len(f.Asked()))
			}
		})
	}
}

// TestAck: the handler reports the shard of each record that Kinesis has taken.
func TestAck(t *testing.T) {
	t.Parallel()
	f := awstest.StartFake(t, func(_ int, a awstest.Asked) awstest.Said {
		return taken(read(t, a), map[int]string{1: "InternalFailure"})
	})
	h := deliverytest.Open(t, New, fakeConfig(f))
	all := awstest.Events(3)
	acks := make([]string, len(all))
	for i, e := range all {
		e.OnAck(func(a delivery.Ack) { acks[i] += fmt.Sprint(a.Partition, a.Offset) })
	}
	if errs := h.DeliverBatch(awstest.Context(t), all); errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Fatalf("%v", errs)
	}
	if want := []string{"s-1", "", "s-1"}; !slices.Equal(acks, want) {
		t.Errorf("reported %q, want %q", acks, want)
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
	h := deliverytest.Open(t, New, fakeConfig(f))
	all := awstest.Events(1010)
	all[0], all[1], all[2] = awstest.Big(1, 6<<20), awstest.Big(2, 3<<20), awstest.Big(3, 3<<20)
	if errs := h.DeliverBatch(awstest.Context(t), all); deliverytest.Classes(errs) != deliverytest.Times("delivered", len(all)) {
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
	if got := deliverytest.Class(errs[300]); got != "unclear-permanent" {
		t.Errorf("the bad record is %s", got)
	}
	errs[300] = nil
	if n := len(f.Asked()) - len(got); deliverytest.Classes(errs) != deliverytest.Times("delivered", maxEntries) || n > 20 {
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
		"binary":    {func(c *Config) { c.Format = handlers.FormatCloudEventsBinary }, "format", "a record has no headers"},
		"source":    {func(c *Config) { c.Format, c.Source = handlers.FormatPayload, "/x" }, "cloudevents_source", "has no effect"},
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
	cfg := Config{Stream: "orders", AWS: awstest.Access("")}
	cfg.Source = "/shop" // of the default form
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}
