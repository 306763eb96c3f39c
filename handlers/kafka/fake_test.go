package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestRecordIsTheEvent(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	deliverytest.Deliver(t, open(t, c.ListenAddrs()), events(7))
	r := records(t, c.ListenAddrs(), "t", 1)[0]
	var headers []string
	for _, h := range r.Headers {
		headers = append(headers, h.Key+"="+string(h.Value))
	}
	want := []string{
		"content-type=application/json", "notifyd-id=7", "notifyd-type=order.created", "notifyd-aggregate-type=order",
		"notifyd-aggregate-id=k0", "notifyd-time=2026-11-21T10:00:00.123456Z", "tenant=a", "traceparent=00-1-2-03",
	}
	if !slices.Equal(headers, want) {
		t.Errorf("headers = %q\nwant      %q", headers, want)
	}
	if string(r.Key) != "k0" || string(r.Value) != `{"n": 7}` {
		t.Errorf("record is %q: %q", r.Key, r.Value)
	}
	if age := time.Since(r.Timestamp); age < 0 || age > patience {
		t.Errorf("the timestamp %v is not the time of writing", r.Timestamp)
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"cloudevents_binary":     `content-type=application/json ce_specversion=1.0 ce_id=7 {"n": 7}`,
		"cloudevents_structured": `content-type=application/cloudevents+json {"specversion":"1.0","id":"7"`,
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			c := fake(t, 1)
			deliverytest.Deliver(t, open(t, c.ListenAddrs(), func(cfg *Config) { cfg.Format = handlers.Format(format) }), events(7))
			r := records(t, c.ListenAddrs(), "t", 1)[0]
			var text strings.Builder
			for _, h := range r.Headers {
				if h.Key == "content-type" || h.Key == "ce_specversion" || h.Key == "ce_id" {
					fmt.Fprintf(&text, "%s=%s ", h.Key, h.Value)
				}
			}
			text.Write(r.Value)
			if !strings.HasPrefix(text.String(), want) {
				t.Errorf("got  %s\nwant %s...", &text, want)
			}
		})
	}
}

func TestTopicAndKeyOfTheEvent(t *testing.T) {
	t.Parallel()
	c := fake(t, 1, kfake.SeedTopics(1, "order-1", "order-2"))
	h := open(t, c.ListenAddrs(), func(cfg *Config) {
		cfg.Topic, cfg.Key = "{{ .Event.AggregateType }}-{{ .Payload.n }}", `{{ get .Headers "tenant" | default "" }}`
	})
	all := events(1, 2)
	all[1].Headers = nil
	deliverytest.Deliver(t, h, all)
	for i, key := range []string{"a", ""} {
		r := records(t, c.ListenAddrs(), fmt.Sprint("order-", i+1), 1)[0]
		if string(r.Key) != key || (key == "") != (r.Key == nil) {
			t.Errorf("key of event %d is %q, want %q", i+1, r.Key, key)
		}
	}
}

func TestEventsThatMakeNoRecordFailAlone(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	h := open(t, c.ListenAddrs(), func(cfg *Config) {
		cfg.Topic, cfg.MaxMessageBytes = `{{ get .Payload "topic" | default "t" }}`, 2000
	})
	all := events(deliverytest.UpTo(6)...)
	all[0].Payload = []byte(`{"n": 1, "x": "` + strings.Repeat("x", 2000) + `"}`)
	all[2].Payload = []byte(`{"topic": "sécret"}`)
	all[4].Payload = []byte(`not JSON`)
	errs := h.DeliverBatch(t.Context(), all)
	for i, want := range []string{"permanent", "delivered", "permanent", "delivered", "permanent", "delivered"} {
		deliverytest.WantClass(t, errs[i], want)
	}
	deliverytest.WantText(t, errs[0], "max_message_bytes of 2000")
	deliverytest.WantText(t, errs[2], "topic", "letters")
	if strings.Contains(errs[2].Error(), "cret") {
		t.Errorf("%v repeats the payload", errs[2])
	}
	if got := flat(written(t, c.ListenAddrs(), "t", 3)); !slices.Equal(got, []int64{2, 4, 6}) {
		t.Errorf("written: %d", got)
	}
}

// produceError answers each partition of a request with a code.
func produceError(req *kmsg.ProduceRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ProduceResponse) //nolint:forcetypeassert // a request knows its response
	for _, rt := range req.Topics {
		st := kmsg.NewProduceResponseTopic()
		st.Topic, st.TopicID = rt.Topic, rt.TopicID
		for _, rp := range rt.Partitions {
			sp := kmsg.NewProduceResponseTopicPartition()
			sp.Partition, sp.ErrorCode = rp.Partition, code
			st.Partitions = append(st.Partitions, sp)
		}
		resp.Topics = append(resp.Topics, st)
	}
	return resp
}

