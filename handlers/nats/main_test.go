package nats

import (
	"context"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds waiting for something that is to happen; no test expects it to
// run out.
const patience = 60 * time.Second

// open makes a handler and closes it after the test.
func open(tb testing.TB, url string, changes ...func(*Config)) *Handler {
	tb.Helper()
	return deliverytest.Open(tb, New, deliverytest.Changed(Config{Servers: []string{url}, Subject: "s", AckTimeout: patience}, changes...))
}

func to(subject string) func(*Config) { return func(c *Config) { c.Subject = subject } }

// client is another view of the server. It comes back after a restart.
func client(tb testing.TB, url string, options ...natsgo.Option) (*natsgo.Conn, jetstream.JetStream) {
	tb.Helper()
	if !strings.Contains(url, "://") {
		url = "nats://" + url
	}
	quiet := natsgo.ErrorHandler(func(*natsgo.Conn, *natsgo.Subscription, error) {})
	nc, err := natsgo.Connect(url, append([]natsgo.Option{
		quiet, natsgo.Timeout(patience), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20 * time.Millisecond), natsgo.ReconnectJitter(0, 0),
	}, options...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	if err != nil {
		tb.Fatal(err)
	}
	return nc, js
}

// newStream makes a stream with the given subjects.
func newStream(tb testing.TB, js jetstream.JetStream, cfg jetstream.StreamConfig) {
	tb.Helper()
	if _, err := js.CreateOrUpdateStream(tb.Context(), cfg); err != nil {
		tb.Fatal(err)
	}
}

// events makes events with the given ids; the aggregate of each is its id
// modulo 7.
func events(ids ...int64) []*delivery.Event { return deliverytest.Spread("nats", ids...) }

// stored returns the messages of a stream from the given sequence number on, in
// order.
func stored(tb testing.TB, js jetstream.JetStream, stream string, from int) (all []*jetstream.RawStreamMsg) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		tb.Fatal(err)
	}
	state := s.CachedInfo().State
	for seq := max(state.FirstSeq, uint64(from)); seq <= state.LastSeq && state.Msgs > 0; seq++ {
		m, err := s.GetMsg(ctx, seq)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// written returns the ids in a stream, in order.
func written(tb testing.TB, js jetstream.JetStream, stream string) (ids []int64) {
	tb.Helper()
	return writtenSince(tb, js, stream, nil)
}

// writtenSince adds the messages of a stream since the last call.
func writtenSince(tb testing.TB, js jetstream.JetStream, stream string, ids []int64) []int64 {
	tb.Helper()
	for _, m := range stored(tb, js, stream, len(ids)+1) {
		id, err := strconv.ParseInt(m.Header.Get("notifyd-id"), 10, 64)
		if err != nil {
			tb.Fatalf("message %v: %v", m.Header, err)
		}
		ids = append(ids, id)
	}
	return ids
}

var (
	_ delivery.BatchHandler = (*Handler)(nil)
	_ io.Closer             = (*Handler)(nil)
)
