//go:build testall

package sqs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// odd returns an event that is not JSON, with many headers, and one that is and claims to be in base64.
func odd() (raw, forged *delivery.Event) {
	raw, forged = awstest.Event(42, "\x00\xff"), awstest.Event(42, `{}`)
	raw.ContentType, forged.ContentType = "avro/binary", "application/vnd.acme+json"
	forged.Headers["Content-Transfer-Encoding"] = "base64"
	for i := range 9 {
		raw.Headers[fmt.Sprintf("h%d", i)] = "x"
	}
	return raw, forged
}

// TestMessage compares the message with the event.
func TestMessage(t *testing.T) {
	t.Parallel()
	endpoint := testenv.SQS(t)
	e := awstest.Event(42, `{"a":  1}`)
	e.Headers = map[string]string{"traceparent": "00-1", "tenant": "acme", "b": "2", "empty": "", "odd name": "x\ufffe\x01", "notifyd-id": "7"}
	many := awstest.Event(43, `{}`)
	for i := range 9 {
		many.Headers[fmt.Sprintf("h%d", i)] = "x"
	}
	raw, forged := odd()
	ours := map[string]string{
		"notifyd-id": "42", "notifyd-type": "order.created", "notifyd-aggregate-type": "order",
		"notifyd-aggregate-id": "A-7", "notifyd-time": "2026-03-04T05:06:07Z",
	}
	with := func(more map[string]string) map[string]string {
		all := maps.Clone(ours)
		maps.Copy(all, more)
		return all
	}
	for name, c := range map[string]struct {
		format handlers.Format
		event  *delivery.Event
		body   string
		want   map[string]string
		more   map[string]string
	}{
		"payload": {
			handlers.FormatPayload, e, `{"a":  1}`, with(map[string]string{"traceparent": "00-1", "b": "2", "tenant": "acme"}),
			map[string]string{"empty": "", "odd name": "x\ufffe\x01"},
		},
		"many headers": {
			handlers.FormatPayload, many, `{}`, with(map[string]string{"notifyd-id": "43", "h0": "x", "h1": "x", "h2": "x", "h3": "x"}),
			map[string]string{"h4": "x", "h5": "x", "h6": "x", "h7": "x", "h8": "x", "tenant": "acme"},
		},
		"binary": {
			handlers.FormatCloudEventsBinary, awstest.Event(42, `{}`), `{}`, map[string]string{
				"ce_specversion": "1.0", "ce_id": "42", "ce_source": "/notifyd", "ce_type": "order.created", "ce_subject": "A-7",
				"ce_time": "2026-03-04T05:06:07Z", "ce_partitionkey": "A-7", "ce_aggregatetype": "order", "tenant": "acme",
			}, nil,
		},
		"bytes": {
			handlers.FormatPayload, raw, "AP8=", with(map[string]string{"content-type": "avro/binary", "content-transfer-encoding": "base64", "h0": "x", "h1": "x"}),
			map[string]string{"h2": "x", "h3": "x", "h4": "x", "h5": "x", "h6": "x", "h7": "x", "h8": "x", "tenant": "acme"},
		},
		"bytes called JSON": {
			handlers.FormatPayload, forged, `{}`, with(map[string]string{"content-type": "application/vnd.acme+json", "tenant": "acme"}), nil,
		},
		"structured": {
			handlers.FormatCloudEventsStructured, awstest.Event(42, `{}`), "", map[string]string{"content-type": "application/cloudevents+json", "tenant": "acme"}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := awstest.NewQueue(t, endpoint, "", nil)
			cfg := config(endpoint)
			cfg.QueueURL, cfg.Format = q.URL, c.format
			if err := deliverytest.Open(t, New, cfg).Deliver(awstest.Context(t), c.event); err != nil {
				t.Fatal(err)
			}
			got := q.Messages(t)
			if len(got) != 1 || c.body != "" && aws.ToString(got[0].Body) != c.body {
				t.Fatalf("got %v", got)
			}
			attributes := make(map[string]string)
			for name, a := range got[0].MessageAttributes {
				attributes[name] = aws.ToString(a.StringValue)
			}
			var more map[string]string
			if text, ok := attributes["notifyd-headers"]; ok {
				delete(attributes, "notifyd-headers")
				if err := json.Unmarshal([]byte(text), &more); err != nil {
					t.Fatal(err)
				}
			}
			if !maps.Equal(attributes, c.want) || !maps.Equal(more, c.more) {
				t.Errorf("got  %v and %q\nwant %v and %q", attributes, more, c.want, c.more)
			}
		})
	}
}

