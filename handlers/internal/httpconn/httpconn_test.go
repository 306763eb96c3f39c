package httpconn_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
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
		down := delivery.Unavailable(errors.New("503"))
		tr.Learn(t.Context(), down) // it is a second too early
		expect(2)
		time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		tr.Learn(t.Context(), nil)
		tr.Learn(t.Context(), delivery.Permanent(errors.New("410")))
		tr.Learn(t.Context(), errors.New("409"))
		expect(2)
		tr.Learn(t.Context(), down)
		expect(3)
		expect(3)
		for i, err := range []error{delivery.Throttled(0, errors.New("429")), delivery.Unclear(errors.New("500"))} {
			time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
			tr.Learn(t.Context(), err)
			expect(4 + i)
		}
	})
}

// TestRetries: an attempt after a counted failure does not go over a connection on which one has failed, also over
// HTTP/2, and first attempts keep theirs.
func TestRetries(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, r.Proto+" "+r.RemoteAddr)
			}))
			server.EnableHTTP2 = version == "HTTP/2.0"
			server.StartTLS()
			defer server.Close()
			base, ok := server.Client().Transport.(*http.Transport)
			if !ok {
				t.Fatalf("%T", server.Client().Transport)
			}
			tr := httpconn.New(base.Clone(), time.Hour)
			defer tr.CloseIdleConnections()
			get := func(attempt int, fails error) (from string) {
				t.Helper()
				ctx := httpconn.ForEvents(t.Context(), &delivery.Event{Attempt: 1}, &delivery.Event{Attempt: attempt})
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := tr.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close() //nolint:errcheck // it was read
				text, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				protocol, from, _ := strings.Cut(string(text), " ")
				if protocol != version {
					t.Fatalf("the request went over %s", protocol)
				}
				tr.Learn(ctx, nil, fails)
				return from
			}
			errRefused := errors.New("409")
			first := get(1, errRefused)
			seen := map[string]bool{first: true}
			for range 4 {
				from := get(2, errRefused)
				if seen[from] {
					t.Errorf("a retry went over the known connection %s", from)
				}
				seen[from] = true
			}
			if from := get(1, nil); from != first {
				t.Errorf("a first attempt went over %s, and not over %s", from, first)
			}
			if one, two := get(5, nil), get(2, nil); one != two {
				t.Errorf("a retry went over %s, although %s has not failed", two, one)
			}
		})
	}
}
