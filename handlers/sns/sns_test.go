package sns

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers/internal/awsapi"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestMain(m *testing.M) {
	awstest.Main(m)
}

// asked reads the entries of a request of PublishBatch, which is a form.
func asked(tb testing.TB, a awstest.Asked) (entries []map[string]string) {
	tb.Helper()
	form, err := url.ParseQuery(string(a.Body))
	if err != nil {
		tb.Fatal(err)
	}
	for n := 1; ; n++ {
		prefix := fmt.Sprintf("PublishBatchRequestEntries.member.%d.", n)
		entry := make(map[string]string)
		for name := range form {
			if rest, ok := strings.CutPrefix(name, prefix); ok {
				entry[rest] = form.Get(name)
			}
		}
		if len(entry) == 0 {
			return entries
		}
		entries = append(entries, entry)
	}
}

// taken is the answer to a request whose messages are all taken but for those of failed, by number.
func taken(entries []map[string]string, failed map[int]string) awstest.Said {
	var ok, bad strings.Builder
	for i, e := range entries {
		if code := failed[i]; code != "" {
			fmt.Fprintf(&bad, "<member><Id>%s</Id><Code>%s</Code><Message>because</Message><SenderFault>%t</SenderFault></member>",
				e["Id"], code, strings.HasPrefix(code, "Invalid"))
			continue
		}
		fmt.Fprintf(&ok, "<member><Id>%s</Id><MessageId>m</MessageId></member>", e["Id"])
	}
	return awstest.Said{Header: map[string]string{"Content-Type": "text/xml"}, Body: "<PublishBatchResponse><PublishBatchResult><Successful>" + ok.String() +
		"</Successful><Failed>" + bad.String() + "</Failed></PublishBatchResult></PublishBatchResponse>"}
}

func problem(status int, code, text string) awstest.Said {
	return awstest.Said{Status: status, Header: map[string]string{"Content-Type": "text/xml"}, Body: "<ErrorResponse><Error><Type>Sender</Type><Code>" + code +
		"</Code><Message>" + text + "</Message></Error></ErrorResponse>"}
}

func fakeConfig(f *awstest.Fake, suffix string) Config {
	return Config{TopicARN: "arn:aws:sns:eu-central-1:123456789012:orders" + suffix, AWS: awstest.Access(f.URL)}
}

// TestRefusedRequests: the whole request is refused.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer      awstest.Said
		class, text string
	}{
		"throttled":    {problem(400, "Throttled", "Rate exceeded"), "throttled", "Throttled: Rate exceeded"},
		"key is busy":  {problem(400, "KMSThrottling", ""), "throttled", "KMSThrottling"},
		"denied":       {problem(403, "AuthorizationError", "not authorized"), "unavailable", "allow sns:Publish on the topic"},
		"credentials":  {problem(403, "InvalidClientTokenId", ""), "unavailable", "check the credentials"},
		"no topic":     {problem(404, "NotFound", "Topic does not exist"), "unavailable", "check topic_arn"},
		"key":          {problem(400, "KMSDisabled", ""), "unavailable", "look at the KMS key of the topic"},
		"internal":     {problem(500, "InternalError", ""), "unavailable", "InternalError"},
		"message":      {problem(400, "InvalidParameter", "bad"), "unclear-permanent", "InvalidParameter: bad"},
		"too long":     {problem(400, "BatchRequestTooLong", ""), "permanent", "BatchRequestTooLong"},
		"unknown":      {problem(400, "SomethingNew", "said "+awstest.Secret), "unclear-retry", "SomethingNew: said [redacted]"},
		"not SNS":      {awstest.Said{Status: 503, Body: "<html>"}, "unavailable", ""},
		"nothing":      {taken(nil, nil), "unavailable", "neither success nor failure"},
		"half a word":  {awstest.Said{Body: "<PublishBatchResponse>", Header: map[string]string{"Content-Type": "text/xml"}}, "unavailable", ""},
		"other answer": {awstest.Said{Body: `{"ok":true}`}, "unavailable", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := awstest.StartFake(t, func(int, awstest.Asked) awstest.Said { return c.answer })
			err := deliverytest.Open(t, New, fakeConfig(f, "")).Deliver(awstest.Context(t), awstest.Event(1, `{}`))
			if deliverytest.Class(err) != c.class || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), awstest.Secret) {
				t.Errorf("%s, want %s with %q: %v", deliverytest.Class(err), c.class, c.text, err)
			}
			if n := len(f.Asked()); n != 1 {
				t.Errorf("%d requests: the SDK tries again by itself", n)
			}
		})
	}
}

