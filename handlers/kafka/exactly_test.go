package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// counter is a delivery.Progress: the position is the ids that were committed.
type counter struct {
	all, with []string
}

func (c *counter) With(events []*delivery.Event) []byte {
	c.with = nil
	for _, e := range events {
		c.with = append(c.with, fmt.Sprint(e.ID))
	}
	return []byte(strings.Join(slices.Concat(c.all, c.with), " "))
}

func (c *counter) Committed() { c.all = append(c.all, c.with...) }

// exactlyTo makes a handler that keeps its position, in a topic of the test.
func exactlyTo(t *testing.T, brokers []string, topic string, change ...func(*Config)) *Handler {
	t.Helper()
	return open(t, brokers, append(change, func(c *Config) {
		c.Topic, c.ExactlyOnce, c.TransactionalID, c.PositionsTopic = topic, true, "txn-"+topic, "positions-"+topic
	})...)
}

// begin opens the position, and checks it.
func begin(t *testing.T, h *Handler, want string) {
	t.Helper()
	c := &counter{}
	got, err := h.OpenPosition(t.Context(), "unit", c)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("the position is %q, want %q", got, want)
	}
	c.all = strings.Fields(string(got))
}

// onKafka runs a test on Apache Kafka.
func onKafka(t *testing.T, f func(t *testing.T, brokers []string, topic string)) {
	t.Helper()
	brokers := testenv.Kafka(t)
	f(t, brokers, newTopic(t, brokers, 3, nil))
}

func readCommitted() kgo.Opt { return kgo.FetchIsolationLevel(kgo.ReadCommitted()) }

// TestExactlyOnce: what one owner has committed, the next one finds, and what an earlier one has
// begun is not committed any more. It runs on Apache Kafka alone: after a late batch of a fenced
// producer the broker in this process at times never moves its last stable offset again.
func TestExactlyOnce(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	topic := newTopic(t, brokers, 3, nil)
	first, second := exactlyTo(t, brokers, topic), exactlyTo(t, brokers, topic)
	wantReopen(t, first.DeliverBatch(t.Context(), events(1)))
	begin(t, first, "")
	deliverytest.Deliver(t, first, events(1, 2))
	deliverytest.Deliver(t, first, events(3))
	begin(t, second, "1 2 3")
	wantReopen(t, first.DeliverBatch(t.Context(), events(4))) // it wakes late
	wantReopen(t, first.DeliverBatch(t.Context(), events(4)))
	deliverytest.Deliver(t, second, events(4))
	begin(t, first, "1 2 3 4") // and comes back
	wantReopen(t, second.DeliverBatch(t.Context(), events(5)))
	deliverytest.Deliver(t, first, events(5))
	begin(t, first, "1 2 3 4 5") // its own client is not in its way
	if got := flat(written(t, brokers, topic, 5, readCommitted())); !slices.Equal(got, deliverytest.UpTo(5)) {
		t.Errorf("%v are written", got)
	}
}

// TestExactlyOnceShards: the shards of a destination have one handler, and each a position and a client of its own.
func TestExactlyOnceShards(t *testing.T) {
	t.Parallel()
	onKafka(t, func(t *testing.T, brokers []string, topic string) {
		t.Helper()
		h := exactlyTo(t, brokers, topic)
		shards := []context.Context{t.Context(), delivery.WithCall(t.Context(), delivery.Call{Shard: 1})}
		open := func(shard int, want string) {
			t.Helper()
			c := &counter{}
			got, err := h.OpenPosition(shards[shard], fmt.Sprint("unit/", shard), c)
			if err != nil || string(got) != want {
				t.Fatalf("the position of shard %d is %q, want %q: %v", shard, got, want, err)
			}
			c.all = strings.Fields(want)
		}
		deliver := func(shard int, ids ...int64) {
			t.Helper()
			for _, err := range h.DeliverBatch(shards[shard], events(ids...)) {
				if err != nil {
					t.Errorf("shard %d: %v", shard, err)
				}
			}
		}
		open(0, "")
		wantReopen(t, h.DeliverBatch(shards[1], events(2)))
		open(1, "")
		deliver(0, 1)
		deliver(1, 2, 3)
		open(1, "2 3") // which does not concern the other
		deliver(0, 4)
		deliver(1, 5)
		open(0, "1 4")
		open(1, "2 3 5")
		if got := flat(written(t, brokers, topic, 5, readCommitted())); !slices.Equal(slices.Sorted(slices.Values(got)), deliverytest.UpTo(5)) {
			t.Errorf("%v are written", got)
		}
	})
}

