package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/lab/privateserver/kafkaserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// envExactlyVictim makes this test binary a relay on the given database, with a destination at the
	// broker of envExactlyBroker that gets each event exactly once.
	envExactlyVictim = "NOTIFYD_TEST_EXACTLY_VICTIM_URL"
	envExactlyBroker = "NOTIFYD_TEST_EXACTLY_BROKER"
	// envChaos is the variable of "make chaos": long makes the test as long as the promise.
	envChaos = "NOTIFYD_CHAOS"

	exactlyTopic      = "orders"
	exactlyPartitions = 3
	exactlyMaxBytes   = 2000
)

// exactlyHandler is the destination under test.
func exactlyHandler(broker string) (*kafka.Handler, error) {
	return kafka.New(kafka.Config{
		Brokers: []string{broker}, Topic: exactlyTopic, ExactlyOnce: true, MaxMessageBytes: exactlyMaxBytes, DeliveryTimeout: 10 * time.Second,
	})
}

// exactlyVictim runs a relay until it is killed, or asked to stop.
func exactlyVictim(url string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the test, however the test ends
		os.Exit(1)
	}()
	h, err := exactlyHandler(os.Getenv(envExactlyBroker))
	if err != nil {
		panic(err)
	}
	relayTo(ctx, url, "kafka", h)
}

// closable is a handler that its creator closes.
type closable interface {
	delivery.Handler
	io.Closer
}

// relayTo runs a relay with one destination until ctx ends.
func relayTo(ctx context.Context, url, name string, h closable) {
	fmt.Println("ready to be stopped")
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		panic(err)
	}
	relay, err := notifyd.New(pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1}))})
	if err != nil {
		panic(err)
	}
	err = relay.Handle("*", notifyd.Destination{Name: name, Handler: h, Lane: delivery.Lane{Concurrency: 1, Batch: 1000, Timeout: 20 * time.Second, LongestPause: time.Second}})
	if err != nil {
		panic(err)
	}
	if err := relay.Run(ctx); err != nil {
		panic(err)
	}
	if err := h.Close(); err != nil {
		panic(err)
	}
}

// victims are two relays, each in a separate process.
type victims struct {
	*env
	environ []string // makes a relay of this test binary
	relays  [2]*exec.Cmd
}

// exactlyRun is a number of relays under faults, and their broker.
type exactlyRun struct {
	*victims
	broker  *kafkaserver.Server
	strikes map[string]int
}

func (x *victims) launch(n int) {
	x.t.Helper()
	x.relays[n] = x.startRelay(x.environ...)
}

func (x *victims) signal(n int, sig os.Signal) {
	x.t.Helper()
	if err := x.relays[n].Process.Signal(sig); err != nil {
		x.t.Error(err)
	}
}

func (x *victims) end(n int, sig os.Signal) {
	x.t.Helper()
	if x.relays[n] == nil {
		return
	}
	x.signal(n, sig)
	if err := x.relays[n].Wait(); err != nil && sig == syscall.SIGTERM {
		x.t.Errorf("relay %d ended with: %v", n, err)
	}
	x.relays[n] = nil
}