// TestCodes has the broker answer each produce request with a code, for ever,
// and looks at the event's error; and then that the handler recovers.
func TestCodes(t *testing.T) {
	t.Parallel()
	const retried = 1500 * time.Millisecond
	for _, c := range []struct {
		code     *kerr.Error
		want     string // with a topic that is the same for all events
		ownTopic string // with one that is made of the event, if different
		timeout  time.Duration
	}{
		{code: kerr.MessageTooLarge, want: "permanent"},
		{code: kerr.RecordListTooLarge, want: "permanent"},
		{code: kerr.InvalidRecord, want: "unclear-permanent"},
		{code: kerr.PolicyViolation, want: "unclear-retry"},
		{code: kerr.TopicAuthorizationFailed, want: "unavailable", ownTopic: "unclear-retry"},
		{code: kerr.UnknownTopicOrPartition, want: "unavailable", ownTopic: "unclear-retry", timeout: patience},
		{code: kerr.UnknownTopicID, want: "unavailable", ownTopic: "unclear-retry", timeout: patience},
		{code: kerr.ClusterAuthorizationFailed, want: "unavailable"},
		{code: kerr.InvalidTimestamp, want: "unavailable"},
		{code: kerr.UnsupportedCompressionType, want: "unavailable"},
		{code: kerr.UnknownServerError, want: "unavailable"},
		{code: kerr.InvalidRequiredAcks, want: "unavailable"},
		{code: kerr.NotEnoughReplicas, want: "unavailable", timeout: retried},
		{code: kerr.NotEnoughReplicasAfterAppend, want: "unavailable", timeout: retried},
		{code: kerr.NotLeaderForPartition, want: "unavailable", timeout: retried},
		{code: kerr.LeaderNotAvailable, want: "unavailable", timeout: retried},
		{code: kerr.RequestTimedOut, want: "unavailable", timeout: retried},
		{code: kerr.KafkaStorageError, want: "unavailable", timeout: retried},
		{code: kerr.ThrottlingQuotaExceeded, want: "unavailable", timeout: retried},
		{code: kerr.OutOfOrderSequenceNumber, want: "unavailable", timeout: retried},
		{code: kerr.UnknownProducerID, want: "unavailable", timeout: retried},
		{code: kerr.InvalidProducerEpoch, want: "unavailable", timeout: retried},
		{code: kerr.ProducerFenced, want: "unavailable"},
	} {
		for _, topic := range []string{"t", `{{ "t" }}`} {
			t.Run(c.code.Message+" "+topic, func(t *testing.T) {
				t.Parallel()
				cluster := fake(t, 1)
				var broken atomic.Bool
				broken.Store(true)
				onProduce(cluster, func(req *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
					return produceError(req, c.code.Code), nil, broken.Load()
				})
				h := open(t, cluster.ListenAddrs(), func(cfg *Config) {
					cfg.Topic = topic
					if c.timeout != 0 {
						cfg.DeliveryTimeout = c.timeout
					}
				})
				want := c.want
				if topic != "t" && c.ownTopic != "" {
					want = c.ownTopic
				}
				for i, err := range h.DeliverBatch(t.Context(), events(1, 2)) {
					if got := deliverytest.Class(err); got != want {
						t.Errorf("event %d: %v is %s, want %s", i+1, err, got, want)
					}
				}
				broken.Store(false)
				isRemembered := topic != "t" && c.ownTopic != ""
				if c.timeout == retried || isRemembered { // too short for a busy machine
					settle(t, h, events(3)[0], want)
				} else if err := h.Deliver(t.Context(), events(3)[0]); err != nil {
					t.Errorf("after the trouble: %v", err)
				}
			})
		}
	}
}

