// Package freeport finds TCP ports for servers that are started on this
// machine: for the private PostgreSQL and for the servers of tests.
package freeport

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from [first, first+count), below the ranges from which
// Linux (32768 and up) and macOS (49152 and up) serve outgoing connections.
// A port of those ranges can be lost while its server is down: a client that
// keeps dialling it is one day given the same number as its own source port,
// is then connected to itself, and the server finds its address in use.
const (
	first = 20000
	count = 12000
	// tries is generous: even with half of the ports taken, 64 misses in a row
	// happen once in 2^64.
	tries = 64
)

// Pick returns a port of 127.0.0.1 on which nothing listened a moment ago. It
// is not reserved: whoever starts a server on it must be ready to pick again.
func Pick(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	var err error
	for range tries {
		port := first + rand.IntN(count) //nolint:gosec // a port number is no secret
		var l net.Listener
		l, err = lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		if err = l.Close(); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 in %d tries: %w", tries, err)
}
