// Package httpconn gives the HTTP connections of a destination an age.
package httpconn

import (
	"net/http"
	"sync"
	"time"
)

// renewEvery is the shortest time between two calls of [Transport.Renew] that have an effect: a
// destination that fails at every event would cost a handshake each time.
const renewEvery = time.Second

// Transport is an http.RoundTripper whose connections are replaced when they are old, also while they are
// in use all the time, or when they are suspected of a fault.
type Transport struct {
	age time.Duration

	mu    sync.Mutex
	now   *http.Transport
	since time.Time // when now got its first request; zero before
}

// New returns a Transport that begins with the connections of first and replaces them by connections of a
// copy.
func New(first *http.Transport, age time.Duration) *Transport {
	return &Transport{age: age, now: first}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.Current().RoundTrip(req)
}

// Current returns the transport for the next request.
func (t *Transport) Current() *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	switch {
	case t.since.IsZero():
		t.since = now
	case now.Sub(t.since) >= t.age:
		t.renewLocked(now)
	}
	return t.now
}

// renewLocked leaves the connections. Those in use are closed with the end of their request.
func (t *Transport) renewLocked(now time.Time) {
	old := t.now
	t.now, t.since = old.Clone(), now
	old.CloseIdleConnections()
}

// Renew makes the next request begin on a new connection: the server, or the way to it, has failed, and
// another one may be behind the name.
func (t *Transport) Renew() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.since) >= renewEvery {
		t.renewLocked(now)
	}
}

// CloseIdleConnections closes the connections that no request uses.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now.CloseIdleConnections()
}
