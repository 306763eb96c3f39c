package integration

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/privateserver/kafkaserver"
	"github.com/notifyd/notifyd/internal/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// envOutage names the environment variable with the length of the outage in
// [TestKafkaOutage], "60s" for example.
const envOutage = "NOTIFYD_TEST_OUTAGE"

func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(envOutage)
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("%s=%s is not a duration", envOutage, text)
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

// TestKafkaOutage kills the broker under a steady load and restarts it a while
// later: nothing is lost, nothing dies, no attempt is counted, and the records of
// each key are in the order of their delivery, in a stream the order of ids.
func TestKafkaOutage(t *testing.T) {
	t.Parallel()
	away := outage(t)
	broker := testenv.OwnKafka(t, kafkaserver.Config{}) // for both modes: its start takes longest
	var runs []*kafkaRun
	for _, mode := range bothModes() {
		runs = append(runs, newKafkaRun(t, broker, away, mode))
	}
	steadily := func(long time.Duration) {
		var writers sync.WaitGroup
		for _, r := range runs {
			writers.Go(func() { r.steadily(long) })
		}
		writers.Wait()
	}
	steadily(time.Second)
	if err := broker.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	steadily(away)
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	steadily(time.Second)
	for _, r := range runs {
		r.check(away)
	}
}

// kafkaRun is a relay that delivers to a topic of a broker while events are written.
type kafkaRun struct {
	*env
	broker  *kafkaserver.Server
	topic   string
	watched *watched
	written int
}

// newKafkaRun starts a run whose broker will be away for the given time.
func newKafkaRun(t *testing.T, broker *kafkaserver.Server, away time.Duration, mode outboxsql.Mode) *kafkaRun {
	t.Helper()
	r := &kafkaRun{env: newEnvIn(t, mode), broker: broker, topic: "orders-of-a-" + string(mode)}
	testenv.KafkaTopic(t, []string{broker.Addr()}, r.topic, outagePartitions, nil)
	h, err := kafka.New(kafka.Config{Brokers: []string{broker.Addr()}, Topic: r.topic, DeliveryTimeout: min(away/3, kafka.Config{}.Within())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	r.watched = &watched{Handler: h}
	r.relay(handleAll(t, r.watched, delivery.Lane{Concurrency: 1, Batch: 1000, Timeout: time.Minute}), notifyd.Config{Connections: 1})
	return r
}

// check checks what has arrived.
func (r *kafkaRun) check(away time.Duration) {
	r.t.Helper()
	r.untilDone()
	if n := scan[int](r.env, `SELECT count(*) FROM outbox_deliveries`); n != 0 {
		r.t.Errorf("%s: %d deliveries are left", r.mode, n)
	}
	if r.watched.attempt != 1 {
		r.t.Errorf("%s: an event was at attempt %d: attempts were counted", r.mode, r.watched.attempt)
	}
	if r.watched.failed == 0 {
		r.t.Errorf("%s: no batch failed: there was no outage", r.mode)
	}
	all := readTopic(r.t, r.broker.Addr(), r.topic)
	copies := checkTopic(r.t, r.mode, all, r.written, r.watched.delivered)
	r.t.Logf("%s: %d events, broker away for %v, %d batches failed, %d duplicates", r.mode, r.written, away, r.watched.failed, copies)
}

// watched records the calls of a handler. It is called for one batch at a time,
// and read when the relay has nothing left to do.
type watched struct {
	*kafka.Handler
	attempt   int     // the highest
	failed    int     // batches
	delivered []int64 // events, as they were delivered
}

// DeliverBatch implements delivery.BatchHandler.
func (w *watched) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	errs := w.Handler.DeliverBatch(ctx, events)
	if errs != nil {
		w.failed++
	}
	for i, e := range events {
		w.attempt = max(w.attempt, e.Attempt)
		if errs == nil || errs[i] == nil {
			w.delivered = append(w.delivered, e.ID)
		}
	}
	return errs
}

// steadily writes events for a while, one transaction after the other.
func (r *kafkaRun) steadily(long time.Duration) {
	tick := time.NewTicker(outageEvery)
	defer tick.Stop()
	for range long / outageEvery {
		<-tick.C
		_, err := r.pool.Exec(r.ctx, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT 'order.changed', 'order', 'k' || i % $1, json_build_object('key', 'k' || i % $1) FROM generate_series(1, $2::int) i`, outageKeys, outageEvents)
		if err != nil {
			r.t.Errorf("write: %v", err)
			return
		}
		r.written += outageEvents
	}
}

// checkTopic checks that n different events are in a topic. In a stream, the first copy of an event must not arrive after
// a later event of its key. The last copies of each key's events must be in the order of their delivery: copies of
// abandoned calls that were written all the same are before them.
func checkTopic(t *testing.T, mode outboxsql.Mode, records []*kgo.Record, n int, delivered []int64) (copies int) {
	t.Helper()
	byKey, keyOf := make(map[string][]int64), make(map[int64]string)
	for _, r := range records {
		id := headerID(t, r)
		if keyOf[id] != "" {
			copies++
		}
		var p struct{ Key string }
		if err := json.Unmarshal(r.Value, &p); err != nil || p.Key != string(r.Key) {
			t.Fatalf("record with key %q: %s, %v", r.Key, r.Value, err)
		}
		keyOf[id] = p.Key
		byKey[p.Key] = append(byKey[p.Key], id)
	}
	if len(keyOf) != n || len(byKey) != outageKeys {
		t.Errorf("%d different events of %d keys are in the topic, want %d of %d", len(keyOf), len(byKey), n, outageKeys)
	}
	want := make(map[string][]int64)
	for _, id := range delivered {
		want[keyOf[id]] = append(want[keyOf[id]], id)
	}
	for key, ids := range byKey {
		if !slices.Equal(lastCopies(ids), lastCopies(want[key])) {
			t.Errorf("key %s is in another order than it was delivered in", key)
		}
		if n := overtaken(ids); n > 0 && mode == outboxsql.ModeStream {
			t.Errorf("key %s: %d events came for the first time behind a later one", key, n)
		}
	}
	return copies
}

// lastCopies drops all but the last copy of each event.
func lastCopies(ids []int64) (last []int64) {
	seen := make(map[int64]bool)
	for _, id := range slices.Backward(ids) {
		if !seen[id] {
			seen[id], last = true, append(last, id)
		}
	}
	slices.Reverse(last)
	return last
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
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.AlwaysRetryEOF(), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
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
