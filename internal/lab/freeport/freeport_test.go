package freeport

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPick(t *testing.T) {
	t.Parallel()
	port, err := Pick(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if port < first || port >= first+count {
		t.Errorf("port %d, want one from %d to %d", port, first, first+count-1)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	if free, err := refused(t.Context(), port); free || err != nil {
		t.Errorf("a port with a listener: free is %t, %v", free, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestPickAll(t *testing.T) {
	t.Parallel()
	const n = 50
	ports, targets := make([]int, n), make([]*int, n)
	for i := range ports {
		targets[i] = &ports[i]
	}
	if err := PickAll(t.Context(), targets...); err != nil {
		t.Fatal(err)
	}
	slices.Sort(ports)
	if ports[0] < first || len(slices.Compact(ports)) != n {
		t.Errorf("%d ports are not all set and different: %d", n, ports)
	}
}

func TestPickEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Pick(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Pick = %v, want %v", err, context.Canceled)
	}
}
