package integration

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe"
)

// httpReceiver is an HTTP server that counts events and can be stopped and
// started again at the same address.
type httpReceiver struct {
	t     *testing.T
	serve http.HandlerFunc // nil: 204
	addr  string
	l     net.Listener
	srv   *http.Server
	done  chan struct{}

	mu    sync.Mutex
	more  chan struct{} // closed when there is another
	total int
	count map[int64]int
	ids   map[int64]string // webhook-id by event
}

func startHTTPReceiver(t *testing.T, serve http.HandlerFunc) *httpReceiver {
	t.Helper()
	r := &httpReceiver{
		t: t, serve: serve,
		more: make(chan struct{}), count: make(map[int64]int), ids: make(map[int64]string),
	}
	l, err := freeport.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	r.run(l)
	t.Cleanup(r.stop)
	return r
}

// start starts it again.
func (r *httpReceiver) start() {
	r.t.Helper()
	l, err := freeport.Reopen(r.t.Context(), r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.run(l)
}

func (r *httpReceiver) run(l net.Listener) {
	r.l = l
	r.srv = &http.Server{Handler: r, ErrorLog: testenv.Quiet()}
	r.done = make(chan struct{})
	srv, done := r.srv, r.done
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
}

// stop resets the requests that are under way.
func (r *httpReceiver) stop() {
	_ = r.srv.Close()
	<-r.done
}

// ServeHTTP implements http.Handler.
func (r *httpReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return
	}
	id, err := strconv.ParseInt(req.Header.Get("notifyd-id"), 10, 64)
	if err != nil {
		http.Error(w, "no notifyd-id", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.total++
	r.count[id]++
	if was := r.ids[id]; was != "" && was != req.Header.Get("webhook-id") {
		r.t.Errorf("event %d came as %s and as %s", id, was, req.Header.Get("webhook-id"))
	}
	r.ids[id] = req.Header.Get("webhook-id")
	close(r.more)
	r.more = make(chan struct{})
	r.mu.Unlock()
	if r.serve != nil {
		r.serve(w, req)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// await waits until n requests have come in total.
func (r *httpReceiver) await(n int) {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		r.mu.Lock()
		total, more := r.total, r.more
		r.mu.Unlock()
		if total >= n {
			return
		}
		select {
		case <-more:
		case <-deadline:
			r.t.Fatalf("%d requests, want %d", total, n)
		}
	}
}

// events returns the number of events and of requests.
func (r *httpReceiver) events() (events, requests int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.count), r.total
}

func (r *httpReceiver) requests() int {
	_, requests := r.events()
	return requests
}

// attemptHeader has the number of the attempt.
const attemptHeader = "attempt-number"

func webhookTo(t *testing.T, r *httpReceiver) *webhook.Handler {
	t.Helper()
	return webhookOf(t, r, 0)
}

// webhookOf is webhookTo with an age of connections.
func webhookOf(t *testing.T, r *httpReceiver, age time.Duration) *webhook.Handler {
	t.Helper()
	h, err := webhook.New(webhook.Config{
		MaxConnectionAge: age,
		URL:              "http://" + r.addr + "/events",
		SigningSecrets:   []handlers.Secret{handlers.NewSecret("whsec_YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYmNkZWY=")},
		Headers:          map[string]string{attemptHeader: "{{ .Event.Attempt }}"},
		// The receivers of these tests always answer in the end.
		ResponseTimeout: patience, RequestTimeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestWebhookFollowsItsAddress: another server takes over the address of a receiver, which still answers on its open
// connections. Requests go to the new server when these connections are old, or at the first fault.
func TestWebhookFollowsItsAddress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		age  time.Duration
		code int // of the server that has lost its address
	}{
		"age":   {100 * time.Millisecond, http.StatusNoContent},
		"fault": {time.Hour, http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var code atomic.Int64
			code.Store(http.StatusNoContent)
			old := startHTTPReceiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(code.Load())) })
			next := &httpReceiver{t: t, addr: old.addr, more: make(chan struct{}), count: make(map[int64]int), ids: make(map[int64]string)}
			h := webhookOf(t, old, c.age)
			e := newEnv(t)
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			id := e.insert("order", `{}`)
			e.untilState(id, "done")
			if err := old.l.Close(); err != nil { // and no connection of it
				t.Fatal(err)
			}
			next.start()
			t.Cleanup(next.stop)
			code.Store(int64(c.code))
			for deadline := time.Now().Add(patience); next.requests() == 0; {
				if time.Now().After(deadline) {
					t.Fatalf("no request has come to the new server, %d to the old one", old.requests())
				}
				e.untilState(e.insert("order", `{}`), "done")
			}
			if d := r.Stats().Destinations[0]; d.Dead != 0 || d.Classes[delivery.ClassEvent] != 0 {
				t.Errorf("an attempt was counted: %+v", d)
			}
		})
	}
}

// TestWebhookReceiverRestarts under load: nothing is lost, nothing dies, and no
// attempt is counted. With one attempt allowed, the first one counted would be
// a dead letter.
func TestWebhookReceiverRestarts(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const events = 4000
			e := newEnvIn(t, mode)
			var hold atomic.Bool // some answers, so that requests are under way when the receiver stops
			hold.Store(true)
			r := startHTTPReceiver(t, func(w http.ResponseWriter, req *http.Request) {
				if hold.Load() && strings.HasSuffix(req.Header.Get("notifyd-id"), "00") {
					<-req.Context().Done()
					return
				}
				w.WriteHeader(http.StatusNoContent)
			})
			h := webhookTo(t, r)
			t.Cleanup(func() { _ = h.Close() }) // after the relay has ended
			relay := e.relay(handleAll(t, h, delivery.Lane{MaxAttempts: 1, Concurrency: 16, Timeout: patience}), notifyd.Config{})
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'order.placed', to_json(n) FROM generate_series(1, $1::int) n`, events)
			for _, n := range []int{events / 5, events / 2} {
				r.await(n)
				r.stop()
				relay.untilDestination("unavailable", func(d *observe.DestinationStats) bool { return d.Down })
				hold.Store(false)
				r.start()
			}
			e.untilDone()
			if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); n != 0 {
				t.Errorf("%d deliveries left, dead ones among them:\n%s", n, e.dump())
			}
			came, requests := r.events()
			if came != events {
				t.Errorf("%d of %d events came", came, events)
			}
			if copies := requests - came; copies == 0 || copies > 2*16 {
				t.Errorf("%d copies: want some, but no more than were under way", copies)
			}
			t.Logf("%d events, %d copies", came, requests-came)
		})
	}
}
