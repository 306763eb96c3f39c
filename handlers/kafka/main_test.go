package kafka

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds waiting for something that is to happen; no test expects it to
// run out.
const patience = 60 * time.Second

// fake starts a cluster in this process, with the topic t of the given partitions.
func fake(t *testing.T, partitions int32, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(partitions, "t")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// open makes a handler for the topic t and closes it after the test.
func open(t *testing.T, brokers []string, changes ...func(*Config)) *Handler {
	t.Helper()
	return deliverytest.Open(t, New, deliverytest.Changed(Config{Brokers: brokers, Topic: "t", DeliveryTimeout: patience}, changes...))
}

// events makes events with the given ids; the key of each is its id modulo 7.
func events(ids ...int64) []*delivery.Event { return deliverytest.Spread("kafka", ids...) }

// settle delivers an event that may fail at first, with the given class.
func settle(t *testing.T, h *Handler, e *delivery.Event, class string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		err := h.Deliver(t.Context(), e)
		if err == nil {
			return
		}
		deliverytest.WantClass(t, err, class)
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("event %d is not delivered within %v: %v", e.ID, patience, err)
		}
	}
}

// written returns the ids in a topic by partition, in the order of offsets, once
// there are at least n.
func written(t *testing.T, brokers []string, topic string, n int, opts ...kgo.Opt) map[int32][]int64 {
	t.Helper()
	all := make(map[int32][]int64)
	for _, r := range records(t, brokers, topic, n, opts...) {
		all[r.Partition] = append(all[r.Partition], idOf(t, r))
	}
	return all
}

// records returns the records of a topic, once there are at least n.
func records(t *testing.T, brokers []string, topic string, n int, opts ...kgo.Opt) (all []*kgo.Record) {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(100 * time.Millisecond), kgo.AlwaysRetryEOF(),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(all) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatalf("%d of %d records: %v", len(all), n, err)
		}
		all = append(all, fetches.Records()...)
	}
	return all
}

func idOf(t *testing.T, r *kgo.Record) int64 {
	t.Helper()
	var payload struct{ N int64 }
	if err := json.Unmarshal(r.Value, &payload); err != nil {
		t.Fatalf("record %q: %v", r.Value, err)
	}
	return payload.N
}

// flat returns all ids, sorted.
func flat(byPartition map[int32][]int64) (all []int64) {
	for _, ids := range byPartition {
		all = append(all, ids...)
	}
	slices.Sort(all)
	return all
}

// onProduce has f look at each produce request: handled means that the cluster
// does not.
func onProduce(c *kfake.Cluster, f func(*kmsg.ProduceRequest) (kmsg.Response, error, bool)) {
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return f(req.(*kmsg.ProduceRequest)) //nolint:forcetypeassert // by its key
	})
}

var (
	_ delivery.BatchHandler = (*Handler)(nil)
	_ io.Closer             = (*Handler)(nil)
)
