package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/secret"
	"github.com/notifyd/notifyd/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv("NOTIFYD_TEST_REDIS_LOG") == "" {
		logging.Disable() // it reports faults that the tests provoke
	}
	testenv.Main(m)
}

// patience bounds waiting for something that is to happen; no test expects it to
// run out. A sentinel that found its machine asleep does nothing for 30 s, and
// tries a failover again after 20 s.
const patience = 4 * time.Minute

// open makes a handler and closes it after the test.
func open(tb testing.TB, url string, change ...func(*Config)) *Handler {
	tb.Helper()
	cfg := Config{URL: secret.New(url), Stream: "s"}
	for _, f := range change {
		f(&cfg)
	}
	h, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := h.Close(); err != nil {
			tb.Error(err)
		}
	})
	return h
}

func to(stream string) func(*Config) { return func(c *Config) { c.Stream = stream } }

// client is another view of the server.
func client(tb testing.TB, addr string) *goredis.Client {
	tb.Helper()
	addr = strings.TrimPrefix(addr, "redis://")
	cl := goredis.NewClient(&goredis.Options{Addr: addr, Protocol: 2})
	tb.Cleanup(func() { _ = cl.Close() })
	return cl
}

// do runs a command that must succeed.
func do(tb testing.TB, cl *goredis.Client, args ...any) any {
	tb.Helper()
	v, err := cl.Do(tb.Context(), args...).Result()
	if err != nil {
		tb.Fatalf("%v: %v", args, err)
	}
	return v
}

// events makes events with the given ids; the aggregate of each is its id
// modulo 7.
func events(ids ...int64) []*delivery.Event {
	all := make([]*delivery.Event, len(ids))
	for i, id := range ids {
		all[i] = &delivery.Event{
			ID: id, Type: "order.created", AggregateType: "order", AggregateID: fmt.Sprint("k", id%7),
			Payload: json.RawMessage(fmt.Sprintf(`{"n": %d}`, id)), Attempt: 1, Destination: "redis",
			CreatedAt: time.Date(2026, 11, 21, 10, 0, 0, 123456000, time.UTC),
			Headers:   map[string]string{"traceparent": "00-1-2-03", "tenant": "a"},
		}
	}
	return all
}

func upTo(n int64) (ids []int64) {
	for id := int64(1); id <= n; id++ {
		ids = append(ids, id)
	}
	return ids
}

// deliver fails the test unless all are delivered.
func deliver(tb testing.TB, h *Handler, all []*delivery.Event) {
	tb.Helper()
	for i, err := range h.DeliverBatch(tb.Context(), all) {
		if err != nil {
			tb.Fatalf("event %d: %v", all[i].ID, err)
		}
	}
}

// written returns the ids in a stream, in order.
func written(tb testing.TB, cl *goredis.Client, stream string) (ids []int64) {
	tb.Helper()
	entries, err := cl.XRange(tb.Context(), stream, "-", "+").Result()
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		id, err := strconv.ParseInt(fmt.Sprint(e.Values["id"]), 10, 64)
		if err != nil {
			tb.Fatalf("entry %v: %v", e, err)
		}
		ids = append(ids, id)
	}
	return ids
}

// wantClass checks whose fault an error says it is.
func wantClass(tb testing.TB, err error, want string) {
	tb.Helper()
	if got := classOf(err); got != want {
		tb.Errorf("class of %v is %s, want %s", err, got, want)
	}
}

func classOf(err error) string {
	switch {
	case err == nil:
		return "delivered"
	case delivery.IsPermanent(err):
		return "permanent"
	case delivery.IsUnavailable(err):
		return "unavailable"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "ours"
	default:
		return "event"
	}
}

func mustContain(tb testing.TB, err error, words ...string) {
	tb.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			tb.Errorf("error %v does not contain %q", err, w)
		}
	}
}

var (
	_ delivery.BatchHandler = (*Handler)(nil)
	_ io.Closer             = (*Handler)(nil)
)

// idleLanes returns the lanes that wait for a batch.
func idleLanes(h *Handler) (all []*lane) {
	for {
		l, _ := h.idle.Take(func() *lane { return nil })
		if l == nil {
			break
		}
		all = append(all, l)
	}
	for _, l := range slices.Backward(all) {
		h.idle.Put(l)
	}
	return all
}
