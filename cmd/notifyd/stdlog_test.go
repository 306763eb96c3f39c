package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// TestStandardLogger: what net/http writes to the standard logger is no line of the log of its own, and what a
// receiver sends is not in it.
func TestStandardLogger(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	heard := make(chan struct{})
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		reader := bufio.NewReader(conn)
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		// An answer, and one that nothing has asked for.
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		_, _ = io.WriteString(conn, "the bytes of a stranger")
		_, _ = reader.ReadByte() // the client has closed the connection, and has logged before that
		close(heard)
	}()
	url := database(t)
	p := startProcess(t, "", "run", "-c", file(t, "version: 1\ndatabase: {url: '"+url+"'}\nlog: {format: json, level: debug}\n"+
		"destinations: {hook: {type: webhook, url: 'http://"+listener.Addr().String()+"'}}\nroutes: [{match: '*', to: hook}]\n"))
	publishTo(t, url, "order.placed", order)
	<-heard
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for line := range strings.Lines(p.stderr.text()) {
		if !json.Valid([]byte(line)) || strings.Contains(line, "stranger") {
			t.Errorf("the log has %q", line)
		}
	}
	if !strings.Contains(p.stderr.text(), `"msg":"library message","text":"Unsolicited response received on idle HTTP channel"`) {
		t.Errorf("the log does not have it:\n%s", p.stderr.text())
	}
}
