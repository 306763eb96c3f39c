// Package httpconn decides over which HTTP connection a request of a destination goes: connections have an age, and a
// retry does not use the connection that its event failed on.
package httpconn

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// retryIdle closes connections of retries that are not used. Over HTTP/2 a replaced connection is closed by it alone
// if a request was in flight.
const retryIdle = 5 * time.Second

// Transport is an http.RoundTripper whose connections are replaced when they are old, also while they are
// in use all the time, or when they are suspected of a fault.
//
// Retries have connections of their own, and a failed retry replaces them. Behind a name there may be a balancer that
// gives each connection to one of several servers. If one of the servers fails at every event, each retry over the same
// connection would fail, too. First attempts keep their connections, because a server may refuse some events and take
// the others.
type Transport struct {
	age time.Duration

	mu      sync.Mutex
	first   connections // of first attempts
	retries connections // of attempts after a counted failure
}

// connections has an http.Transport and the time of its first request.
type connections struct {
	transport *http.Transport
	since     time.Time // when the transport got its first request; zero before
}

// New returns a Transport that begins with the connections of first and replaces them by connections of a
// copy.
func New(first *http.Transport, age time.Duration) *Transport {
	return &Transport{age: age, first: connections{transport: first}}
}

type retryKey struct{}

// ForEvents returns a context for requests with these events. If one of them is tried again after a counted failure, the
// requests go over a connection on which nothing has failed.
func ForEvents(ctx context.Context, events ...*delivery.Event) context.Context {
	if !idle.IsRetry(events) {
		return ctx
	}
	return context.WithValue(ctx, retryKey{}, true)
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Context().Value(retryKey{}) != nil {
		return t.forRetry().RoundTrip(req)
	}
	return t.Current().RoundTrip(req)
}

// Current returns the transport for the next first attempt.
func (t *Transport) Current() *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first.use(t.age)
}

// forRetry returns the transport for the next retry.
func (t *Transport) forRetry() *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.retries.transport == nil {
		t.retries.transport = t.first.transport.Clone()
		t.retries.transport.IdleConnTimeout = retryIdle
	}
	return t.retries.use(t.age)
}

// use returns the transport for the next request, a new one if the present one is as old as age.
func (c *connections) use(age time.Duration) *http.Transport {
	now := time.Now()
	if !c.since.IsZero() && now.Sub(c.since) >= age {
		c.renew()
	}
	if c.since.IsZero() {
		c.since = now
	}
	return c.transport
}

// renew leaves the connections. Those in use are closed with the end of their request.
func (c *connections) renew() {
	old := c.transport
	c.transport = old.Clone()
	c.since = time.Time{}
	old.CloseIdleConnections()
}

// Learn records the marked errors of requests. ctx is a context of [ForEvents]. A failed retry makes the next retry begin
// on a new connection. An error that [outcome.MayBeServer] accepts makes the next first attempt begin on a new connection.
func (t *Transport) Learn(ctx context.Context, errs ...error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	isRetry := ctx.Value(retryKey{}) != nil
	if isRetry && t.retries.isUsed() && slices.ContainsFunc(errs, isError) {
		t.retries.renew()
	}
	if t.first.isUsed() && time.Since(t.first.since) >= idle.RenewEvery && slices.ContainsFunc(errs, outcome.MayBeServer) {
		t.first.renew()
	}
}

// isUsed reports whether the transport got a request.
func (c *connections) isUsed() bool { return !c.since.IsZero() }

func isError(err error) bool { return err != nil }

// CloseIdleConnections closes the connections that no request uses.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.first.transport.CloseIdleConnections()
	if t.retries.transport != nil {
		t.retries.transport.CloseIdleConnections()
	}
}
