package handlertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/freeport"
)

// Proxy is a TCP proxy on the loopback that fails on command, for tests of faults between a request and its answer. A
// fault is in effect when the method that makes it returns. A Proxy is the Network of a [Destination]. All methods are safe
// for concurrent use.
type Proxy struct {
	upstream string
	matches  [][]byte // what Mute waits for
	addr     string
	ctx      context.Context //nolint:containedctx // the proxy's own: it ends with Close
	cancel   context.CancelFunc
	work     sync.WaitGroup // all goroutines of the proxy

	faults sync.Mutex // held by Cut, Mute, Refuse, Heal and Close: one at a time

	mu       sync.Mutex
	listener net.Listener  // nil while connections are refused
	accepts  chan struct{} // closed when the accept loop of listener has ended
	pairs    map[*pair]struct{}
	muted    bool
	accepted int
	sent     int64
	changed  chan struct{} // closed and replaced at every change that is waited for
}

// ProxyOption changes how a proxy works.
type ProxyOption func(*Proxy)

// MuteAfter makes [Proxy.Mute] begin on each connection only when its client
// has sent one of matches, which are not empty. It is for protocols that answer
// several times before the answer that counts: "\r\n.\r\n" ends a mail of SMTP.
// The proxy has to see the plain text.
func MuteAfter(matches ...[]byte) ProxyOption { return func(p *Proxy) { p.matches = matches } }

// StartProxy starts a proxy for the server at upstream, host:port, which need not
// be there yet. The end of the test closes it.
func StartProxy(tb testing.TB, upstream string, opts ...ProxyOption) *Proxy {
	tb.Helper()
	p, err := NewProxy(upstream, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// NewProxy is [StartProxy] without a test. The caller closes the proxy.
func NewProxy(upstream string, opts ...ProxyOption) (*Proxy, error) {
	p := &Proxy{upstream: upstream, pairs: make(map[*pair]struct{}), changed: make(chan struct{})}
	for _, opt := range opts {
		opt(p)
	}

	p.ctx, p.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // it lives until Close
	l, err := freeport.Listen(p.ctx)                           // a port that is still free when the proxy comes back to it
	if err != nil {
		p.cancel()
		return nil, fmt.Errorf("proxy: %w", err)
	}

	p.addr = l.Addr().String()
	p.accept(l)
	return p, nil
}

// Addr returns the address of the proxy, host:port. It never changes.
func (p *Proxy) Addr() string { return p.addr }

// Host returns the host of Addr.
func (*Proxy) Host() string { return "127.0.0.1" }

// Port returns the port of Addr.
func (p *Proxy) Port() int {
	_, port, _ := net.SplitHostPort(p.addr)
	n, _ := strconv.Atoi(port) // reopen and New set it
	return n
}

// accept serves the connections to l.
func (p *Proxy) accept(l net.Listener) {
	accepts := make(chan struct{})
	p.mu.Lock()
	p.listener = l
	p.accepts = accepts
	p.mu.Unlock()

	p.work.Go(func() {
		defer close(accepts)
		for {
			client, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			p.serve(client)
		}
	})
}

// reopen listens again after Refuse.
func (p *Proxy) reopen() {
	l, err := freeport.Reopen(p.ctx, p.addr)
	switch {
	case err == nil:
		p.accept(l)
	case errors.Is(err, syscall.EADDRINUSE):
		panic(fmt.Sprintf("proxy: another process has taken %s", p.addr))
	}
}

// shut closes the port and waits until no connection is being accepted.
func (p *Proxy) shut() {
	p.mu.Lock()
	l := p.listener
	accepts := p.accepts
	p.listener = nil
	p.mu.Unlock()
	if l != nil {
		_ = l.Close() // nothing was written
		<-accepts
	}
}

// Refuse refuses new connections until [Proxy.Heal]. Current connections stay.
func (p *Proxy) Refuse() {
	p.faults.Lock()
	defer p.faults.Unlock()
	p.shut()
}

// Mute holds back the server's answers, on current and new connections, until
// [Proxy.Heal]. Requests pass. See [MuteAfter].
func (p *Proxy) Mute() {
	p.faults.Lock()
	defer p.faults.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.muted = true
	if p.matches != nil {
		return
	}
	for c := range p.pairs {
		c.muted = true
	}
	p.quiet()
}

// Cut resets all connections, towards the client and towards the server, and drops
// held answers. Faults stay.
func (p *Proxy) Cut() {
	p.faults.Lock()
	defer p.faults.Unlock()
	p.cut()
}

func (p *Proxy) cut() {
	p.mu.Lock()
	pairs := make([]*pair, 0, len(p.pairs))
	for c := range p.pairs {
		pairs = append(pairs, c)
	}
	p.mu.Unlock()
	for _, c := range pairs {
		c.reset()
	}
	for _, c := range pairs {
		<-c.done
	}
}

// Heal ends all faults: held answers continue, and new connections are accepted
// again.
func (p *Proxy) Heal() {
	p.faults.Lock()
	defer p.faults.Unlock()
	p.mu.Lock()
	p.muted = false
	for c := range p.pairs {
		c.muted = false
	}
	listening := p.listener != nil
	p.announce()
	p.mu.Unlock()

	if !listening && p.ctx.Err() == nil {
		p.reopen()
	}
}

// Close ends the proxy and all connections, and waits for its goroutines.
// Closing again does nothing.
func (p *Proxy) Close() {
	p.faults.Lock()
	defer p.faults.Unlock()
	p.cancel()
	p.shut()
	p.cut()
	p.work.Wait()
}

// Open returns how many connections there are.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs)
}

// Accepted returns how many connections there have been.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Sent returns how many bytes of clients the server has been given.
func (p *Proxy) Sent() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent
}

// WaitOpen waits until exactly n connections are open. It returns ctx's cause
// if that is done first.
func (p *Proxy) WaitOpen(ctx context.Context, n int) error {
	return p.until(ctx, func() bool { return len(p.pairs) == n })
}

// WaitAccepted waits until there have been at least n connections.
func (p *Proxy) WaitAccepted(ctx context.Context, n int) error {
	return p.until(ctx, func() bool { return p.accepted >= n })
}

// WaitSent waits until the server has been given at least n bytes.
func (p *Proxy) WaitSent(ctx context.Context, n int64) error {
	return p.until(ctx, func() bool { return p.sent >= n })
}

// until waits for ok, which is called with mu held.
func (p *Proxy) until(ctx context.Context, ok func() bool) error {
	for {
		p.mu.Lock()
		done := ok()
		changed := p.changed
		p.mu.Unlock()

		if done {
			return nil
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// announce wakes all waits. It is called with mu held.
func (p *Proxy) announce() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// serve takes a connection that was accepted.
func (p *Proxy) serve(client net.Conn) {
	c := &pair{proxy: p, client: client, gone: make(chan struct{}), done: make(chan struct{})}
	p.mu.Lock()
	c.muted = p.muted && p.matches == nil
	p.pairs[c] = struct{}{}
	p.accepted++
	p.announce()
	p.mu.Unlock()
	p.work.Go(c.run)
}

// quiet returns when no answer is on its way to a client that is muted. The
// caller holds mu; quiet releases mu while it waits, and locks it again.
func (p *Proxy) quiet() {
	for c := range p.pairs {
		if !c.muted || !c.writing {
			continue
		}

		_ = c.client.SetWriteDeadline(time.Now()) // fails if it is closed, which is as quiet
		for c.writing {
			changed := p.changed
			p.mu.Unlock()
			<-changed
			p.mu.Lock()
		}
		_ = c.client.SetWriteDeadline(time.Time{})
	}
}
