package integration

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// vanishing leads to a server whose peers vanish on command: the clients lose their connections,
// and the server hears nothing of it, as after a long cut of the network between them.
type vanishing struct {
	target string
	listen net.Listener
	work   sync.WaitGroup

	mu      sync.Mutex
	clients map[net.Conn]chan struct{} // each with the signal that it is about to vanish
	servers []net.Conn                 // closed at the end only
}

// vanishes returns a way to the server of a connection URL, and the URL that leads along it.
func vanishes(t *testing.T, to string) (*vanishing, string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &vanishing{target: u.Host, listen: l, clients: make(map[net.Conn]chan struct{})}
	u.Host = l.Addr().String()
	ctx := context.WithoutCancel(t.Context())
	v.work.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			v.work.Go(func() { v.forward(ctx, client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		v.vanish()
		v.mu.Lock()
		for _, s := range v.servers {
			_ = s.Close()
		}
		v.mu.Unlock()
		v.work.Wait()
	})
	return v, u.String()
}

// vanish makes all clients of the moment vanish.
func (v *vanishing) vanish() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for client, gone := range v.clients {
		close(gone)
		_ = client.Close()
		delete(v.clients, client)
	}
}

func (v *vanishing) forward(ctx context.Context, client net.Conn) {
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", v.target)
	if err != nil {
		_ = client.Close()
		return
	}
	gone := make(chan struct{})
	v.mu.Lock()
	v.clients[client] = gone
	v.servers = append(v.servers, server)
	v.mu.Unlock()
	v.work.Go(func() {
		_, _ = io.Copy(client, server) // the server's answers after the client has vanished are lost
		_ = client.Close()
	})
	_, _ = io.Copy(server, client)
	v.mu.Lock()
	defer v.mu.Unlock()
	select {
	case <-gone:
	default: // the client has closed the connection
		delete(v.clients, client)
		_ = server.Close()
	}
}

// TestVanishBehindAPooler: a pooler in session mode keeps the server's sessions of clients that
// have vanished, and with them their locks: that of the relay's life, those of the units, and the
// one by which the relay suppresses the trigger. The relay must not wait for any of them.
func TestVanishBehindAPooler(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, fast, slow := newEnvIn(t, mode), newRecorder(t), newRecorder(t)
			answer := make(chan struct{})
			slow.answer = func(ctx context.Context, _ *delivery.Event) error {
				select {
				case <-answer:
				case <-ctx.Done():
				}
				return ctx.Err()
			}
			way, through := vanishes(t, testenv.PgBouncer(t, e.url, "session"))
			r := e.through(through).relay(func(r *notifyd.Relay) {
				for name, h := range map[string]*recorder{"fast": fast, "slow": slow} {
					if err := r.Handle(name, notifyd.Destination{Name: name, Handler: h}); err != nil {
						t.Fatal(err)
					}
				}
			}, notifyd.Config{PollInterval: never, Lease: time.Hour})
			e.insert("slow", "1")
			slow.next()
			if mode == outboxsql.ModeQueue {
				e.until("a lease", `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE state = 'running')`)
			}
			e.untilPolling(way.vanish)
			close(answer)
			e.untilDone()
			// From here on the relay is listening, and only a notification can name an event.
			e.until("notifications released", `SELECT NOT (`+suppressed+`)`)
			e.insert("fast", "1")
			e.untilDone()
			testenv.Await(t, "the end of the outage", func() bool { return !r.Stats().DatabaseDown })
		})
	}
}

// untilPolling writes events until a relay suppresses the trigger, and calls then while it does.
func (e *env) untilPolling(then func()) {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.ctx)
	var load sync.WaitGroup
	load.Go(func() {
		for ctx.Err() == nil {
			_, err := e.pool.Exec(ctx, `INSERT INTO outbox_events (event_type, payload) SELECT 'fast', '1' FROM generate_series(1, 500)`)
			if err != nil && ctx.Err() == nil {
				e.t.Errorf("write events: %v", err)
				return
			}
		}
	})
	defer load.Wait()
	defer cancel()
	e.until("notifications suppressed", suppressed)
	then()
}