// TestRefusedRecordFailsAlone has the broker refuse each request in which a
// certain record is, with all other records in it.
func TestRefusedRecordFailsAlone(t *testing.T) {
	t.Parallel()
	for _, transactional := range []bool{false, true} {
		t.Run(fmt.Sprint("transactional=", transactional), func(t *testing.T) {
			t.Parallel()
			c := fake(t, 2)
			onProduce(c, func(req *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
				for _, rt := range req.Topics {
					for _, rp := range rt.Partitions {
						if strings.Contains(string(rp.Records), `"poison"`) {
							return produceError(req, kerr.InvalidRecord.Code), nil, true
						}
					}
				}
				return nil, nil, false
			})
			h := open(t, c.ListenAddrs(), func(cfg *Config) { cfg.Transactional = transactional })
			all := events(deliverytest.UpTo(100)...)
			poisoned := map[int]bool{0: true, 41: true, 99: true}
			for i := range poisoned {
				all[i].Payload = []byte(`{"poison": true}`)
			}
			errs := h.DeliverBatch(delivery.WithCall(t.Context(), delivery.Call{Unordered: true}), all)
			for i, err := range errs {
				want := "delivered"
				if poisoned[i] {
					want = "unclear-permanent"
				}
				deliverytest.WantClass(t, err, want)
			}
			// No consumer may read the records of an aborted transaction.
			inOrderOnce(t, written(t, c.ListenAddrs(), "t", 97, kgo.FetchIsolationLevel(kgo.ReadCommitted())), 97)
		})
	}
}

// TestRefusedRecordHoldsUpItsAggregate: a refusal of the broker is not final, so no event of the aggregate goes before it.
func TestRefusedRecordHoldsUpItsAggregate(t *testing.T) {
	t.Parallel()
	for _, transactional := range []bool{false, true} {
		t.Run(fmt.Sprint("transactional=", transactional), func(t *testing.T) {
			t.Parallel()
			brokers := testenv.Kafka(t)
			topic := newTopic(t, brokers, 1, map[string]string{"cleanup.policy": "compact"})
			h := open(t, brokers, to(topic), func(cfg *Config) {
				cfg.Transactional = transactional
			})
			all := events(deliverytest.UpTo(6)...)
			for i, e := range all {
				e.AggregateID = fmt.Sprint("k", i%2)
			}
			all[2].AggregateID = ""
			deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), all), "delivered delivered unclear-permanent delivered delivered delivered") //nolint:dupword // answers
			total := delivery.WithCall(t.Context(), delivery.Call{TotalOrder: true})
			deliverytest.WantClasses(t, h.DeliverBatch(total, all[2:]), "unclear-permanent unavailable unavailable unavailable") //nolint:dupword // answers
		})
	}
}

// inOrderOnce checks that n ids are there, each once, and in order within each
// partition.
func inOrderOnce(t *testing.T, byPartition map[int32][]int64, n int) {
	t.Helper()
	all := flat(byPartition)
	if len(all) != n || len(slices.Compact(all)) != n {
		t.Errorf("%d records, %d different ones; want %d", len(flat(byPartition)), len(all), n)
	}
	for p, ids := range byPartition {
		if !slices.IsSorted(ids) {
			t.Errorf("partition %d is out of order: %d", p, ids)
		}
	}
}

// TestLaterRecordsDoNotOvertake has one partition fail once for good: none of its
// records may be written by this batch, and those of the other must be.
func TestLaterRecordsDoNotOvertake(t *testing.T) {
	t.Parallel()
	c := fake(t, 2)
	var failing atomic.Int32
	const armed, unarmed = -1, -2
	failing.Store(unarmed)
	onProduce(c, func(req *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if len(req.Topics) == 1 && len(req.Topics[0].Partitions) > 0 && failing.CompareAndSwap(armed, req.Topics[0].Partitions[0].Partition) {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Partitions: []int32{failing.Load()}, Err: kerr.UnknownServerError})
		}
		return nil, nil, false
	})
	// Many small batches, so that there are several requests, were they pipelined.
	h := open(t, c.ListenAddrs(), func(cfg *Config) { cfg.MaxMessageBytes = 1024 })
	all := events(deliverytest.UpTo(300)...)
	deliverytest.Deliver(t, h, all[:1]) // of a topic that it does not know, the first one goes alone
	failing.Store(armed)
	errs := h.DeliverBatch(t.Context(), all[1:])
	var failed []int64
	for i, err := range errs {
		if err != nil {
			deliverytest.WantClass(t, err, "unavailable")
			failed = append(failed, all[1+i].ID)
		}
	}
	if len(failed) == 0 || len(failed) == len(all)-1 {
		t.Fatalf("%d of %d events failed, want those of one partition", len(failed), len(all))
	}
	got := written(t, c.ListenAddrs(), "t", len(all)-len(failed))
	for _, id := range got[failing.Load()] {
		if id > failed[0] {
			t.Fatalf("event %d overtook %d, which failed", id, failed[0])
		}
	}
	deliverytest.Deliver(t, h, events(failed...))
	inOrderOnce(t, written(t, c.ListenAddrs(), "t", len(all)), len(all))
}