// TestRefusedEntries: some messages of a request are refused, which holds no others back, also not those of a group of a FIFO
// topic.
func TestRefusedEntries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ suffix, code, want string }{
		"internal":       {"", "InternalError", "retry"},
		"fifo":           {awsapi.FIFO, "InternalError", "retry"},
		"throttled":      {"", "Throttled", "throttled"},
		"fifo throttled": {awsapi.FIFO, "Throttled", "throttled"},
		"fifo, unclear":  {awsapi.FIFO, "InvalidParameter", "unclear-permanent"},
		"denied":         {"", "AuthorizationError", "unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := awstest.StartFake(t, func(n int, a awstest.Asked) awstest.Said {
				if n == 0 {
					return taken(asked(t, a), map[int]string{4: c.code})
				}
				return taken(asked(t, a), nil)
			})
			errs := deliverytest.Open(t, New, fakeConfig(f, c.suffix)).DeliverBatch(awstest.Context(t), awstest.Events(12))
			want := deliverytest.Times("delivered", 4) + " " + c.want + " " + deliverytest.Times("delivered", 7)
			if got := deliverytest.Classes(errs); got != want || len(f.Asked()) != 2 {
				t.Errorf("got %s, want %s, in %d requests: %v", got, want, len(f.Asked()), errs)
			}
		})
	}
}

// TestRequests: a batch takes as few requests as it can; a message above the default limit of a
// topic is sent alone, for a topic that takes it.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := awstest.StartFake(t, func(_ int, a awstest.Asked) awstest.Said { return taken(asked(t, a), nil) })
	all := awstest.Events(25)
	all[0], all[1], all[2] = awstest.Big(1, 100_000), awstest.Big(2, 100_000), awstest.Big(3, 100_000)
	all[24] = awstest.Big(25, 500_000)
	if errs := deliverytest.Open(t, New, fakeConfig(f, "")).DeliverBatch(awstest.Context(t), all); deliverytest.Classes(errs) != deliverytest.Times("delivered", 25) {
		t.Error(errs)
	}
	var got []int
	for _, a := range f.Asked() {
		got = append(got, len(asked(t, a)))
	}
	if want := []int{2, 10, 10, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("messages in each request: %v, want %v", got, want)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change     func(*Config)
		path, text string
	}{
		"no topic": {func(c *Config) { c.TopicARN = "" }, "topic_arn", "missing"},
		"name":     {func(c *Config) { c.TopicARN = "orders" }, "topic_arn", "must be the ARN of a topic"},
		"queue":    {func(c *Config) { c.TopicARN = "arn:aws:sqs:eu-central-1:123456789012:orders" }, "topic_arn", "must be the ARN of a topic"},
		"region":   {func(c *Config) { c.Region = "eu-west-1" }, "region", "is not that of topic_arn, eu-central-1"},
		"group":    {func(c *Config) { c.GroupID = "{{ .Paylod.x }}" }, "group_id", "there is no .Paylod"},
		"format":   {func(c *Config) { c.Format = "xml" }, "format", "must be payload"},
		"no key":   {func(c *Config) { c.SessionToken = awstest.Access("").SecretAccessKey }, "access_key_id", "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{TopicARN: "arn:aws:sns:eu-central-1:123456789012:orders"}
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
