package integration

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/kafkaserver"
	"github.com/notifyd/notifyd/internal/testenv"
)

// envOutage names the environment variable with how long the broker of
// [TestKafkaOutage] is away, "60s" for example.
const envOutage = "NOTIFYD_TEST_OUTAGE"

func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(envOutage)
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("%s=%s is no duration", envOutage, text)
	}
	return d
}

const (
	outageKeys       = 20
	outagePartitions = 3
	// One statement of so many events every so often: 2,000 events a second.
	outageEvery  = 10 * time.Millisecond
	outageEvents = 20
)

// TestKafkaOutage kills the broker under a steady load and starts it again a
// while later: nothing is lost, nothing dies, no attempt is counted, and each
// key keeps its order. The order takes one claim at a time: several hand what
// they have claimed to the lane as it comes.
func TestKafkaOutage(t *testing.T) {
	t.Parallel()
	away := outage(t)
	broker := testenv.OwnKafka(t, kafkaserver.Config{})
	makeTopic(t, broker.Addr(), "orders", outagePartitions)
	h, err := kafka.New(kafka.Config{Brokers: []string{broker.Addr()}, Topic: "orders", DeliveryTimeout: min(away/3, kafka.DefaultDeliveryTimeout)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	var repeated, highest atomic.Int64
	counted := notifyd.BatchHandlerFunc(func(ctx context.Context, events []*notifyd.Event) []error {
		for _, e := range events {
			highest.Store(max(highest.Load(), int64(e.Attempt)))
		}
		errs := h.DeliverBatch(ctx, events)
		if errs != nil {
			repeated.Add(1)
		}
		return errs
	})
	e := newEnv(t)
	e.relay(handleAll(t, counted, notifyd.Concurrency(1), notifyd.BatchSize(1000), notifyd.Timeout(time.Minute)), notifyd.WithClaims(1))

	written := e.steadily(time.Second)
	if err := broker.Kill(); err != nil {
		t.Fatal(err)
	}
	written += e.steadily(away)
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	written += e.steadily(time.Second)
	e.untilDone()

	if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); n != 0 {
		t.Errorf("%d deliveries are left", n)
	}
	if highest.Load() != 1 {
		t.Errorf("an event was at attempt %d: attempts were counted", highest.Load())
	}
	if repeated.Load() == 0 {
		t.Error("no batch failed: there was no outage")
	}
	copies := checkTopic(t, broker.Addr(), "orders", written)
	t.Logf("%d events, broker away for %v, %d batches failed, %d duplicates", written, away, repeated.Load(), copies)
}

// steadily writes events for a while, each transaction after the one before, and
// returns how many.
func (e *env) steadily(long time.Duration) (n int) {
	e.t.Helper()
	tick := time.NewTicker(outageEvery)
	defer tick.Stop()
	for range long / outageEvery {
		<-tick.C
		e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT 'order.changed', 'order', 'k' || i % $1, json_build_object('key', 'k' || i % $1) FROM generate_series(1, $2::int) i`, outageKeys, outageEvents)
		n += outageEvents
	}
	return n
}

func makeTopic(t *testing.T, addr, name string, partitions int32) {
	t.Helper()
	cl, err := kadm.NewOptClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := cl.CreateTopic(t.Context(), partitions, 1, nil, name); err != nil {
		t.Fatal(err)
	}
}

// checkTopic reads a topic to its end and checks that n different events are in
// it, and that the events of each key are in order: by their first copies and by
// their last ones, which leaves only a suffix that was delivered again.
func checkTopic(t *testing.T, addr, topic string, n int) (copies int) {
	t.Helper()
	byKey, all := make(map[string][]int64), make(map[int64]bool)
	for _, r := range readTopic(t, addr, topic) {
		id := headerID(t, r)
		if all[id] {
			copies++
		}
		all[id] = true
		var p struct{ Key string }
		if err := json.Unmarshal(r.Value, &p); err != nil || p.Key != string(r.Key) {
			t.Fatalf("record with key %q: %s, %v", r.Key, r.Value, err)
		}
		byKey[p.Key] = append(byKey[p.Key], id)
	}
	if len(all) != n {
		t.Errorf("%d different events are in the topic, want %d", len(all), n)
	}
	if len(byKey) != outageKeys {
		t.Errorf("%d keys, want %d", len(byKey), outageKeys)
	}
	for key, ids := range byKey {
		first := firstCopies(ids)
		slices.Reverse(ids)
		last := firstCopies(ids)
		slices.Reverse(last)
		for _, order := range [][]int64{first, last} {
			for i := 1; i < len(order); i++ {
				if order[i] < order[i-1] {
					t.Errorf("key %s: event %d stands behind %d", key, order[i], order[i-1])
					break
				}
			}
		}
	}
	return copies
}

func firstCopies(ids []int64) (first []int64) {
	seen := make(map[int64]bool)
	for _, id := range ids {
		if !seen[id] {
			seen[id], first = true, append(first, id)
		}
	}
	return first
}

func headerID(t *testing.T, r *kgo.Record) (id int64) {
	t.Helper()
	for _, h := range r.Headers {
		if h.Key == "notifyd-id" {
			if err := json.Unmarshal(h.Value, &id); err != nil {
				t.Fatal(err)
			}
			return id
		}
	}
	t.Fatalf("record %s has no id", r.Value)
	return 0
}

func readTopic(t *testing.T, addr, topic string) (all []*kgo.Record) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	for int64(len(all)) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatal(err)
		}
		all = append(all, fetches.Records()...)
	}
	return all
}
