package sqs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestRefusedRequests: the whole request is refused.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer      awstest.Said
		class, text string
	}{
		"throttled":        {awstest.Problem(400, "RequestThrottled", "slow down"), "throttled", "RequestThrottled: slow down"},
		"throttled, other": {awstest.Problem(400, "ThrottlingException", "Rate exceeded"), "throttled", "Rate exceeded"},
		"over the limit":   {awstest.Problem(403, "OverLimit", ""), "throttled", "OverLimit"},
		"denied": {
			awstest.Problem(403, "AccessDenied", "User: arn:aws:iam::1:user/x is not authorized"), "unavailable", "allow sqs:SendMessage",
		},
		"denied, other":        {awstest.Problem(400, "AccessDeniedException", ""), "unavailable", "allow sqs:SendMessage"},
		"unknown key":          {awstest.Problem(403, "InvalidClientTokenId", ""), "unavailable", "check the credentials"},
		"expired":              {awstest.Problem(403, "ExpiredToken", ""), "unavailable", "check the credentials"},
		"signature":            {awstest.Problem(403, "SignatureDoesNotMatch", "should have been x-amz-security-token:sesame"), "unavailable", "SignatureDoesNotMatch (check"},
		"clock":                {awstest.Problem(403, "RequestExpired", ""), "unavailable", "check the clock"},
		"key of the queue":     {awstest.Problem(400, "KmsDisabled", "disabled"), "unavailable", "KMS key"},
		"key, by its old name": {awstest.Problem(400, "KMS.AccessDeniedException", ""), "unavailable", "KMS key"},
		"queue, by its old name": {
			awstest.Said{Status: 400, Body: `{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"x"}`, Header: map[string]string{"x-amzn-query-error": "AWS.SimpleQueueService.NonExistentQueue;Sender"}},
			"unavailable", "check queue or queue_url",
		},
		"internal error":      {awstest.Problem(500, "InternalError", "oops"), "unavailable", "InternalError: oops"},
		"out of order":        {awstest.Said{Status: 503, Body: "<html>Service Unavailable</html>"}, "unavailable", "HTTP 503 Service Unavailable"},
		"unknown, of a proxy": {awstest.Said{Status: 403, Body: "<html>no</html>"}, "unavailable", ""},
		"no JSON":             {awstest.Said{Body: "<html>sign in</html>"}, "unavailable", ""},
		"half an answer":      {awstest.Said{Body: `{"Successful":[{"Id":"0"`}, "unavailable", ""},
		"nothing":             {awstest.Said{Body: `{}`}, "unavailable", "neither success nor failure"},
		"a redirect":          {awstest.Said{Status: 307, Header: map[string]string{"Location": "/elsewhere"}}, "unavailable", "HTTP 307"},
		"message":             {awstest.Problem(400, "InvalidMessageContents", "bad"), "permanent", "InvalidMessageContents: bad"},
		"parameter":           {awstest.Problem(400, "InvalidParameterValue", "bad"), "unclear-permanent", "look at the event, and at the settings of the queue"},
		"too long":            {awstest.Problem(400, "BatchRequestTooLong", ""), "permanent", "BatchRequestTooLong"},
		"unknown":             {awstest.Problem(400, "SomethingNew", "awstest.Said "+awstest.Secret), "unclear-retry", "SomethingNew: awstest.Said [redacted]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFake(t, func(_ int, s sent) awstest.Said {
				if s.operation == "" {
					return awstest.Said{Status: http.StatusTeapot} // a redirect was followed
				}
				return c.answer
			})
			h := deliverytest.Open(t, New, fakeConfig(f, "orders"))
			err := h.Deliver(awstest.Context(t), awstest.Event(1, `{}`))
			if deliverytest.Class(err) != c.class || !strings.Contains(err.Error(), c.text) || len(err.Error()) > 2*oneline.MaxReply {
				t.Errorf("%s, want %s with %q: %v", deliverytest.Class(err), c.class, c.text, err)
			}
			for e := err; e != nil; e = errors.Unwrap(e) {
				for _, verb := range []string{"%v", "%+v", "%#v"} {
					if text := fmt.Sprintf(verb, e); strings.Contains(text, awstest.Secret) || strings.Contains(text, "sesame") {
						t.Errorf("a secret is shown: %s", text)
					}
				}
			}
			if n := len(asked(f)); n != 1 {
				t.Errorf("%d requests: the SDK tries again by itself", n)
			}
		})
	}
}

