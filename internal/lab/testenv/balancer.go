package testenv

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/freeport"
)

// Balancer starts a balancer of connections, such as a Service of Kubernetes: each new connection leads to the next of the
// servers, and stays there. It returns its address. The end of the test closes it.
func Balancer(tb testing.TB, servers ...string) string {
	tb.Helper()
	l, err := freeport.Listen(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}

	var conns sync.WaitGroup
	conns.Go(func() {
		for n := 0; ; n++ {
			from, err := l.Accept()
			if err != nil {
				return
			}

			to, err := (&net.Dialer{}).DialContext(tb.Context(), "tcp", servers[n%len(servers)])
			if err != nil {
				_ = from.Close()
				continue
			}

			// The end of either direction ends both.
			end := sync.OnceFunc(func() { _, _ = from.Close(), to.Close() })
			conns.Go(func() { defer end(); _, _ = io.Copy(to, from) })
			conns.Go(func() { defer end(); _, _ = io.Copy(from, to) })
		}
	})

	tb.Cleanup(func() {
		_ = l.Close()
		conns.Wait()
	})

	return l.Addr().String()
}
