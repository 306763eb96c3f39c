package testenv

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Proxy is a path from one program to a server. It can be cut, as by kill -9 or a firewall that resets: both sides notice
// at once.
type Proxy struct {
	target string
	work   sync.WaitGroup

	mu   sync.Mutex
	cut  bool
	open map[net.Conn]bool
}

// NewProxy returns a proxy in front of the server at rawURL, and the URL that leads through the proxy. The end of the
// test closes it.
func NewProxy(tb testing.TB, rawURL string) (*Proxy, string) {
	tb.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		tb.Fatal(err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
	if err != nil {
		tb.Fatal(err)
	}

	p := serve(tb, l, u.Host)
	u.Host = l.Addr().String()
	return p, u.String()
}

// serve forwards connections to target until the end of the test.
func serve(tb testing.TB, l net.Listener, target string) *Proxy {
	tb.Helper()
	p := &Proxy{target: target, open: make(map[net.Conn]bool)}
	p.work.Go(func() { p.accept(l) })
	tb.Cleanup(func() {
		_ = l.Close() // it ends accept, and nothing else depends on it
		p.Cut()
		p.work.Wait()
	})
	return p
}

// Cut closes all connections, and each new one at once.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.open {
		_ = c.Close()
	}
}

// Restore forwards new connections again.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}

func (p *Proxy) accept(l net.Listener) {
	for {
		in, err := l.Accept()
		if err != nil {
			return // closed
		}
		p.work.Go(func() { p.forward(in) })
	}
}

// forward copies data in both directions until a side closes.
func (p *Proxy) forward(in net.Conn) {
	defer p.forget(in)
	if !p.keep(in) {
		return
	}

	out, err := net.Dial("tcp", p.target) //nolint:noctx // closed with the rest
	if err != nil {
		return
	}
	defer p.forget(out)
	if !p.keep(out) {
		return
	}

	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
		both.Go(func() {
			_, _ = io.Copy(to, from) // one side is gone then
			_ = in.Close()
			_ = out.Close()
		})
	}
	both.Wait()
}

// keep records a connection; it returns false if the proxy is cut.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.cut {
		return false
	}
	p.open[c] = true
	return true
}

// forget closes a connection.
func (p *Proxy) forget(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}
