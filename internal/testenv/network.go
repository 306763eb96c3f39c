package testenv

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// Network is a network path to a server that can be cut: packets vanish in both
// directions, and neither side gets an error.
type Network struct {
	// Addr is the address of the path, as host:port.
	Addr string

	tb     testing.TB
	link   func(ctx context.Context, up bool) error
	remove func(ctx context.Context) // nil while there is nothing to remove
}

// NewNetwork creates a path to the server at target, host:port. It needs a
// network namespace, and so Linux, root and the program ip; without these, the
// test is skipped, or fails if [EnvRequire] lists "netns". The end of the test
// removes the path.
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

// Cut drops all packets from now on.
func (n *Network) Cut() { n.set(false) }

// Restore lets packets through again.
func (n *Network) Restore() { n.set(true) }

func (n *Network) set(up bool) {
	n.tb.Helper()
	if err := n.link(n.tb.Context(), up); err != nil {
		n.tb.Fatal(err)
	}
}

var errNoNetwork = errors.New("network namespaces are unavailable")

// forwarder copies data in both directions until a side closes.
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
			_, _ = io.Copy(to, from) // one side is gone then
			_ = in.Close()
			_ = out.Close()
		})
	}
	both.Wait()
}

// keep records a connection, or closes it if the forwarder has ended.
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