func TestUnknownTopic(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	h := open(t, c.ListenAddrs(), func(cfg *Config) { cfg.Topic = "later" })
	err := h.Deliver(t.Context(), events(1)[0])
	deliverytest.WantClass(t, err, "unavailable")
	deliverytest.WantText(t, err, "later", "create the topic")
	if err := c.CreateTopic("later", 1, nil); err != nil {
		t.Fatal(err)
	}
	deliverytest.Deliver(t, h, events(2))
}

func TestUnknownTopicOfOneEvent(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	h := open(t, c.ListenAddrs(), func(cfg *Config) { cfg.Topic = `{{ get .Payload "topic" | default "t" }}` })
	all := events(1, 2, 3)
	all[1].Payload = []byte(`{"topic": "s3cret"}`)
	errs := h.DeliverBatch(t.Context(), all)
	for i, want := range []string{"delivered", "unclear-retry", "delivered"} {
		deliverytest.WantClass(t, errs[i], want)
	}
	if errs[1] != nil && strings.Contains(errs[1].Error(), "s3cret") {
		t.Errorf("%v repeats the payload", errs[1])
	}
}

// asksFor counts the requests for the metadata of a topic.
func asksFor(c *kfake.Cluster, topic string) *atomic.Int32 {
	var asked atomic.Int32
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, one := range req.(*kmsg.MetadataRequest).Topics { //nolint:forcetypeassert // by its key
			if one.Topic != nil && *one.Topic == topic {
				asked.Add(1)
			}
		}
		return nil, nil, false
	})
	return &asked
}

// TestMissingTopicHoldsUpNoOther: an event whose topic is missing costs the batch at most one request. The client itself never
// learns of the topic: it would ask again and again, for seconds, while the other events of the batch wait.
func TestMissingTopicHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"plain":         func(*Config) {},
		"transactional": func(c *Config) { c.Transactional = true },
		"exactly once":  func(c *Config) { c.ExactlyOnce, c.TransactionalID = true, "unit" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fake(t, 1)
			asked := asksFor(c, "missing")
			h := open(t, c.ListenAddrs(), change, func(cfg *Config) { cfg.Topic = `{{ get .Payload "topic" | default "t" }}` })
			if h.cfg.ExactlyOnce {
				begin(t, h, "")
			}
			const batches = 3
			for n := range int64(batches) {
				all := events(3*n+1, 3*n+2, 3*n+3)
				all[1].Payload = []byte(`{"topic": "missing"}`)
				deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), all), "delivered unclear-retry delivered")
			}
			if n := asked.Load(); n == 0 || n > batches {
				t.Errorf("the cluster was asked for the topic %d times in %d batches", n, batches)
			}
			if got := flat(written(t, c.ListenAddrs(), "t", 2*batches, readCommitted())); !slices.Equal(got, []int64{1, 3, 4, 6, 7, 9}) {
				t.Errorf("written: %d", got)
			}

			if err := c.CreateTopic("missing", 1, nil); err != nil {
				t.Fatal(err)
			}
			last := events(10)[0]
			last.Payload = []byte(`{"n": 10, "topic": "missing"}`)
			settle(t, h, last, "unclear-retry")
		})
	}
}

// TestMissingTopicThatIsNotMade: where the broker may make topics, the client waits for one that is missing, once.
func TestMissingTopicThatIsNotMade(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	asked := asksFor(c, "missing")
	h := open(t, c.ListenAddrs(), func(cfg *Config) {
		cfg.Topic, cfg.AllowAutoTopicCreation = `{{ get .Payload "topic" | default "t" }}`, true
	})
	bad := events(1)
	bad[0].Payload = []byte(`{"topic": "missing"}`)
	deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), bad), "unclear-retry")
	before := asked.Load()
	h.refused.known["missing"] = refusedTopic{err: kerr.UnknownTopicOrPartition} // its time is over
	all := slices.Concat(bad, events(2))
	deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), all), "unclear-retry delivered")
	const waits = 5 // requests of a client that waits for a topic
	if n := asked.Load() - before; n >= waits {
		t.Errorf("the cluster was asked for the topic %d times more", n)
	}
}

// TestRefusedTopicsAreBounded: a template may make another topic of each event.
func TestRefusedTopicsAreBounded(t *testing.T) {
	t.Parallel()
	var k refusedTopics
	now := time.Now()
	for i := range 3 * maxRefused {
		k.note(fmt.Sprint(i), kerr.UnknownTopicOrPartition, now)
	}
	if n := len(k.known); n != maxRefused {
		t.Errorf("%d topics are remembered, want %d", n, maxRefused)
	}
	k.note("new", kerr.UnknownTopicOrPartition, now.Add(refusedFor))
	if n := len(k.known); n != 1 || k.get("new").err == nil {
		t.Errorf("%d topics are remembered after their time", n)
	}
	k.note("new", nil, now)
	if k.get("new").err != nil {
		t.Error("a topic that exists is still refused")
	}
}

