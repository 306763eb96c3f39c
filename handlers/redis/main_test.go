package redis

import (
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
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
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
func open(tb testing.TB, url string, changes ...func(*Config)) *Handler {
	tb.Helper()
	return deliverytest.Open(tb, New, deliverytest.Changed(Config{URL: handlers.NewSecret(url), Stream: "s"}, changes...))
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
func events(ids ...int64) []*delivery.Event { return deliverytest.Spread("redis", ids...) }

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