// TestFIFO: groups, deduplication, and order over several requests.
func TestFIFO(t *testing.T) {
	t.Parallel()
	endpoint := testenv.SQS(t)
	q := awstest.NewQueue(t, endpoint, fifoSuffix, nil)
	cfg := config(endpoint)
	cfg.Queue = q.Name
	h := deliverytest.Open(t, New, cfg)
	all := awstest.Events(35)
	all[3].AggregateID, all[4].AggregateID = "", "Ä 7"
	other := *all[0] // of another outbox that shares the queue
	other.CreatedAt = other.CreatedAt.Add(1000)
	for _, batch := range [][]*delivery.Event{all, all, {&other}} { // the second time they are duplicates
		if errs := h.DeliverBatch(awstest.Context(t), batch); slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
			t.Fatal(errs)
		}
	}
	groups := make(map[string]int)
	last := int64(0)
	for i, m := range q.Messages(t) {
		group := m.Attributes["MessageGroupId"]
		groups[group]++
		var id int64
		if _, err := fmt.Sscan(aws.ToString(m.MessageAttributes["notifyd-id"].StringValue), &id); err != nil {
			t.Fatal(err)
		}
		if group == "A-7" && i < 35 {
			if id < last {
				t.Errorf("%d after %d", id, last)
			}
			last = id
		}
		if d := m.Attributes["MessageDeduplicationId"]; !strings.HasPrefix(d, fmt.Sprint(id)+".") || !strings.HasSuffix(d, ".orders") {
			t.Errorf("deduplication id %q", d)
		}
	}
	sum := sha256.Sum256([]byte("Ä 7")) // a group that SQS does not take
	want := map[string]int{"A-7": 34, "order.created": 1, "sha256:" + hex.EncodeToString(sum[:]): 1}
	if !maps.Equal(groups, want) {
		t.Errorf("groups %v, want %v", groups, want)
	}
}

// TestSizes: what does not fit into one request together is sent in several,
// and what is too large fails alone.
func TestSizes(t *testing.T) {
	t.Parallel()
	endpoint := testenv.SQS(t)
	q := awstest.NewQueue(t, endpoint, "", nil)
	cfg := config(endpoint)
	cfg.QueueURL = q.URL
	h := deliverytest.Open(t, New, cfg)
	all := awstest.Events(12)
	for i, size := range map[int]int{0: 400_000, 1: 400_000, 2: 400_000, 3: maxBytes, 4: 1_000_000, 7: 600_000, 8: 600_000} {
		all[i].Payload = json.RawMessage(`"` + strings.Repeat("x", size-2) + `"`)
	}
	errs := h.DeliverBatch(awstest.Context(t), all)
	if got, want := deliverytest.Classes(errs), deliverytest.Times("delivered", 3)+" permanent "+deliverytest.Times("delivered", 8); got != want {
		t.Errorf("got %s: %v", got, errs)
	}
	ids := q.IDs(t)
	slices.Sort(ids)
	if want := []int64{1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12}; !slices.Equal(ids, want) {
		t.Errorf("arrived: %v", ids)
	}
	// To the byte.
	e := awstest.Event(50, `{}`)
	entry, err := h.encoder.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	room := maxBytes - (entry.Size - len(e.Payload))
	for n, want := range map[int]string{room: "delivered", room + 1: "permanent"} {
		e.Payload = json.RawMessage(`"` + strings.Repeat("x", n-2) + `"`)
		if err := h.Deliver(awstest.Context(t), e); deliverytest.Class(err) != want {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestQueueMadeAnew: a queue by name is looked up again when it is gone.
func TestQueueMadeAnew(t *testing.T) {
	t.Parallel()
	endpoint := testenv.SQS(t)
	q := awstest.NewQueue(t, endpoint, "", nil)
	cfg := config(endpoint)
	cfg.Queue = q.Name
	h := deliverytest.Open(t, New, cfg)
	if err := h.Deliver(awstest.Context(t), awstest.Event(1, `{}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Client.DeleteQueue(awstest.Context(t), &awssqs.DeleteQueueInput{QueueUrl: aws.String(q.URL)}); err != nil {
		t.Fatal(err)
	}
	if err := h.Deliver(awstest.Context(t), awstest.Event(2, `{}`)); deliverytest.Class(err) != "unavailable" || h.queue != "" {
		t.Errorf("%v; the URL is %q", err, h.queue)
	}
	if _, err := q.Client.CreateQueue(awstest.Context(t), &awssqs.CreateQueueInput{QueueName: aws.String(q.Name)}); err != nil {
		t.Fatal(err)
	}
	if err := h.Deliver(awstest.Context(t), awstest.Event(3, `{}`)); err != nil {
		t.Error(err)
	}
}