func TestAutoTopicCreation(t *testing.T) {
	t.Parallel()
	c := fake(t, 1, kfake.AllowAutoTopicCreation())
	h := open(t, c.ListenAddrs(), func(cfg *Config) { cfg.Topic = "new" })
	deliverytest.WantClass(t, h.Deliver(t.Context(), events(1)[0]), "unavailable")
	h = open(t, c.ListenAddrs(), func(cfg *Config) { cfg.Topic, cfg.AllowAutoTopicCreation = "new", true })
	deliverytest.Deliver(t, h, events(2))
}

func TestTopicDeletedAndMadeAgain(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	h := open(t, c.ListenAddrs())
	deliverytest.Deliver(t, h, events(1))
	if err := c.DeleteTopic("t"); err != nil {
		t.Fatal(err)
	}
	if err := c.CreateTopic("t", 1, nil); err != nil {
		t.Fatal(err)
	}
	for tries := 1; ; tries++ {
		err := h.Deliver(t.Context(), events(2)[0])
		if err == nil {
			break
		}
		if tries == 3 {
			t.Fatalf("still: %v", err)
		}
		deliverytest.WantClass(t, err, "unavailable")
	}
	if got := flat(written(t, c.ListenAddrs(), "t", 1)); !slices.Equal(got, []int64{2}) {
		t.Errorf("written: %d", got)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	h := open(t, c.ListenAddrs())
	deliverytest.Deliver(t, h, events(1))
	asked, _ := silence(t, c)
	done := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- h.Deliver(ctx, events(2)[0]) }()
	<-asked
	for range 2 {
		if err := h.Close(); err != nil { // does not wait
			t.Error(err)
		}
	}
	if err := h.Deliver(t.Context(), events(3)[0]); err == nil {
		t.Error("a closed handler delivers")
	}
	cancel()
	deliverytest.WantClass(t, <-done, "relay")
}

func TestBatchesAtOnce(t *testing.T) {
	t.Parallel()
	c := fake(t, 3)
	h := open(t, c.ListenAddrs())
	const workers, each = 4, 50
	done := make(chan []error, workers)
	for w := range int64(workers) {
		go func() {
			var ids []int64
			for i := range int64(each) {
				ids = append(ids, w*each+i)
			}
			done <- h.DeliverBatch(t.Context(), events(ids...))
		}()
	}
	for range workers {
		if errs := <-done; errs != nil {
			t.Error(errs)
		}
	}
	if got := flat(written(t, c.ListenAddrs(), "t", workers*each)); len(got) != workers*each || len(slices.Compact(got)) != workers*each {
		t.Errorf("%d records", len(got))
	}
}

// BenchmarkRecord is the making of one record.
func BenchmarkRecord(b *testing.B) {
	e, err := newEncoder(Config{Brokers: []string{"a"}, Topic: "t"}.WithDefaults())
	if err != nil {
		b.Fatal(err)
	}
	all := events(deliverytest.UpTo(1000)...)
	for _, ev := range all {
		ev.Headers = nil
	}
	var s scratch
	var r kgo.Record
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%len(all) == 0 {
			s.reset()
		}
		if err := e.record(&r, all[i%len(all)], &s, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCommitToNewTopics: a transaction whose topics are new to the client is committed. The client answers records
// to a new topic before it has stored the partitions of the topic, and aborts, without an error, a transaction for
// which it has stored none.
func TestCommitToNewTopics(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const each, at = 300, 4 // the client has a few microseconds in which to be too early
	topics := make([]string, each*at)
	for i := range topics {
		topics[i] = fmt.Sprint("new-", i+1)
	}
	c := fake(t, 1, kfake.SeedTopics(1, topics...))
	var aborted atomic.Int64
	c.ControlKey(int16(kmsg.EndTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if end, ok := req.(*kmsg.EndTxnRequest); !ok || !end.Commit {
			aborted.Add(1)
		}
		return nil, nil, false
	})
	var wg sync.WaitGroup
	for k := range at {
		h := open(t, c.ListenAddrs(), func(cfg *Config) { cfg.Transactional, cfg.Topic = true, "new-{{ .Event.ID }}" })
		wg.Go(func() {
			for i := range each {
				for _, err := range h.DeliverBatch(t.Context(), events(int64(k*each+i+1))) {
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := aborted.Load(); n > 0 {
		t.Errorf("%d of %d transactions were aborted, and their events counted as delivered", n, len(topics))
	}
}