func (x *exactlyRun) cut(condition string) {
	x.exec(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%' AND ` + condition)
}

// strike produces a fault, and repairs it.
func (x *exactlyRun) strike(i int) {
	x.t.Helper()
	n := rand.IntN(len(x.relays))
	some := time.Duration(rand.IntN(1500)) * time.Millisecond
	kinds := []string{"killed", "killed together", "frozen", "frozen and woken late", "cut off", "stopped", "broker killed"}
	kind := kinds[i%len(kinds)]
	x.strikes[kind]++
	switch kind {
	case "killed":
		x.end(n, syscall.SIGKILL)
		time.Sleep(some) //nolint:forbidigo // the length of the fault itself
		x.launch(n)
	case "killed together":
		for n := range x.relays {
			x.end(n, syscall.SIGKILL)
		}
		for n := range x.relays {
			x.launch(n)
		}
	case "frozen":
		x.signal(n, syscall.SIGSTOP)
		time.Sleep(some) //nolint:forbidigo // the length of the fault itself
		x.signal(n, syscall.SIGCONT)
	case "frozen and woken late": // the other one owns the positions by then
		x.signal(n, syscall.SIGSTOP)
		x.cut(`application_name = 'notifyd/leases'`)
		time.Sleep(2*time.Second + some) //nolint:forbidigo // the length of the fault itself
		x.signal(n, syscall.SIGCONT)
	case "cut off":
		x.cut(`random() < 0.7`)
	case "stopped":
		x.end(n, syscall.SIGTERM)
		x.launch(n)
	case "broker killed":
		if err := x.broker.Kill(x.ctx); err != nil {
			x.t.Fatal(err)
		}
		time.Sleep(some) //nolint:forbidigo // the length of the fault itself
		if err := x.broker.Start(x.ctx); err != nil {
			x.t.Fatal(err)
		}
	}
}

// write writes 2,000 events a second until ctx ends, and none while the relays are a second behind: on a slow machine the
// events would grow with the time of the test. Some of the transactions are rolled back, and some stay open for a while.
// Each key has one writer, so that its commits are in the order of ids. One event in 200 is larger than a record may be.
func (x *exactlyRun) write(ctx context.Context, writer int) {
	const every, events, maxAhead = 20 * time.Millisecond, 10, 2000
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil {
		<-tick.C
		statement := `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT 'order.changed', 'order', $1::int || '-' || i % 7, json_build_object('pad', repeat('x', CASE WHEN random() < 0.005 THEN 3000 ELSE 50 END))
			FROM generate_series(1, $2::int) i
			WHERE (SELECT coalesce(max(id), 0) FROM outbox_events) < $3 + coalesce((SELECT min(head) FROM outbox_positions WHERE destination = 'kafka'), 0)`
		tx, err := x.pool.Begin(x.ctx)
		if err == nil {
			_, err = tx.Exec(x.ctx, statement, writer, events, maxAhead)
		}
		if err != nil {
			x.t.Error(err)
			return
		}
		end := tx.Commit
		switch rand.IntN(40) {
		case 0:
			end = tx.Rollback
		case 1:
			<-tick.C
			<-tick.C
		}
		if err := end(x.ctx); err != nil {
			x.t.Error(err)
			return
		}
	}
}

// TestExactlyOnceUnderKills writes events while relays are killed, frozen and resumed late, cut off and stopped, and
// while the broker is killed. A consumer that reads committed records gets each event once, and the events of a key in
// order. An event that is too large becomes a dead letter, once.
func TestExactlyOnceUnderKills(t *testing.T) {
	t.Parallel()
	strikes := 7
	if os.Getenv(envChaos) == "long" {
		strikes = 50
	}
	x := &exactlyRun{victims: &victims{env: newEnvIn(t, outboxsql.ModeStream)}, broker: testenv.OwnKafka(t, kafkaserver.Config{}), strikes: make(map[string]int)}
	x.environ = []string{envExactlyVictim + "=" + x.url, envExactlyBroker + "=" + x.broker.Addr()}
	testenv.KafkaTopic(t, []string{x.broker.Addr()}, exactlyTopic, exactlyPartitions, nil)
	t.Cleanup(func() {
		for n := range x.relays {
			x.end(n, syscall.SIGKILL)
		}
	})
	for n := range x.relays {
		x.launch(n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writing sync.WaitGroup
	for writer := range 4 {
		writing.Go(func() { x.write(ctx, writer) })
	}
	for i := 0; i < strikes && !t.Failed(); i++ {
		from := scan[int64](x.env, `SELECT coalesce(sum(delivered), 0)::bigint FROM outbox_positions`)
		x.until("deliveries between two faults", `SELECT sum(delivered) > $1::bigint + 500 FROM outbox_positions`, from)
		x.strike(i)
	}
	cancel()
	writing.Wait()
	x.until("everything is delivered, or dead", `SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE state <> 'dead')
		AND EXISTS (SELECT FROM outbox_positions WHERE destination = 'kafka' AND open = '{}' AND head >= (SELECT max(id) FROM outbox_events))`)
	for n := range x.relays {
		x.end(n, syscall.SIGTERM)
	}
	x.check()
}

// check compares the topic, as a consumer of committed records sees it, with the table.
func (x *exactlyRun) check() {
	x.t.Helper()
	written := make(map[int64]bool) // and whether it is too large
	rows, err := x.pool.Query(x.ctx, `SELECT id, length(payload::text) > $1 FROM outbox_events`, exactlyMaxBytes)
	if err != nil {
		x.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var large bool
		if err := rows.Scan(&id, &large); err != nil {
			x.t.Fatal(err)
		}
		written[id] = large
	}
	dead := scan[int](x.env, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`)
	last, seen := make(map[string]int64), make(map[int64]bool)
	twice, disordered, lost, large := 0, 0, 0, 0
	for _, r := range readCommitted(x.t, x.broker.Addr(), exactlyTopic, exactlyPartitions) {
		id := headerID(x.t, r)
		switch {
		case seen[id]:
			twice++
		case id < last[string(r.Key)]:
			disordered++
		}
		seen[id], last[string(r.Key)] = true, id
	}
	for id, tooLarge := range written {
		switch {
		case tooLarge:
			large++
		case !seen[id]:
			lost++
		}
	}
	if lost+twice+disordered > 0 || len(seen)+large != len(written) || dead != large {
		x.t.Errorf("lost %d, twice %d, out of order %d; %d are there of %d that were written, %d are too large, %d dead", lost, twice, disordered, len(seen), len(written), large, dead)
	}
	text, err := json.Marshal(x.strikes)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Logf("%d events, lost %d, twice %d, out of order %d, %d dead; %s", len(written), lost, twice, disordered, dead, strings.Trim(string(text), "{}"))
}

// readCommitted returns the committed records of a topic, in the order of each partition. It writes a marker record to
// each partition, to find the end.
func readCommitted(t *testing.T, addr, topic string, partitions int32) (all []*kgo.Record) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.AlwaysRetryEOF(), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const end = "end"
	for p := range partitions {
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: p, Key: []byte(end)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for ended := int32(0); ended < partitions; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatal(err)
		}
		for _, r := range fetches.Records() {
			if string(r.Key) == end {
				ended++
				continue
			}
			all = append(all, r)
		}
	}
	return all
}

// outages keeps the errors of destinations that are unavailable.
type outages chan error

// Observe implements delivery.Observer.
func (r outages) Observe(i delivery.Incident) {
	if i.Kind != delivery.IncidentDown {
		return
	}
	select {
	case r <- i.Err:
	default:
	}
}

// TestExactlyOnceByHand: what a person does with a position counts, whatever the one in Kafka says; and the position
// of another destination is refused.
func TestExactlyOnceByHand(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	x := newEnvIn(t, outboxsql.ModeStream)
	brokers := testenv.Kafka(t)
	topic := "by-hand-" + scan[string](x, `SELECT current_database()`)
	testenv.KafkaTopic(t, brokers, topic, 1, nil)
	store, err := ops.New(x.pool, ops.Config{Schema: "public"})
	if err != nil {
		t.Fatal(err)
	}
	write := func(n int) {
		x.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT 'order.changed', 'order', '1', '{}' FROM generate_series(1, $1::int)`, n)
	}
	seek := func(to string) {
		if _, err := store.Seek(t.Context(), "orders", to, ops.Action{}); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(outages, 100)
	// relay runs one until the function returns.
	relay := func(destination, id string, until func()) {
		h, err := kafka.New(kafka.Config{Brokers: brokers, Topic: topic, ExactlyOnce: true, TransactionalID: id})
		if err != nil {
			t.Fatal(err)
		}
		r, err := notifyd.New(x.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Observer: errs})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Handle("*", notifyd.Destination{Name: destination, Handler: h, Lane: delivery.Lane{Concurrency: 1, Batch: 1000, LongestPause: time.Second, StartFrom: "beginning"}}); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		until()
		stop()
		if err := errors.Join(<-done, h.Close()); err != nil {
			t.Fatal(err)
		}
	}
	all := func(destination string) func() {
		return func() {
			x.until("everything is delivered", `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = $1 AND open = '{}' AND head >= (SELECT max(id) FROM outbox_events))`, destination)
		}
	}
	var want []int64
	wants := func(from, to int64) {
		for id := from; id <= to; id++ {
			want = append(want, id)
		}
	}
	write(10)
	relay("orders", "", all("orders"))
	wants(1, 10)
	seek("6")
	relay("orders", "", all("orders"))
	wants(6, 10)
	if _, err := store.Forget(t.Context(), "orders", ops.Action{}); err != nil {
		t.Fatal(err)
	}
	relay("orders", "", all("orders"))
	wants(1, 10)
	write(5)
	seek("14")
	relay("orders", "", all("orders"))
	wants(14, 15)
	id := kafka.Config{}.PositionID(scan[string](x, `SELECT current_database() || '/public/orders/0'`), 0)
	relay("others", id, func() {
		for timeout := time.After(patience); ; {
			select {
			case err := <-errs:
				if strings.Contains(err.Error(), `belongs to destination "orders"`) && strings.Contains(err.Error(), "set another transactional_id") {
					return
				}
			case <-timeout:
				t.Fatal("the position of another destination is not refused")
			}
		}
	})
	relay("others", id+"-own", all("others"))
	wants(1, 15)
	var got []int64
	for _, r := range readCommitted(t, brokers[0], topic, 1) {
		got = append(got, headerID(t, r))
	}
	if !slices.Equal(got, want) {
		t.Errorf("a consumer has %v, want %v", got, want)
	}
}
