package deliverytest

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

// RetryConnections fails the test unless first attempts share a connection, and each attempt after a counted failure
// begins on a new one. open returns a handler that sends to the server at the URL, which refuses every request.
func RetryConnections(tb testing.TB, open func(tb testing.TB, url string) delivery.Handler, e *delivery.Event) {
	tb.Helper()
	var made atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			made.Add(1)
		}
	}
	server.Start()
	tb.Cleanup(server.Close)

	h := open(tb, server.URL)
	for i, c := range []struct {
		attempt int
		want    int32
	}{{1, 1}, {1, 1}, {2, 2}, {3, 3}, {2, 4}} {
		e.Attempt = c.attempt
		if err := h.Deliver(tb.Context(), e); err == nil {
			tb.Fatal("the refused event is delivered")
		}
		if n := made.Load(); n != c.want {
			tb.Errorf("request %d, attempt %d: %d connections, want %d", i, c.attempt, n, c.want)
		}
	}
}

// Failover fails the test unless h delivers each event within three attempts, although the server that took the event before
// it has begun to refuse everything, and keeps its connections open. h leads to two servers through a balancer of
// connections; refuse makes the server of that number refuse, and the other one accept.
func Failover(tb testing.TB, h delivery.Handler, all []*delivery.Event, refuse func(server int)) {
	tb.Helper()
	const attempts = 3
	refused := 0
	for i, e := range all {
		refuse(i % 2)

		err := h.Deliver(tb.Context(), e)
		for tries := 1; err != nil && tries < attempts; tries++ {
			refused++
			if !delivery.IsUnavailable(err) {
				e.Attempt++ // an outage counts no attempt
			}
			err = h.Deliver(tb.Context(), e)
		}
		if err != nil {
			tb.Errorf("event %d: after %d attempts: %v", e.ID, attempts, err)
		}
	}
	if refused < len(all)-1 {
		tb.Errorf("%d attempts were refused: the servers refused too little", refused)
	}
}
