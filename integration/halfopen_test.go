package integration

import (
	"net/url"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// cuttable returns a network that leads to the database of e, and its URL.
func (e *env) cuttable() (*testenv.Network, string) {
	e.t.Helper()
	u, err := url.Parse(e.url)
	if err != nil {
		e.t.Fatal(err)
	}
	network := testenv.NewNetwork(e.t, u.Host)
	u.Host = network.Addr
	return network, u.String()
}

// TestNetworkCut: all packets are dropped, and neither side gets an error. The listener and the claimers notice the cut,
// and events that are written meanwhile are delivered when the network is back. Without TCP_USER_TIMEOUT and keepalive
// that would take a quarter of an hour, or two hours.
func TestNetworkCut(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			network, through := e.cuttable()
			r := e.through(through).relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: time.Second})
			for round := range 2 {
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'n', '1' FROM generate_series(1, 500)`)
				h.next()
				network.Cut()
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'n', '1' FROM generate_series(1, 500)`)
				testenv.Await(t, "the loss of the listener", func() bool { return !r.Listening() })
				testenv.Await(t, "the loss of the database", func() bool { return r.Stats().DatabaseDown })
				network.Restore()
				e.untilDone()
				if n := scan[int](e, `SELECT count(*) FROM outbox_events`); n != 1000*(round+1) {
					t.Errorf("%d events are done, want %d", n, 1000*(round+1))
				}
				h.all(e, 1000*(round+1))
				testenv.Await(t, "the return of the listener", func() bool { s := r.Stats().Listener; return s.Listening && s.Trouble == nil })
			}
		})
	}
}

// TestListenerHalfOpen: only the listening connection is dead, without an error.
// The canary, which uses another connection, reveals it, and events are found by
// polling meanwhile, although the poll interval is endless.
func TestListenerHalfOpen(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			network, through := e.cuttable()
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never, ListenConfig: listenAt(t, through), Canary: 100 * time.Millisecond})
			testenv.Await(t, "proof", func() bool { return !r.Stats().Listener.Proven.IsZero() })
			testenv.Await(t, "listening", r.Listening) // a busy machine may be late with a canary
			testenv.Await(t, "the end of earlier incidents", func() bool { return r.count("listening again") == r.count("not listening") })
			before := r.count("not listening")
			network.Cut()
			id := e.insert("order.created", `{}`)
			if got := h.next(); got.ID != id {
				t.Errorf("got event %d, want %d", got.ID, id)
			}
			// The first sweep may have found it before the canary was missed.
			testenv.Await(t, "the loss of the listener", func() bool { return !r.Listening() })
			network.Restore()
			testenv.Await(t, "the return of the listener", func() bool { s := r.Stats().Listener; return s.Listening && s.Trouble == nil })
			if n := r.count("not listening") - before; n != 1 {
				t.Errorf("the loss was reported %d times", n)
			}
			id = e.insert("order.created", `{}`)
			if got := h.next(); got.ID != id {
				t.Errorf("got event %d, want %d", got.ID, id)
			}
			e.untilDone()
		})
	}
}
