package integration

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// envRabbitRestarts names the environment variable with the number of restarts
	// in [TestRabbitMQRestarts].
	envRabbitRestarts     = "NOTIFYD_TEST_RABBITMQ_RESTARTS"
	defaultRabbitRestarts = 2
	// envRabbitAway names the environment variable with the length of each second
	// outage, "60s" for example.
	envRabbitAway     = "NOTIFYD_TEST_RABBITMQ_AWAY"
	defaultRabbitAway = 3 * time.Second

	rabbitKeys  = 200 // deliveries at once; with few, the backlog of an outage takes minutes
	rabbitBatch = 500
	// One statement of so many events every so often: 500 events a second.
	rabbitEvery  = 10 * time.Millisecond
	rabbitEvents = 5
	// rabbitAhead bounds the events that wait, in addition to those of an outage of
	// a known length. Without it the backlog would keep growing on a busy machine.
	rabbitAhead = 1000
	// rabbitFlow is the number of deliveries between two faults.
	rabbitFlow = 500
)

// TestRabbitMQRestarts ends the broker again and again under a steady load, by SIGKILL and, for a while, in order in turn.
func TestRabbitMQRestarts(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	restarts, away := defaultRabbitRestarts, defaultRabbitAway
	if text := os.Getenv(envRabbitRestarts); text != "" {
		var err error
		if restarts, err = strconv.Atoi(text); err != nil || restarts < 1 {
			t.Fatalf("%s=%s is not a number of restarts", envRabbitRestarts, text)
		}
	}
	if text := os.Getenv(envRabbitAway); text != "" {
		var err error
		if away, err = time.ParseDuration(text); err != nil || away <= 0 {
			t.Fatalf("%s=%s is not a duration", envRabbitAway, text)
		}
	}
	broker := testenv.OwnRabbitMQ(t, rabbitserver.Config{}) // for both modes: its start takes longest
	var runs []*rabbitRun
	for _, mode := range bothModes() {
		runs = append(runs, newRabbitRun(t, broker, away, mode))
	}
	all := func(do func(*rabbitRun)) {
		for _, r := range runs {
			do(r)
		}
	}
	for i := range restarts {
		all((*rabbitRun).flows)
		var err error
		if i%2 == 0 {
			err = broker.Kill(t.Context())
		} else {
			err = broker.Halt(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		all((*rabbitRun).fails)
		if i%2 == 1 {
			<-time.After(away) // the load goes on
		}
		if err := broker.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	all((*rabbitRun).flows)
	all(func(r *rabbitRun) { r.check(restarts) })
}

// rabbitRun is a relay that delivers to a broker while events are written.
type rabbitRun struct {
	*env
	broker *rabbitserver.Server
	queue  string

	delivered, failed, highest atomic.Int64

	mu    sync.Mutex
	given map[string][]int64 // the events of the handler by key, repeated ones included

	stop    context.CancelFunc
	writer  sync.WaitGroup
	written atomic.Int64
	ahead   int64 // how many more events may be written than delivered
}

// newRabbitRun starts a run whose broker will be away for the given time.
func newRabbitRun(t *testing.T, broker *rabbitserver.Server, away time.Duration, mode outboxsql.Mode) *rabbitRun {
	t.Helper()
	r := &rabbitRun{given: make(map[string][]int64), env: newEnvIn(t, mode), broker: broker, queue: "orders of a " + string(mode)}
	r.ahead = rabbitAhead + rabbitEvents*int64(away/rabbitEvery)
	h, err := rabbitmq.New(rabbitmq.Config{
		URL: handlers.NewSecret(r.broker.URL("")), RoutingKey: r.queue,
		Declare: rabbitmq.Declare{Queues: []rabbitmq.Queue{{Name: r.queue}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	counted := delivery.BatchHandlerFunc(func(ctx context.Context, events []*delivery.Event) []error {
		r.mu.Lock()
		for _, e := range events {
			r.given[e.AggregateID] = append(r.given[e.AggregateID], e.ID)
			r.highest.Store(max(r.highest.Load(), int64(e.Attempt)))
		}
		r.mu.Unlock()
		errs := h.DeliverBatch(ctx, events)
		bad := 0
		for _, err := range errs {
			if err != nil {
				bad++
			}
		}
		r.failed.Add(int64(bad))
		r.delivered.Add(int64(len(events) - bad))
		return errs
	})
	// One claim at a time: several would pass their events to the lane as they come,
	// so that the lane would not see the events in order.
	r.relay(handleAll(t, counted, delivery.Lane{Concurrency: 1, Batch: rabbitBatch, Timeout: time.Minute}), notifyd.Config{Connections: 1})
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	r.writer.Go(func() { r.write(ctx) })
	t.Cleanup(func() { stop(); r.writer.Wait() }) // before the pool is closed
	r.flows()
	// RabbitMQ confirms messages while their queue may still exist only in the
	// memory of Mnesia: a new queue is gone after a SIGKILL.
	if _, err := r.broker.Ctl(t.Context(), "eval", "mnesia:sync_log()."); err != nil {
		t.Fatal(err)
	}
	return r
}

// write inserts events until ctx is done, one transaction after the other.
// It pauses while too many wait.
func (r *rabbitRun) write(ctx context.Context) {
	tick := time.NewTicker(rabbitEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if r.written.Load()-r.delivered.Load() > r.ahead {
			continue
		}
		if _, err := r.pool.Exec(context.WithoutCancel(ctx), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT 'order.changed', 'order', key, json_build_object('key', key)
			FROM (SELECT 'k' || i % $1 AS key FROM generate_series($2::bigint, $2 + $3 - 1) AS i) AS k`, rabbitKeys, r.written.Load(), rabbitEvents); err != nil {
			r.t.Errorf("write: %v", err)
			return
		}
		r.written.Add(rabbitEvents)
	}
}

// flows waits until events are delivered.
func (r *rabbitRun) flows() { r.t.Helper(); r.grows("deliveries", &r.delivered, rabbitFlow) }

// fails waits until deliveries have failed.
func (r *rabbitRun) fails() { r.t.Helper(); r.grows("failures", &r.failed, 1) }

func (r *rabbitRun) grows(what string, n *atomic.Int64, by int64) {
	r.t.Helper()
	tick := time.NewTicker(rabbitEvery)
	defer tick.Stop()
	deadline := time.After(patience)
	for from := n.Load(); n.Load() < from+by; {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("no %d %s in %v; the tables:\n%s", by, what, patience, r.dump())
		}
	}
}

// check ends the load and checks the arrivals, with a separate client.
func (r *rabbitRun) check(faults int) {
	t := r.t
	t.Helper()
	r.stop()
	r.writer.Wait()
	r.untilDone()
	written := int(r.written.Load())
	if n := scan[int](r.env, `SELECT count(*) FROM outbox_deliveries`); n != 0 {
		t.Errorf("%d deliveries are left, dead or alive", n)
	}
	if n := r.highest.Load(); n != 1 {
		t.Errorf("an event was at attempt %d: attempts were counted", n)
	}
	if r.failed.Load() == 0 {
		t.Error("no delivery failed: there was no outage")
	}
	byKey, all, copies := make(map[string][]int64), make(map[int64]bool), 0
	for _, d := range r.take() {
		var p struct{ Key string }
		id, err := strconv.ParseInt(d.MessageId, 10, 64)
		if err != nil || json.Unmarshal(d.Body, &p) != nil {
			t.Fatalf("message %q: %s", d.MessageId, d.Body)
		}
		if all[id] {
			copies++
		}
		all[id] = true
		byKey[p.Key] = append(byKey[p.Key], id)
	}
	if len(all) != written {
		t.Errorf("%d different events have arrived, want %d", len(all), written)
	}
	if copies > faults*rabbitBatch {
		t.Errorf("%d duplicates after %d faults, want one batch of %d for each at most", copies, faults, rabbitBatch)
	}
	late := 0
	for key, ids := range byKey {
		if !isSubsequence(ids, r.given[key]) {
			t.Errorf("%s: the handler has changed the order of what it was given", key)
		}
		late += overtaken(ids)
	}
	if late > 0 && r.mode == outboxsql.ModeStream {
		t.Errorf("%d events came for the first time behind a later one of their key", late)
	}
	t.Logf("%s: %d events, %d faults: %d deliveries failed, %d duplicates", r.mode, written, faults, r.failed.Load(), copies)
}

// isSubsequence reports whether part remains of all after removing some elements.
func isSubsequence(part, all []int64) bool {
	for _, id := range all {
		if len(part) > 0 && part[0] == id {
			part = part[1:]
		}
	}
	return len(part) == 0
}

// overtaken counts the events whose first copy comes behind a later event.
func overtaken(ids []int64) (n int) {
	highest, seen := int64(0), make(map[int64]bool)
	for _, id := range ids {
		if !seen[id] && id < highest {
			n++
		}
		seen[id] = true
		highest = max(highest, id)
	}
	return n
}

// take empties the queue.
func (r *rabbitRun) take() []amqp.Delivery {
	r.t.Helper()
	conn, err := amqp.Dial(r.broker.URL(""))
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // everything is read
	ch, err := conn.Channel()
	if err != nil {
		r.t.Fatal(err)
	}
	q, err := ch.QueueDeclarePassive(r.queue, true, false, false, false, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	got, err := ch.ConsumeWithContext(r.ctx, r.queue, "", true, false, false, false, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	var all []amqp.Delivery
	deadline := time.After(patience)
	for len(all) < q.Messages {
		select {
		case d := <-got:
			all = append(all, d)
		case <-deadline:
			r.t.Fatalf("%d of %d messages within %v", len(all), q.Messages, patience)
		}
	}
	return all
}