// TestRefusedEntries: some messages of a request are refused.
func TestRefusedEntries(t *testing.T) {
	t.Parallel()
	entry := func(senderFault bool, code string) string {
		return fmt.Sprintf(`"SenderFault":%t,"Code":%q,"Message":"because"`, senderFault, code)
	}
	for name, c := range map[string]struct {
		failed map[int]string
		want   string
	}{
		"one":                  {map[int]string{1: entry(true, "InvalidParameterValue")}, "delivered unclear-permanent delivered"},
		"unknown, ours":        {map[int]string{1: entry(true, "SomethingNew")}, "delivered unclear-permanent delivered"},
		"unknown, theirs":      {map[int]string{1: entry(false, "SomethingNew")}, "delivered retry delivered"},
		"internal":             {map[int]string{1: entry(false, "InternalError")}, "delivered retry delivered"},
		"internal, all":        {map[int]string{0: entry(false, "InternalError"), 1: entry(false, "InternalError"), 2: entry(false, "InternalError")}, deliverytest.Times("unavailable", 3)},
		"throttled":            {map[int]string{1: entry(true, "RequestThrottled")}, "delivered throttled delivered"},
		"denied":               {map[int]string{0: entry(true, "AccessDenied"), 1: entry(true, "AccessDenied"), 2: entry(true, "AccessDenied")}, deliverytest.Times("unavailable", 3)},
		"key of the queue":     {map[int]string{0: entry(true, "KMS.NotFoundException")}, "unavailable " + deliverytest.Times("delivered", 2)},
		"queue, by an old one": {map[int]string{0: entry(true, "AWS.SimpleQueueService.NonExistentQueue")}, "unavailable " + deliverytest.Times("delivered", 2)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFake(t, func(_ int, s sent) awstest.Said { return taken(s, c.failed) })
			errs := deliverytest.Open(t, New, fakeConfig(f, "orders")).DeliverBatch(awstest.Context(t), awstest.Events(3))
			if got := deliverytest.Classes(errs); got != c.want {
				t.Errorf("got %s, want %s: %v", got, c.want, errs)
			}
		})
	}
}

// TestGuiltyOne: where SQS refuses a whole request because of one message, the
// others get through.
func TestGuiltyOne(t *testing.T) {
	t.Parallel()
	f := startFake(t, func(_ int, s sent) awstest.Said {
		for _, e := range s.Entries {
			if e.MessageBody == `{"n": 1}` {
				return awstest.Problem(400, "InvalidMessageContents", "bad")
			}
		}
		return taken(s, nil)
	})
	errs := deliverytest.Open(t, New, fakeConfig(f, "orders")).DeliverBatch(awstest.Context(t), awstest.Events(3))
	if got := deliverytest.Classes(errs); got != "delivered permanent delivered" || len(asked(f)) != 5 {
		t.Errorf("got %s in %d requests: %v", got, len(asked(f)), errs)
	}
}

// TestRefusedEntryHoldsNothingBack: later messages of a group are sent, also on a FIFO queue and in a later request: a
// queue takes messages behind one that it refuses.
func TestRefusedEntryHoldsNothingBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ queue, failure, want string }{
		"fifo":          {"q.fifo", `"SenderFault":false,"Code":"InternalError"`, "retry"},
		"fifo, at once": {"q.fifo", `"SenderFault":true,"Code":"RequestThrottled"`, "throttled"},
		"fifo, dead":    {"q.fifo", `"SenderFault":true,"Code":"InvalidMessageContents"`, "permanent"},
		"fifo, unclear": {"q.fifo", `"SenderFault":true,"Code":"InvalidParameterValue"`, "unclear-permanent"},
		"standard":      {"q", `"SenderFault":false,"Code":"InternalError"`, "retry"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFake(t, func(n int, s sent) awstest.Said {
				if n == 0 {
					return taken(s, map[int]string{4: c.failure})
				}
				return taken(s, nil)
			})
			errs := deliverytest.Open(t, New, fakeConfig(f, c.queue)).DeliverBatch(awstest.Context(t), awstest.Events(12))
			want := deliverytest.Times("delivered", 4) + " " + c.want + " " + deliverytest.Times("delivered", 7)
			if got := deliverytest.Classes(errs); got != want || len(asked(f)) != 2 {
				t.Errorf("got %s in %d requests: %v", got, len(asked(f)), errs)
			}
		})
	}
}

// TestStopsAtOutage: what is left of a batch is not tried on a queue that is
// out of order.
func TestStopsAtOutage(t *testing.T) {
	t.Parallel()
	f := startFake(t, func(n int, s sent) awstest.Said {
		if n == 1 {
			return awstest.Problem(503, "ServiceUnavailable", "")
		}
		return taken(s, nil)
	})
	errs := deliverytest.Open(t, New, fakeConfig(f, "orders")).DeliverBatch(awstest.Context(t), awstest.Events(25))
	want := deliverytest.Times("delivered", 10) + " " + deliverytest.Times("unavailable", 15)
	if got := deliverytest.Classes(errs); got != want || len(asked(f)) != 2 {
		t.Errorf("got %s in %d requests", got, len(asked(f)))
	}
}

