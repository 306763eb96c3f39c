package eventbridge

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestMain(m *testing.M) {
	awstest.Main(m)
}

// TestUnfit: what no event of EventBridge can be is a dead letter, and nothing is asked.
func TestUnfit(t *testing.T) {
	t.Parallel()
	long := awstest.Event(1, `{}`)
	long.Type = strings.Repeat("ä", maxDetailType+1)
	for name, c := range map[string]struct {
		change func(*Config)
		event  *delivery.Event
		text   string
	}{
		"type":        {func(*Config) {}, long, "set detail_type"},
		"source":      {func(c *Config) { c.Source = "{{ .Payload.s }}" }, awstest.Event(1, `{"s": ""}`), `"source" yields nothing`},
		"detail type": {func(c *Config) { c.DetailType = "{{ .Payload.s }}" }, awstest.Event(1, `{"s": ""}`), `"detail_type" yields nothing`},
		"resource":    {func(c *Config) { c.Resources = []string{"{{ .Payload.s }}"} }, awstest.Event(1, `{}`), "resources.0"},
		"body":        {func(c *Config) { c.Body = "{{ json .Payload.s }}" }, awstest.Event(1, `{"s": [{}]}`), "not a JSON object"},
	} {
		f := awstest.StartFake(t, func(int, awstest.Asked) awstest.Said { return awstest.Said{Status: 500} })
		cfg := Config{AWS: awstest.Access(f.URL)}
		c.change(&cfg)
		err := deliverytest.Open(t, New, cfg).Deliver(awstest.Context(t), c.event)
		if deliverytest.Class(err) != "permanent" || !strings.Contains(err.Error(), c.text) || len(f.Asked()) != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// taken is the answer to a request whose events are all taken but for those of failed, by number.
func taken(tb testing.TB, a awstest.Asked, failed map[int]string) awstest.Said {
	tb.Helper()
	var all []string
	for i := range entries(tb, a) {
		if code := failed[i]; code != "" {
			all = append(all, fmt.Sprintf(`{"ErrorCode":%q,"ErrorMessage":"because"}`, code))
			continue
		}
		all = append(all, fmt.Sprintf(`{"EventId":"%d"}`, i))
	}
	return awstest.Said{Body: fmt.Sprintf(`{"FailedEntryCount":%d,"Entries":[%s]}`, len(failed), strings.Join(all, ","))}
}

func entries(tb testing.TB, a awstest.Asked) int {
	tb.Helper()
	var r struct{ Entries []struct{ Source string } }
	if err := json.Unmarshal(a.Body, &r); err != nil {
		tb.Error(err)
	}
	return len(r.Entries)
}

// TestRefusedRequests: the whole request is refused.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer      awstest.Said
		class, text string
	}{
		"throttled":       {awstest.Problem(400, "ThrottlingException", "Rate exceeded"), "throttled", "Rate exceeded"},
		"denied":          {awstest.Problem(400, "AccessDeniedException", "not authorized"), "unavailable", "allow events:PutEvents on the event bus"},
		"credentials":     {awstest.Problem(400, "UnrecognizedClientException", ""), "unavailable", "check the credentials"},
		"internal":        {awstest.Problem(500, "InternalException", ""), "unavailable", "InternalException"},
		"too large":       {awstest.Problem(400, "ValidationException", "over the limit"), "unclear-permanent", "over the limit"},
		"unknown":         {awstest.Problem(400, "SomethingNew", "said "+awstest.Secret), "unclear-retry", "SomethingNew: said [redacted]"},
		"not EventBridge": {awstest.Said{Status: 503, Body: "<html>"}, "unavailable", ""},
		"nothing":         {awstest.Said{Body: `{}`}, "unavailable", "neither success nor failure"},
		"no id":           {awstest.Said{Body: `{"Entries":[{}]}`}, "unavailable", "neither success nor failure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := awstest.StartFake(t, func(int, awstest.Asked) awstest.Said { return c.answer })
			err := deliverytest.Open(t, New, Config{AWS: awstest.Access(f.URL)}).Deliver(awstest.Context(t), awstest.Event(1, `{}`))
			if deliverytest.Class(err) != c.class || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), awstest.Secret) {
				t.Errorf("%s, want %s with %q: %v", deliverytest.Class(err), c.class, c.text, err)
			}
			if n := len(f.Asked()); n != 1 {
				t.Errorf("%d requests: the SDK tries again by itself", n)
			}
		})
	}
}

