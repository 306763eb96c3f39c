//go:build testall

package integration

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/time/rate"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// slowLink is a network to the database that carries so many bytes per second to the relay, over all connections. The
// end of the test closes it.
type slowLink struct {
	upstream string
	limiter  *rate.Limiter
}

const linkChunk = 64 << 10

// serve passes the connections of l on until ctx ends.
func (s *slowLink) serve(ctx context.Context, l net.Listener) {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.upstream)
		if err != nil {
			_ = client.Close()
			continue
		}
		context.AfterFunc(ctx, func() { _, _ = client.Close(), server.Close() })
		work.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
		work.Go(func() { s.answers(ctx, client, server) })
	}
}

// answers passes the server's bytes on, no faster than the link.
func (s *slowLink) answers(ctx context.Context, client, server net.Conn) {
	defer client.Close() //nolint:errcheck // it is over
	buf := make([]byte, linkChunk)
	for {
		n, err := server.Read(buf)
		if s.limiter.WaitN(ctx, n) != nil {
			return
		}
		if _, werr := client.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}

// linked returns a URL of the database that leads over a slow link.
func (e *env) linked(bytesPerSecond int) string {
	e.t.Helper()
	u, err := url.Parse(e.url)
	if err != nil {
		e.t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(e.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		e.t.Fatal(err)
	}
	link := &slowLink{upstream: u.Host, limiter: rate.NewLimiter(rate.Limit(bytesPerSecond), linkChunk)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		link.serve(ctx, l)
	}()
	e.t.Cleanup(func() {
		cancel()
		_ = l.Close()
		<-done
	})
	u.Host = l.Addr().String()
	return u.String()
}

// TestLargeEventsOverSlowLink: events that together are too large to be read in time are read in parts, fresh and as
// retries.
func TestLargeEventsOverSlowLink(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, mode)
			const events, size = 24, 8_000_000
			e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
				SELECT 'order.created', 'order', n::text, to_json(repeat('x', $2::int)) FROM generate_series(1, $1::int) n`, events, size)
			var failed sync.Map
			var delivered atomic.Int64
			h := delivery.HandlerFunc(func(_ context.Context, got *delivery.Event) error {
				if len(got.Payload) < size {
					t.Errorf("event %d has %d bytes", got.ID, len(got.Payload))
				}
				if _, again := failed.LoadOrStore(got.ID, true); !again {
					return context.DeadlineExceeded
				}
				delivered.Add(1)
				return nil
			})
			e.through(e.linked(size*events/12)).relay(handleAll(t, h, delivery.Lane{Backoff: quick()}), notifyd.Config{})
			e.untilDone()
			if n := delivered.Load(); n < events {
				t.Errorf("%d of %d events were delivered", n, events)
			}
		})
	}
}
