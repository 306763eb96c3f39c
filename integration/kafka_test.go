package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/lab/privateserver/kafkaserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
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
	testenv.Long(t)
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
	n := testenv.KafkaEnd(t, []string{addr}, topic)
	for int64(len(all)) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatal(err)
		}
		all = append(all, fetches.Records()...)
	}
	return all
}

// TestKafkaMissingTopic: where topics are made of events, a missing one costs the others no attempt. In a stream, no event
// overtakes an earlier one of its aggregate that waits for its topic.
func TestKafkaMissingTopic(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	brokers := testenv.Kafka(t)
	for _, mode := range bothModes() {
		for kind, change := range map[string]func(*kafka.Config){
			"plain":         func(*kafka.Config) {},
			"transactional": func(c *kafka.Config) { c.Transactional = true },
			"exactly once":  func(c *kafka.Config) { c.ExactlyOnce = true },
		} {
			for _, order := range []delivery.Order{delivery.OrderAuto, delivery.OrderTotal} {
				if mode == outboxsql.ModeQueue && (kind == "exactly once" || order == delivery.OrderTotal) {
					continue // they need a stream
				}
				t.Run(fmt.Sprintf("%s, %s, order %s", mode, kind, order), func(t *testing.T) {
					t.Parallel()
					topic := fmt.Sprintf("missing.%d", time.Now().UnixNano())
					testenv.KafkaTopic(t, brokers, topic, 3, nil)
					cfg := kafka.Config{Brokers: brokers, Topic: topic + "{{ .Payload.suffix }}"}
					change(&cfg)
					missingTopic(t, mode, order, cfg)
				})
			}
		}
	}
}

func missingTopic(t *testing.T, mode outboxsql.Mode, order delivery.Order, cfg kafka.Config) {
	t.Helper()
	h, err := kafka.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	const attempts, aggregates, each = 3, 10, 5
	e := newEnvIn(t, mode)
	w := &attempted{Handler: h, tries: make(map[int64]int), after: make(map[int64]int), order: make(map[int64]int)}
	e.relay(handleAll(t, w, delivery.Lane{
		Concurrency: 1, Batch: 100, MaxAttempts: attempts, Backoff: quick(), Order: order, LongestPause: 100 * time.Millisecond,
	}), notifyd.Config{})

	// The third event of every other aggregate has a topic that does not exist.
	e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'a', 'order', 'k' || k, json_build_object('suffix', CASE WHEN n = 3 AND k % 2 = 0 THEN '-none' ELSE '' END)
		FROM generate_series(1, $1::int) AS n, generate_series(1, $2::int) AS k ORDER BY n, k`, each, aggregates)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for scan[int](e, `SELECT count(*)::int FROM outbox_deliveries WHERE state = 'dead'`) < aggregates/2 {
		// Without others that the cluster takes, no event would be at fault.
		e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('a', 'other', gen_random_uuid()::text, '{"suffix": ""}')`)
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the events without a topic are no dead letters: %v", w.tries)
		}
	}
	e.until("nothing waits", `SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE state <> 'dead')`)
	e.until("the others are delivered", doneWhere(mode, everyPlace, `payload ->> 'suffix' = ''`))

	w.mu.Lock()
	defer w.mu.Unlock()
	for id, n := range w.tries {
		if n > 0 && w.after[id] > 0 {
			t.Errorf("event %d was delivered after %d failures of its own", id, n)
		}
	}
	if mode == outboxsql.ModeQueue {
		return
	}
	for _, k := range []int{2, 4, 6, 8, 10} {
		bad := scan[int64](e, `SELECT id FROM outbox_events WHERE aggregate_id = 'k' || $1::int AND payload ->> 'suffix' <> ''`, k)
		next := scan[int64](e, `SELECT min(id) FROM outbox_events WHERE aggregate_id = 'k' || $1::int AND id > $2`, k, bad)
		if w.tries[bad] < attempts || w.order[next] < w.order[bad] {
			t.Errorf("event %d overtook event %d, which was tried %d times", next, bad, w.tries[bad])
		}
	}
}

// attempted records what became of each event.
type attempted struct {
	*kafka.Handler

	mu    sync.Mutex
	calls int
	tries map[int64]int // failures, by event
	after map[int64]int // deliveries, by event
	order map[int64]int // the number of the last call that decided about the event
}

// DeliverBatch implements delivery.BatchHandler.
func (w *attempted) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	errs := w.Handler.DeliverBatch(ctx, events)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	for i, e := range events {
		switch {
		case errs == nil || errs[i] == nil:
			w.after[e.ID]++
		case delivery.IsUnclear(errs[i]):
			w.tries[e.ID]++
		default:
			continue // behind another one
		}
		w.order[e.ID] = w.calls
	}
	return errs
}
