package sqs

import (
	"cmp"
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/secret"
	"github.com/notifyd/notifyd/internal/testenv"
)

// TestMain keeps the tests away from whatever AWS this machine knows.
func TestMain(m *testing.M) {
	for _, name := range os.Environ() {
		if name, _, _ = strings.Cut(name, "="); strings.HasPrefix(name, "AWS_") {
			_ = os.Unsetenv(name)
		}
	}
	for name, value := range map[string]string{
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_EC2_METADATA_DISABLED": "true",
	} {
		_ = os.Setenv(name, value)
	}
	testenv.Main(m)
}

// patience bounds a test that waits for something that must happen.
const patience = 2 * time.Minute

// testSecret belongs to no account.
const testSecret = "correct/horse+battery/staple0123456789ab"

func event(id int64, payload string) *delivery.Event {
	return &delivery.Event{
		ID: id, Type: "order.created", AggregateType: "order", AggregateID: "A-7", Payload: json.RawMessage(payload),
		Headers: map[string]string{"tenant": "acme"}, CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Attempt: 1, Destination: "orders",
	}
}

// events makes events of one aggregate, with the ids 1 to n.
func events(n int) []*delivery.Event {
	all := make([]*delivery.Event, n)
	for i := range all {
		all[i] = event(int64(i)+1, fmt.Sprintf(`{"n": %d}`, i))
	}
	return all
}

// config is a complete configuration but for the queue.
func config(endpoint string) Config {
	return Config{
		Endpoint: endpoint, Region: "eu-central-1", AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: secret.New(testSecret),
	}
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

func testContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// class names the dispatcher's class of err.
func class(err error) string {
	switch {
	case err == nil:
		return "delivered"
	case delivery.IsPermanent(err):
		return "permanent"
	case delivery.IsUnavailable(err):
		return "unavailable"
	case delivery.IsThrottled(err):
		return "throttled"
	default:
		return "retry"
	}
}

func classes(errs []error) string {
	var all []string
	for _, err := range errs {
		all = append(all, class(err))
	}
	return strings.Join(all, " ")
}

// times repeats a word of classes.
func times(word string, n int) string {
	return strings.TrimSpace(strings.Repeat(word+" ", n))
}

// queue is a queue of the emulator.
type queue struct {
	client *awssqs.Client
	name   string
	url    string

	mu  sync.Mutex
	got []types.Message // in the order of arrival
}

var queues atomic.Int64

// newQueue makes a queue; the suffix is "" or ".fifo".
func newQueue(tb testing.TB, endpoint, suffix string, attributes map[string]string) *queue {
	tb.Helper()
	q := &queue{name: fmt.Sprintf("t-%d-%d%s", os.Getpid(), queues.Add(1), suffix)}
	cfg := config(endpoint).WithDefaults()
	client, transport, err := newClient(cfg, nil)
	if err != nil {
		tb.Fatal(err)
	}
	// Its connections are made within tests that look for connections left behind.
	transport.DisableKeepAlives = true
	q.client = client
	if attributes == nil {
		attributes = make(map[string]string)
	}
	if suffix == fifoSuffix {
		attributes["FifoQueue"] = "true"
	}
	out, err := client.CreateQueue(testContext(tb), &awssqs.CreateQueueInput{QueueName: aws.String(q.name), Attributes: attributes})
	if err != nil {
		tb.Fatal(err)
	}
	q.url = aws.ToString(out.QueueUrl)
	return q
}

// messages empties the queue, and returns all messages so far.
func (q *queue) messages(tb testing.TB) []types.Message {
	tb.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	defer cancel()
	for {
		out, err := q.client.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
			QueueUrl: aws.String(q.url), MaxNumberOfMessages: 10, MessageAttributeNames: []string{"All"},
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		})
		if err != nil {
			tb.Fatal(err)
		}
		if len(out.Messages) == 0 {
			return q.got
		}
		for _, m := range out.Messages {
			q.got = append(q.got, m)
			if _, err := q.client.DeleteMessage(ctx, &awssqs.DeleteMessageInput{QueueUrl: aws.String(q.url), ReceiptHandle: m.ReceiptHandle}); err != nil {
				tb.Fatal(err)
			}
		}
	}
}

// ids returns the ids of all events that have arrived.
func (q *queue) ids(tb testing.TB) []int64 {
	tb.Helper()
	var ids []int64
	for _, m := range q.messages(tb) {
		id, err := strconv.ParseInt(aws.ToString(m.MessageAttributes["notifyd-id"].StringValue), 10, 64)
		if err != nil {
			tb.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// message returns what has arrived of an event, as a consumer decodes it.
func (q *queue) message(tb testing.TB, id int64) (body []byte, contentType string) {
	tb.Helper()
	attribute := func(m types.Message, name string) string { return aws.ToString(m.MessageAttributes[name].StringValue) }
	for _, m := range q.messages(tb) {
		if attribute(m, "notifyd-id") != strconv.FormatInt(id, 10) {
			continue
		}
		body, contentType = []byte(aws.ToString(m.Body)), cmp.Or(attribute(m, "content-type"), "application/json")
		if attribute(m, "content-transfer-encoding") == "base64" {
			var err error
			if body, err = base64.StdEncoding.DecodeString(string(body)); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return body, contentType
}

// sent is a request to the fake, as far as tests check it.
type sent struct {
	operation string
	Entries   []struct{ ID, MessageBody, MessageGroupID, MessageDeduplicationID string }
}

// said is an answer of the fake.
type said struct {
	status int
	body   string
	header map[string]string
}

// fake is an SQS that answers as a test says.
type fake struct {
	*httptest.Server
	mu       sync.Mutex
	requests []sent
}

// startFake starts a server that answers what answer returns. The nth request
// is number 0.
func startFake(tb testing.TB, answer func(n int, s sent) said) *fake {
	tb.Helper()
	f := &fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := sent{operation: strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.")}
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.mu.Lock()
		n := len(f.requests)
		f.requests = append(f.requests, s)
		f.mu.Unlock()
		a := answer(n, s)
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		for name, value := range a.header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(max(a.status, http.StatusOK))
		_, _ = io.WriteString(w, a.body)
	}))
	tb.Cleanup(f.Close)
	return f
}

func (f *fake) asked() []sent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests
}

// taken is the answer to a request whose messages are all taken but for those
// of failed, by number of the entry.
func taken(s sent, failed map[int]string) said {
	var ok, bad []string
	for i, e := range s.Entries {
		if failure := failed[i]; failure != "" {
			bad = append(bad, fmt.Sprintf(`{"Id":%q,%s}`, e.ID, failure))
			continue
		}
		ok = append(ok, fmt.Sprintf(`{"Id":%q,"MessageId":"m","MD5OfMessageBody":%q}`, e.ID, md5Of(e.MessageBody)))
	}
	return said{body: fmt.Sprintf(`{"Successful":[%s],"Failed":[%s]}`, strings.Join(ok, ","), strings.Join(bad, ","))}
}

// problem is the answer to a request that is refused.
func problem(status int, code, text string) said {
	body, err := json.Marshal(map[string]string{"__type": "com.amazonaws.sqs#" + code, "message": text})
	if err != nil {
		panic(err)
	}
	return said{status: status, body: string(body)}
}

// fakeConfig is a configuration for the fake, with a queue by URL.
func fakeConfig(f *fake, name string) Config {
	cfg := config(f.URL)
	cfg.QueueURL = f.URL + "/123456789012/" + name
	return cfg
}

func md5Of(s string) string {
	sum := md5.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}
