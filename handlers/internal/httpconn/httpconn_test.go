package httpconn_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/handlers/internal/httpconn"
)

// pipes counts connections to a server in memory.
type pipes struct {
	made  int
	conns chan net.Conn
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p.made++
	p.conns <- theirs
	return ours, nil
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close implements net.Listener.
func (p *pipes) Close() error { close(p.conns); return nil }

// Addr implements net.Listener.
func (*pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestAge: a connection that is always in use is replaced when it is old, or has failed, and a request that
// uses it then ends on it.
func TestAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn)}
		release := make(chan struct{})
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				<-release
			}
			_, _ = io.WriteString(w, "ok")
		}), ReadHeaderTimeout: time.Hour}
		go func() { _ = server.Serve(p) }()
		defer func() { _ = server.Close() }()
		tr := httpconn.New(&http.Transport{DialContext: p.dial}, time.Minute)
		defer tr.CloseIdleConnections()
		get := func(path string) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server"+path, http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		expect := func(made int) {
			t.Helper()
			get("/")
			synctest.Wait()
			if p.made != made {
				t.Errorf("%d connections, want %d", p.made, made)
			}
		}
		for range 59 {
			expect(1)
			time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		}
		slow := make(chan struct{})
		go func() { defer close(slow); get("/slow") }()
		synctest.Wait()
		time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		expect(2)
		close(release)
		<-slow
		expect(2)
		tr.Renew() // it is a second too early
		expect(2)
		time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		tr.Renew()
		expect(3)
		expect(3)
	})
}
