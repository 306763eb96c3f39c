package freeport

import (
	"context"
	"errors"
	"net"
	"testing"
)

func TestReopenWaitsForThePort(t *testing.T) {
	t.Parallel()
	first, err := Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	addr, ok := first.Addr().(*net.TCPAddr)
	if !ok || addr.Port < 20000 || addr.Port >= 32000 {
		t.Errorf("listens on %v, want a port from 20000 to 31999", first.Addr())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Reopen(ctx, addr.String()); !errors.Is(err, context.Canceled) {
		t.Errorf("Reopen of a port that is taken = %v, want %v", err, context.Canceled)
	}
	type result struct {
		l   net.Listener
		err error
	}
	reopened := make(chan result, 1)
	go func() {
		l, err := Reopen(t.Context(), addr.String())
		reopened <- result{l, err}
	}()
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	again := <-reopened
	if again.err != nil {
		t.Fatal(again.err)
	}
	if got := again.l.Addr().String(); got != addr.String() {
		t.Errorf("listens on %s, want %s", got, addr)
	}
	if err := again.l.Close(); err != nil {
		t.Error(err)
	}
}

func TestReopenRefusesABadAddress(t *testing.T) {
	t.Parallel()
	if l, err := Reopen(t.Context(), "127.0.0.1:none"); err == nil {
		t.Errorf("listens on %v", l.Addr())
	}
}
