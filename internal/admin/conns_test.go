package admin

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestManyConnections: one client that opens any number of connections keeps none but the newest, and others are
// answered, on connections that they have kept as well.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	address := serve(t, Config{})
	dial := func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := d.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	get := func(conn net.Conn) error {
		if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return err
		}
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, r.Body)
		return errors.Join(err, r.Body.Close())
	}

	kept := dial("127.0.0.1")
	if err := get(kept); err != nil {
		t.Fatal(err)
	}
	var first net.Conn
	for i := range 3 * maxConns {
		conn := dial("127.0.0.2")
		if i == 0 {
			first = conn
		}
		if i%2 == 0 { // half of a request
			if _, err := io.WriteString(conn, "GET /liv"); err != nil && i > 0 {
				t.Fatal(err)
			}
		}
	}
	if _, err := first.Read(make([]byte, 1)); err == nil {
		t.Error("the first connection is still served")
	}
	if err := get(kept); err != nil {
		t.Errorf("a connection of another client: %v", err)
	}
	if err := get(dial("127.0.0.1")); err != nil {
		t.Errorf("a new connection of another client: %v", err)
	}
	if err := get(dial("127.0.0.2")); err != nil {
		t.Errorf("a new connection of that client: %v", err)
	}
}

// TestRequestsAreSized: a request whose end can be read in two ways, or whose headers are large, is refused.
func TestRequestsAreSized(t *testing.T) {
	t.Parallel()
	address := serve(t, Config{})
	for request, want := range map[string]int{
		"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": http.StatusLengthRequired,
		"GET /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                      http.StatusLengthRequired,
		"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n":              http.StatusRequestHeaderFieldsTooLarge,
		"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", maxHeader/2) + "\r\n\r\n":              http.StatusOK,
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != want {
			t.Errorf("%.90q...: %d, want %d", request, r.StatusCode, want)
		}
		_ = r.Body.Close()
		_ = conn.Close()
	}
}