func wantReopen(t *testing.T, errs []error) {
	t.Helper()
	if len(errs) == 0 {
		t.Error("delivered")
	}
	for _, err := range errs {
		if !errors.Is(err, delivery.ErrReopen) {
			t.Errorf("%v does not ask for the position", err)
		}
	}
}

// TestExactlyOnceRefused: a record that is refused, by us or by the cluster, fails alone, and those
// behind it that must wait are not written.
func TestExactlyOnceRefused(t *testing.T) {
	t.Parallel()
	onKafka(t, func(t *testing.T, brokers []string, topic string) {
		t.Helper()
		h := open(t, brokers, func(c *Config) {
			c.Topic, c.ExactlyOnce, c.TransactionalID, c.PositionsTopic = `{{ .Payload.to }}`, true, "txn-"+topic, "positions-"+topic
			c.MaxMessageBytes = 4096
		})
		begin(t, h, "")
		all := events(deliverytest.UpTo(8)...)
		for i, e := range all {
			e.AggregateID = fmt.Sprint("k", i%2)
			e.Payload = fmt.Appendf(nil, `{"n": %d, "to": %q}`, e.ID, topic)
		}
		all[1].Payload = fmt.Appendf(nil, `{"n": 2, "to": %q, "large": %q}`, topic, strings.Repeat("x", 5000))
		all[2].Payload = fmt.Appendf(nil, `{"n": 3, "to": "missing-%s"}`, topic)
		errs := h.DeliverBatch(t.Context(), all)
		want := []string{"delivered", "permanent", "unclear-retry", "delivered", "retry", "delivered", "retry", "delivered"}
		for i, err := range errs {
			deliverytest.WantClass(t, err, want[i])
		}
		if got := flat(written(t, brokers, topic, 4, readCommitted())); !slices.Equal(got, []int64{1, 4, 6, 8}) {
			t.Errorf("%v are written", got)
		}
		begin(t, h, "1 4 6 8")
	})
}

// TestExactlyOnceNoEventIsAPosition: an event whose topic is made of it does not come among the positions, where the
// next owner would read it as one.
func TestExactlyOnceNoEventIsAPosition(t *testing.T) {
	t.Parallel()
	onKafka(t, func(t *testing.T, brokers []string, topic string) {
		t.Helper()
		h := open(t, brokers, func(c *Config) {
			c.Topic, c.ExactlyOnce, c.TransactionalID, c.PositionsTopic = `{{ .Payload.to }}`, true, "txn-"+topic, "positions-"+topic
		})
		begin(t, h, "")
		all := events(1, 2)
		all[0].Payload = fmt.Appendf(nil, `{"n": 1, "to": %q}`, topic)
		all[1].AggregateID, all[1].Payload = "txn-"+topic, fmt.Appendf(nil, `{"n": 2, "to": "positions-%s"}`, topic)
		errs := h.DeliverBatch(t.Context(), all)
		deliverytest.WantClass(t, errs[0], "delivered")
		deliverytest.WantClass(t, errs[1], "permanent")
		begin(t, h, "1")
	})
}

// TestExactlyOnceRefusedInOneOrder: where all events go one after the other, nothing is written
// behind one that is to be tried again, whatever its aggregate.
func TestExactlyOnceRefusedInOneOrder(t *testing.T) {
	t.Parallel()
	onKafka(t, func(t *testing.T, brokers []string, topic string) {
		t.Helper()
		h := open(t, brokers, func(c *Config) {
			c.Topic, c.ExactlyOnce, c.TransactionalID, c.PositionsTopic = `{{ .Payload.to }}`, true, "txn-"+topic, "positions-"+topic
		})
		begin(t, h, "")
		all := events(deliverytest.UpTo(4)...)
		for i, e := range all {
			e.AggregateID = fmt.Sprint("k", i)
			e.Payload = fmt.Appendf(nil, `{"n": %d, "to": %q}`, e.ID, topic)
		}
		all[1].Payload = fmt.Appendf(nil, `{"n": 2, "to": "missing-%s"}`, topic)
		errs := h.DeliverBatch(delivery.WithCall(t.Context(), delivery.Call{TotalOrder: true}), all)
		for i, want := range []string{"delivered", "unclear-retry", "retry", "retry"} {
			deliverytest.WantClass(t, errs[i], want)
		}
		if got := flat(written(t, brokers, topic, 1, readCommitted())); !slices.Equal(got, []int64{1}) {
			t.Errorf("%v are written", got)
		}
	})
}

