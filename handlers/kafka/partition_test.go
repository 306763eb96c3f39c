package kafka

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// inPartitions makes events with a header that names a partition, "" for none.
func inPartitions(partitions ...string) []*delivery.Event {
	all := events(deliverytest.UpTo(int64(len(partitions)))...)
	for i, e := range all {
		e.Headers = map[string]string{"partition": partitions[i]}
	}
	return all
}

const ofHeader = `{{ get .Headers "partition" | default "" }}`

// exactlyOr opens a handler for a topic: at least once, or exactly once.
func exactlyOr(t *testing.T, exactly bool, brokers []string, topic string, changes ...func(*Config)) *Handler {
	t.Helper()
	h := open(t, brokers, append(changes, to(topic), func(c *Config) {
		if exactly {
			c.ExactlyOnce, c.PositionsTopic, c.TransactionalID = true, topic+"-positions", topic
		}
	})...)
	if exactly {
		begin(t, h, "")
	}
	return h
}

// knowsPartitions waits until the broker itself knows how many partitions a topic has: it learns of them a little later than
// the controller.
func knowsPartitions(t *testing.T, brokers []string, topic string, n int) {
	t.Helper()
	client, tick, deadline := admin(t, brokers), time.NewTicker(10*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for {
		topics, err := client.ListTopics(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		if len(topics[topic].Partitions) == n {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("topic %s has %d partitions, want %d", topic, len(topics[topic].Partitions), n)
		}
	}
}

// TestChosenPartition: a record goes to the partition that its event names, a number that the topic does not have is a fault of
// the event, and a topic may grow.
func TestChosenPartition(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	for _, exactly := range []bool{false, true} {
		t.Run(fmt.Sprintf("exactly once=%t", exactly), func(t *testing.T) {
			t.Parallel()
			topic := newTopic(t, brokers, 3, nil)
			h := exactlyOr(t, exactly, brokers, topic, func(c *Config) { c.Partition = ofHeader })
			all := inPartitions("2", " 0 ", "3", "x", "-1", "", "1", "99999999999")
			errs := h.DeliverBatch(t.Context(), all)
			for i, want := range []string{"", "", "the topic has no partition 3: it has 3, numbered from 0", "must be a number", "must be a number", "", "", "must be a number"} {
				if want == "" && errs[i] != nil || want != "" && !delivery.IsPermanent(delivery.Proven(errs[i])) {
					t.Errorf("event %d: %v", i+1, errs[i])
				}
				if want != "" {
					deliverytest.WantText(t, errs[i], want)
				}
			}
			got := written(t, brokers, topic, 4, readCommitted())
			for partition, id := range map[int32]int64{2: 1, 0: 2, 1: 7} {
				if !slices.Contains(got[partition], id) || len(flat(got)) != 4 {
					t.Errorf("event %d is not in partition %d: %v", id, partition, got)
				}
			}
			if _, err := admin(t, brokers).UpdatePartitions(t.Context(), 5, topic); err != nil {
				t.Fatal(err)
			}
			knowsPartitions(t, brokers, topic, 5)
			grown := events(9)
			grown[0].Headers = map[string]string{"partition": "4"}
			err := h.Deliver(t.Context(), grown[0])
			if exactly {
				wantReopen(t, []error{err})
				begin(t, h, "1 2 6 7")
				err = h.Deliver(t.Context(), grown[0])
			}
			if err != nil {
				t.Fatalf("a partition that the topic has got: %v", err)
			}
			if got := written(t, brokers, topic, 5, readCommitted()); len(got[4]) != 1 || got[4][0] != 9 {
				t.Errorf("records by partition: %v", got)
			}
		})
	}
}

// TestTombstones: an event whose payload is JSON null is a record without a value, whatever the format; without the setting,
// and without any bytes, it has one.
func TestTombstones(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	for name, c := range map[string]struct {
		change  func(*Config)
		exactly bool
		want    string // of the event with null, "" for none
		null    bool
	}{
		"as it is":               {change: func(*Config) {}, want: "null"},
		"payload":                {change: func(c *Config) { c.Tombstones = true }, null: true},
		"exactly once":           {change: func(c *Config) { c.Tombstones = true }, null: true, exactly: true},
		"CloudEvents binary":     {change: func(c *Config) { c.Tombstones, c.Format = true, handlers.FormatCloudEventsBinary }, null: true},
		"CloudEvents structured": {change: func(c *Config) { c.Tombstones, c.Format = true, handlers.FormatCloudEventsStructured }, null: true},
		"a template":             {change: func(c *Config) { c.Tombstones, c.Body = true, `{"n": {{ json .Payload.n }}}` }, null: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := newTopic(t, brokers, 1, map[string]string{"cleanup.policy": "compact"})
			h := exactlyOr(t, c.exactly, brokers, topic, c.change)
			all := events(1, 2, 3)
			all[1].Payload = []byte(" null\n")
			keyless := events(4)[0]
			keyless.Payload, keyless.AggregateID = []byte("null"), ""
			errs := h.DeliverBatch(t.Context(), append(all, keyless))
			if errs == nil || errs[0] != nil || errs[1] != nil || errs[2] != nil || !delivery.IsPermanent(delivery.Proven(errs[3])) {
				t.Fatalf("%v", errs)
			}
			if c.null {
				deliverytest.WantText(t, errs[3], "a tombstone needs a key: give the event an aggregate id, or set key")
			}
			var got *kgo.Record
			for _, r := range records(t, brokers, topic, 3, readCommitted()) {
				if string(r.Key) == "k2" {
					got = r
				}
			}
			switch {
			case got == nil:
				t.Fatal("there is no record with the key")
			case c.null && (got.Value != nil || headerOf(got, headerContentType) != ""):
				t.Errorf("value %q, headers %v", got.Value, got.Headers)
			case !c.null && string(got.Value) != " null\n":
				t.Errorf("value %q", got.Value)
			}
			preview, err := h.Preview(all[1])
			if err != nil || c.null != strings.Contains(preview, "value: none: a tombstone") {
				t.Errorf("preview %q, %v", preview, err)
			}
		})
	}
}

// TestNoBytes: an event of zero bytes is data, such as a Protobuf message of defaults, and no tombstone.
func TestNoBytes(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	for _, tombstones := range []bool{false, true} {
		h := open(t, c.ListenAddrs(), func(c *Config) { c.Tombstones = tombstones })
		e := events(1)[0]
		e.Payload, e.ContentType = nil, "application/protobuf"
		if err := h.Deliver(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range records(t, c.ListenAddrs(), "t", 2) {
		if r.Value == nil || len(r.Value) != 0 {
			t.Errorf("value %q, nil: %t", r.Value, r.Value == nil)
		}
	}
}
