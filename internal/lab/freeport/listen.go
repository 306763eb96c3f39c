package freeport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"
)

const (
	// reopenWithin bounds the wait for the own port. A child that is being forked has a
	// copy of the closed listener until its exec.
	reopenWithin = 10 * time.Second
	reopenEvery  = 5 * time.Millisecond
)

// At is [Listen] for an empty address, and [Reopen] for every other one.
func At(ctx context.Context, addr string) (net.Listener, error) {
	if addr == "" {
		return Listen(ctx)
	}
	return Reopen(ctx, addr)
}

// Listen listens on a port of 127.0.0.1 that [Pick] finds, so that [Reopen] can return to
// it. The caller closes the listener.
func Listen(ctx context.Context) (net.Listener, error) {
	for range tries {
		port, err := Pick(ctx)
		if err != nil {
			return nil, err
		}

		l, err := listen(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if !errors.Is(err, syscall.EADDRINUSE) { // another process was faster
			return l, err
		}
	}
	return nil, fmt.Errorf("no free port on 127.0.0.1 in %d tries", tries)
}

// Reopen listens again on addr, host:port, whose listener was closed. While the port is
// taken it retries for up to 10 s, and then returns an error that is
// [syscall.EADDRINUSE]. The caller closes the listener.
func Reopen(ctx context.Context, addr string) (net.Listener, error) {
	deadline := time.NewTimer(reopenWithin)
	defer deadline.Stop()

	tick := time.NewTicker(reopenEvery)
	defer tick.Stop()

	for {
		l, err := listen(ctx, addr)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}

		select {
		case <-tick.C:
		case <-deadline.C:
			return nil, err
		case <-ctx.Done():
			return nil, fmt.Errorf("listen again on %s: %w", addr, context.Cause(ctx))
		}
	}
}

func listen(ctx context.Context, addr string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
}