// TestExactlyOnceLargePosition: the record of the position has a limit of its own, however small the records of events are.
func TestExactlyOnceLargePosition(t *testing.T) {
	t.Parallel()
	onKafka(t, func(t *testing.T, brokers []string, topic string) {
		t.Helper()
		h := exactlyTo(t, brokers, topic, func(c *Config) { c.MaxMessageBytes = minMaxMessageBytes })
		begin(t, h, "")
		ids := deliverytest.UpTo(1000)
		deliverytest.Deliver(t, h, events(ids...))
		begin(t, h, strings.Trim(fmt.Sprint(ids), "[]"))
	})
}

// TestExactlyOnceByHalves: a broker that refuses a record refuses all of its request, and the
// others are written, once.
func TestExactlyOnceByHalves(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	brokers := testenv.Kafka(t)
	topic := newTopic(t, brokers, 2, map[string]string{"max.message.bytes": "3000"})
	h := exactlyTo(t, brokers, topic)
	begin(t, h, "")
	all := events(deliverytest.UpTo(9)...)
	all[4].Payload = fmt.Appendf(nil, `{"n": 5, "large": %q}`, strings.Repeat("x", 4000))
	for i, err := range h.DeliverBatch(t.Context(), all) {
		want := "delivered"
		if i == 4 {
			want = "permanent"
		}
		deliverytest.WantClass(t, err, want)
	}
	if got := flat(written(t, brokers, topic, 8, readCommitted())); !slices.Equal(got, []int64{1, 2, 3, 4, 6, 7, 8, 9}) {
		t.Errorf("%v are written", got)
	}
}

// TestExactlyOnceLastWord: where the answer to a commit is lost, the position shows what became of
// it.
func TestExactlyOnceLastWord(t *testing.T) {
	t.Parallel()
	for name, reached := range map[string]bool{"committed": true, "not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fake(t, 1)
			h := open(t, c.ListenAddrs(), func(c *Config) { c.ExactlyOnce, c.DeliveryTimeout = true, patience })
			begin(t, h, "")
			deliverytest.Deliver(t, h, events(1))
			ctx, cancel := context.WithCancel(t.Context())
			c.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
				cancel()
				return nil, errors.New("cut"), !reached
			})
			wantReopen(t, h.DeliverBatch(ctx, events(2)))
			// The broker of this process may drop the request of a connection that is gone: then it was not
			// reached. The position says which.
			counted := &counter{}
			stored, err := h.OpenPosition(t.Context(), "unit", counted)
			if err != nil {
				t.Fatal(err)
			}
			want := []int64{1, 3}
			if string(stored) == "1 2" && reached {
				want = []int64{1, 2, 3}
			}
			counted.all = strings.Fields(string(stored))
			deliverytest.Deliver(t, h, events(3))
			if got := flat(written(t, c.ListenAddrs(), "t", len(want), readCommitted())); !slices.Equal(got, want) {
				t.Errorf("the position is %q, and %v are written", stored, got)
			}
		})
	}
}

// TestExactlyOnceCheck: the check finds a topic of positions that would delete them; the one that the
// handler makes is compacted.
func TestExactlyOnceCheck(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	onKafka(t, func(t *testing.T, brokers []string, topic string) {
		t.Helper()
		h := exactlyTo(t, brokers, topic)
		for range 2 { // before there is a topic, and after
			if err := h.Check(t.Context()); err != nil {
				t.Error(err)
			}
			begin(t, h, "")
		}
		bad := open(t, brokers, func(c *Config) { c.Topic, c.ExactlyOnce, c.PositionsTopic = "other", true, topic })
		deliverytest.WantText(t, bad.checkCompactedOnly(t), "its cleanup.policy is delete", "--add-config cleanup.policy=compact")
	})
}

// checkCompactedOnly checks the topic of the positions alone.
func (h *Handler) checkCompactedOnly(t *testing.T) error {
	t.Helper()
	client, err := kgo.NewClient(h.options...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	return h.checkPositions(t.Context(), client)
}