// TestRefusedEntries: some events of a request are refused.
func TestRefusedEntries(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"InternalFailure": "retry", "ThrottlingException": "throttled", "MalformedDetail": "permanent", "InvalidArgument": "unclear-permanent",
		"AccessDeniedException": "unavailable", "NotAuthorizedForSourceException": "unavailable", "RedactionFailure": "retry",
	} {
		f := awstest.StartFake(t, func(_ int, a awstest.Asked) awstest.Said { return taken(t, a, map[int]string{1: code}) })
		errs := deliverytest.Open(t, New, Config{AWS: awstest.Access(f.URL)}).DeliverBatch(awstest.Context(t), awstest.Events(3))
		if got := deliverytest.Classes(errs); got != "delivered "+want+" delivered" {
			t.Errorf("%s: got %s: %v", code, got, errs)
		}
	}
}

// TestRequests: a batch takes as few requests as it can, none of them too large.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := awstest.StartFake(t, func(_ int, a awstest.Asked) awstest.Said { return taken(t, a, nil) })
	all := awstest.Events(25)
	all[0], all[1], all[2] = awstest.Big(1, 400_000), awstest.Big(2, 400_000), awstest.Big(3, 400_000)
	if errs := deliverytest.Open(t, New, Config{AWS: awstest.Access(f.URL)}).DeliverBatch(awstest.Context(t), all); deliverytest.Classes(errs) != deliverytest.Times("delivered", 25) {
		t.Error(errs)
	}
	var got []int
	for _, a := range f.Asked() {
		got = append(got, entries(t, a))
	}
	if want := []int{2, 10, 10, 3}; !slices.Equal(got, want) {
		t.Errorf("events in each request: %v, want %v", got, want)
	}
}

// TestBusIsAskedFor: EventBridge drops what it takes for a bus that does not exist, so nothing is sent
// before the bus was seen; who may not ask sends. It is asked for once.
func TestBusIsAskedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer awstest.Said
		class  string
		asked  string
	}{
		"it is there": {awstest.Said{Body: `{"Arn":"arn"}`}, "delivered", "DescribeEventBus PutEvents, PutEvents"},
		"no right":    {awstest.Problem(400, "AccessDeniedException", ""), "delivered", "DescribeEventBus PutEvents, PutEvents"},
		"it is not":   {awstest.Problem(400, "ResourceNotFoundException", ""), "unavailable", "DescribeEventBus, DescribeEventBus"},
		"invalid":     {awstest.Problem(400, "ValidationException", ""), "unavailable", "DescribeEventBus, DescribeEventBus"},
		"a stranger":  {awstest.Said{Body: `{}`}, "unavailable", "DescribeEventBus, DescribeEventBus"},
	} {
		f := awstest.StartFake(t, func(_ int, a awstest.Asked) awstest.Said {
			if a.Operation == "DescribeEventBus" {
				return c.answer
			}
			return taken(t, a, nil)
		})
		h := deliverytest.Open(t, New, Config{EventBus: "orders", AWS: awstest.Access(f.URL)})
		var rounds []string
		for range 2 {
			before := len(f.Asked())
			if err := h.Deliver(awstest.Context(t), awstest.Event(1, `{}`)); deliverytest.Class(err) != c.class {
				t.Errorf("%s: %v", name, err)
			}
			var asked []string
			for _, a := range f.Asked()[before:] {
				asked = append(asked, a.Operation)
			}
			rounds = append(rounds, strings.Join(asked, " "))
		}
		if got := strings.Join(rounds, ", "); got != c.asked {
			t.Errorf("%s: asked for %s, want %s", name, got, c.asked)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change     func(*Config)
		path, text string
	}{
		"bus":      {func(c *Config) { c.EventBus = "a b" }, "event_bus", "must be the name of a bus"},
		"ARN":      {func(c *Config) { c.EventBus = "arn:aws:events:eu-central-1:1:event-bus/orders" }, "event_bus", "must be the name of a bus"},
		"region":   {func(c *Config) { c.Region = "eu-west-1" }, "region", "is not that of event_bus, eu-central-1"},
		"source":   {func(c *Config) { c.Source = "aws.orders" }, "source", "must not begin with aws."},
		"template": {func(c *Config) { c.Source = "{{ .Paylod.x }}" }, "source", "there is no .Paylod"},
		"type":     {func(c *Config) { c.DetailType = "{{ .Paylod.x }}" }, "detail_type", "there is no .Paylod"},
		"resource": {func(c *Config) { c.Resources = []string{"a", "{{ .Paylod.x }}"} }, "resources.1", "there is no .Paylod"},
		"content":  {func(c *Config) { c.Body, c.ContentType = "x", "text/plain" }, "content_type", "must be JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{EventBus: "arn:aws:events:eu-central-1:123456789012:event-bus/orders"}
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
}