func TestSilence(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	f := startFake(t, func(int, sent) awstest.Said { <-gone; return awstest.Said{} })
	t.Cleanup(func() { close(gone) }) // before the server is closed
	cfg := fakeConfig(f, "orders")
	cfg.RequestTimeout = 50 * time.Millisecond
	err := deliverytest.Open(t, New, cfg).Deliver(awstest.Context(t), awstest.Event(1, `{}`))
	if deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), "request_timeout of 50ms") {
		t.Error(err)
	}
}

// TestQueueByName: what can go wrong while its URL is asked for is never the
// event's fault.
func TestQueueByName(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]awstest.Said{
		"denied": awstest.Problem(403, "AccessDenied", ""), "invalid": awstest.Problem(400, "InvalidParameterValue", ""),
		"unknown": awstest.Problem(400, "SomethingNew", ""), "no URL": {Body: `{}`},
	} {
		f := startFake(t, func(int, sent) awstest.Said { return a })
		cfg := config(f.URL)
		cfg.Queue = "orders"
		errs := deliverytest.Open(t, New, cfg).DeliverBatch(awstest.Context(t), awstest.Events(2))
		if deliverytest.Classes(errs) != deliverytest.Times("unavailable", 2) || len(asked(f)) != 1 || asked(f)[0].operation != "GetQueueUrl" {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

// TestNoCredentials cannot run in parallel: it sets the environment.
func TestNoCredentials(t *testing.T) {
	f := startFake(t, func(_ int, s sent) awstest.Said { return taken(s, nil) })
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Setenv("AWS_CONFIG_FILE", write("config",
		"[profile program]\ncredential_process = echo sesame-open\n[profile good]\nregion = eu-west-1\naws_access_key_id = AK\naws_secret_access_key = sesame-open\n"))
	sts := startFakeSTS(t)
	t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
	for name, c := range map[string]struct {
		change      func(*Config)
		class, text string
	}{
		"nothing": {func(*Config) {}, "unavailable", "credentials"},
		"program": {func(c *Config) { c.Profile = "program" }, "unavailable", "credential_process"},
		"profile": {func(c *Config) { c.Profile, c.Region = "good", "" }, "delivered", ""},
		"role":    {func(c *Config) { c.Profile, c.AssumeRoleARN = "good", "arn:aws:iam::123456789012:role/ok" }, "delivered", ""},
		"no role": {func(c *Config) { c.Profile, c.AssumeRoleARN = "good", "arn:aws:iam::123456789012:role/no" }, "unavailable", "STS AssumeRole: AccessDenied: not you (check profile, assume_role_arn"},
		"role, new": {func(c *Config) {
			c.Profile, c.AssumeRoleARN, c.ExternalID = "good", "arn:aws:iam::123456789012:role/odd", handlers.NewSecret("sesame")
		}, "unavailable", "ValidationError"},
	} {
		cfg := fakeConfig(f, "orders")
		cfg.AccessKeyID, cfg.SecretAccessKey = "", handlers.Secret{}
		c.change(&cfg)
		err := deliverytest.Open(t, New, cfg).Deliver(awstest.Context(t), awstest.Event(1, `{}`))
		if deliverytest.Class(err) != c.class || err != nil && (!strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "sesame")) {
			t.Errorf("%s: %s, want %s: %v", name, deliverytest.Class(err), c.class, err)
		}
	}

	cfg := fakeConfig(f, "orders")
	cfg.AccessKeyID, cfg.SecretAccessKey, cfg.Profile = "", handlers.Secret{}, "nowhere"
	if _, err := New(cfg); field.Path(err) != "profile" {
		t.Errorf("profile: %v", err)
	}
	cfg = config("")
	cfg.Queue, cfg.Region = "orders", ""
	if _, err := New(cfg); field.Path(err) != "region" {
		t.Errorf("region: %v", err)
	}
	cfg.Region = "eu-central-1"
	t.Setenv("AWS_CONFIG_FILE", write("bad", "[profile x\naws_secret_access_key sesame"))
	if _, err := New(cfg); err != nil && strings.Contains(err.Error(), "sesame") {
		t.Error(err)
	}
}

func TestClosed(t *testing.T) {
	t.Parallel()
	cfg := config("")
	cfg.Queue = "orders"
	h := deliverytest.Open(t, New, cfg)
	for range 2 {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, err := range h.DeliverBatch(t.Context(), awstest.Events(2)) {
		if !errors.Is(err, outcome.ErrClosed) {
			t.Error(err)
		}
	}
}

func TestDoneContext(t *testing.T) {
	t.Parallel()
	cfg := config("")
	cfg.Queue = "orders"
	cause := errors.New("stopping")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := deliverytest.Open(t, New, cfg).Deliver(ctx, awstest.Event(1, `{}`)); !errors.Is(err, cause) || deliverytest.Class(err) != "retry" {
		t.Error(err)
	}
}
