// Package freeport finds TCP ports for private servers and for the servers of tests.
package freeport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"time"
)

// Ports are from [first, first+count), below the ranges of source ports of Linux (32768
// and up) and macOS (49152 and up). A port of those ranges can be lost while its server is
// down: a client that keeps dialling it eventually gets the same number as its own source
// port, connects to itself, and the server finds its address in use.
const (
	first = 20000
	count = 12000
	// With half of the ports taken, 64 misses in a row happen once in 2^64.
	tries = 64
	// answerWithin bounds one connection over the loopback.
	answerWithin = 500 * time.Millisecond
)

// Pick returns a port of 127.0.0.1 on which nothing listens at the moment. Another program
// may take the port before the caller's server listens: the caller must be ready to pick
// again. On Linux, Pick returns no port that it has returned before, in this process or in
// another one that still runs: a server that is down for a moment finds its port free.
//
// Pick dials and does not listen. A listening socket is copied into every child that is
// being forked, until its exec: the port would stay taken for some milliseconds after the
// socket was closed here.
func Pick(ctx context.Context) (int, error) {
	for range tries {
		port := first + rand.IntN(count) //nolint:gosec // a port number is not a secret

		// Held first: a port that another process holds is not dialled, because a test may
		// count the connections of its listener.
		mine, err := hold(port)
		if err != nil {
			return 0, err
		}
		if !mine {
			continue
		}

		if free, err := refused(ctx, port); err != nil || free {
			return port, err
		}
	}

	return 0, fmt.Errorf("no free port on 127.0.0.1 in %d tries", tries)
}

// PickAll sets each of the ports as [Pick] does, all of them different.
func PickAll(ctx context.Context, ports ...*int) error {
	picked := make(map[int]bool, len(ports))
	for _, p := range ports {
		port, err := Pick(ctx)
		for err == nil && picked[port] {
			port, err = Pick(ctx)
		}
		if err != nil {
			return err
		}

		*p = port
		picked[port] = true
	}
	return nil
}

// refused reports whether port refuses connections. A server that is too busy to answer
// in time counts as present.
func refused(ctx context.Context, port int) (bool, error) {
	d := net.Dialer{Timeout: answerWithin}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err == nil {
		return false, conn.Close()
	}
	if ctx.Err() != nil {
		return false, fmt.Errorf("look for a free port: %w", context.Cause(ctx))
	}
	return errors.Is(err, syscall.ECONNREFUSED), nil
}
