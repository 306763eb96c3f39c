package testenv

import (
	"context"
	"errors"
	"testing"
)

// Network is a network path to a server that can be cut: packets vanish in both
// directions, and neither side gets an error.
type Network struct {
	// Addr is the address of the path, as host:port.
	Addr string

	tb     testing.TB
	link   func(ctx context.Context, up bool) error
	remove func(ctx context.Context) // nil before open and after the removal
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
	serve(tb, l, target)
	return n
}

// Cut drops all packets until Restore.
func (n *Network) Cut() { n.set(false) }

// Restore forwards packets again.
func (n *Network) Restore() { n.set(true) }

func (n *Network) set(up bool) {
	n.tb.Helper()
	if err := n.link(n.tb.Context(), up); err != nil {
		n.tb.Fatal(err)
	}
}

var errNoNetwork = errors.New("network namespaces are unavailable")
