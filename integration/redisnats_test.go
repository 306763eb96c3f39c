package integration

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	goredis "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/nats"
	"github.com/notifyd/notifyd/handlers/redis"
	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// killed is a handler whose server is killed, and its calls.
type killed struct {
	delivery.BatchHandler

	attempt atomic.Int64 // the highest
	failed  atomic.Int64 // batches
}

// DeliverBatch implements delivery.BatchHandler.
func (k *killed) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	errs := k.BatchHandler.DeliverBatch(ctx, events)
	if errs != nil {
		k.failed.Add(1)
	}
	for _, e := range events {
		if n := int64(e.Attempt); n > k.attempt.Load() { // one batch at a time
			k.attempt.Store(n)
		}
	}
	return errs
}

// killUnderLoad kills a server while events are written, restarts it a while
// later, and requires that all of them are delivered: nothing is lost, nothing
// dies, and no attempt is counted. arrived returns the ids that have arrived.
func killUnderLoad(t *testing.T, mode outboxsql.Mode, server *privateserver.Server, h delivery.BatchHandler, arrived func() []int64) {
	t.Helper()
	t.Cleanup(func() {
		if err := h.(io.Closer).Close(); err != nil { //nolint:forcetypeassert // both are
			t.Error(err)
		}
	})
	k := &killed{BatchHandler: h}
	e := newEnvIn(t, mode)
	e.relay(handleAll(t, k, delivery.Lane{Concurrency: 1, Batch: 100, Timeout: time.Minute}), notifyd.Config{})
	written := 0
	// write continues until a condition holds.
	write := func(until func() bool) {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		deadline := time.After(patience)
		for !until() {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("after %d events, %d batches failed", written, k.failed.Load())
			}
			e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
				SELECT 'order.changed', 'order', 'k' || i % 7, '{}' FROM generate_series(1, 20) i`)
			written += 20
		}
	}
	write(func() bool { return written >= 2000 })
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(func() bool { return written >= 4000 && k.failed.Load() >= 2 })
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	mark := written
	write(func() bool { return written >= mark+1000 })
	e.untilDone()

	if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); n != 0 {
		t.Errorf("%d deliveries are left", n)
	}
	if k.attempt.Load() != 1 {
		t.Errorf("an event was at attempt %d: attempts were counted", k.attempt.Load())
	}
	seen := make(map[int64]int)
	for _, id := range arrived() {
		seen[id]++
	}
	copies := 0
	for _, n := range seen {
		copies += n - 1
	}
	if len(seen) != written {
		t.Errorf("%d different events have arrived, want %d", len(seen), written)
	}
	t.Logf("%d events, %d batches failed, %d copies", written, k.failed.Load(), copies)
}

func TestRedisKilledUnderLoad(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnRedis(t)
			h, err := redis.New(redis.Config{URL: handlers.NewSecret("redis://" + server.Addr()), Stream: "orders"})
			if err != nil {
				t.Fatal(err)
			}
			killUnderLoad(t, mode, server, h, func() (ids []int64) {
				cl := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Protocol: 2})
				defer cl.Close() //nolint:errcheck // of the test
				entries, err := cl.XRange(t.Context(), "orders", "-", "+").Result()
				if err != nil {
					t.Fatal(err)
				}
				for _, entry := range entries {
					ids = append(ids, number(t, fmt.Sprint(entry.Values["id"])))
				}
				return ids
			})
		})
	}
}

func TestNATSKilledUnderLoad(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnNATS(t, "")
			nc, err := natsgo.Connect("nats://"+server.Addr(), natsgo.Timeout(patience), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}}); err != nil {
				t.Fatal(err)
			}
			h, err := nats.New(nats.Config{Servers: []string{"nats://" + server.Addr()}, Subject: "orders", Stream: "ORDERS"})
			if err != nil {
				t.Fatal(err)
			}
			killUnderLoad(t, mode, server, h, func() (ids []int64) {
				sub, err := js.OrderedConsumer(t.Context(), "ORDERS", jetstream.OrderedConsumerConfig{})
				if err != nil {
					t.Fatal(err)
				}
				info, err := sub.Info(t.Context())
				for left := info.NumPending; err == nil && left > 0; {
					var batch jetstream.MessageBatch
					if batch, err = sub.FetchNoWait(int(min(left, 1000))); err != nil {
						break
					}
					for m := range batch.Messages() {
						ids = append(ids, number(t, m.Headers().Get("notifyd-id")))
						left--
					}
					err = batch.Error()
				}
				if err != nil {
					t.Fatal(err)
				}
				return ids
			})
		})
	}
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
