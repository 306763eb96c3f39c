package testenv

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// Network is a way to a server that can be cut: packets vanish in both
// directions, and neither side is told.
type Network struct {
	// Addr leads to the server, as host:port.
	Addr string

	tb     testing.TB
	link   func(ctx context.Context, up bool) error
	remove func(ctx context.Context) // nil while there is nothing to remove
}

// NewNetwork makes a way to the server at target, host:port. It takes a network
// namespace, which takes Linux, root and the program ip; where that is not to be
// had, the test is skipped, or fails if [EnvRequire] lists "netns". The end of the
// test removes it.
func NewNetwork(tb testing.TB, target string) *Network {
	tb.Helper()
	n := &Network{tb: tb}
	tb.Cleanup(func() {
		ctx, cancel := afterwards(tb)
		defer cancel()
		if n.remove != nil {
			n.remove(ctx)
		}
	})
	l, err := n.open(tb.Context())
	require(tb, "netns", err)
	n.Addr = l.Addr().String()
	f := &forwarder{target: target, open: make(map[net.Conn]bool)}
	f.work.Go(func() { f.serve(l) })
	tb.Cleanup(func() {
		_ = l.Close() // it ends serve, and nothing else depends on it
		f.closeAll()
		f.work.Wait()
	})
	return n
}

// Cut lets all packets vanish from now on.
func (n *Network) Cut() { n.set(false) }

// Mend lets them through again.
func (n *Network) Mend() { n.set(true) }

func (n *Network) set(up bool) {
	n.tb.Helper()
	if err := n.link(n.tb.Context(), up); err != nil {
		n.tb.Fatal(err)
	}
}

var errNoNetwork = errors.New("network namespaces are not to be had here")

// forwarder hands on what comes in, as long as both sides are there.
type forwarder struct {
	target string
	work   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

func (f *forwarder) serve(l net.Listener) {
	for {
		in, err := l.Accept()
		if err != nil {
			return // closed
		}
		f.work.Go(func() { f.forward(in) })
	}
}

func (f *forwarder) forward(in net.Conn) {
	if !f.keep(in) {
		return
	}
	out, err := net.Dial("tcp", f.target) //nolint:noctx // closed with the rest
	if err != nil {
		_ = in.Close()
		return
	}
	if !f.keep(out) {
		return
	}
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
		both.Go(func() {
			_, _ = io.Copy(to, from) // one of them is gone then
			_ = in.Close()
			_ = out.Close()
		})
	}
	both.Wait()
}

// keep notes a connection, or closes it if it comes too late.
func (f *forwarder) keep(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		_ = c.Close()
		return false
	}
	f.open[c] = true
	return true
}

func (f *forwarder) closeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for c := range f.open {
		_ = c.Close()
	}
}
