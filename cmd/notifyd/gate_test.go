package main

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// gate stands before a mail server and keeps its answer to a mail back until
// it is opened.
type gate struct {
	port int
	open chan struct{} // close it to let the answers through
	end  chan struct{}
	all  sync.WaitGroup
	to   string
}

func startGate(t *testing.T, to string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("%v is not a TCP address", l.Addr())
	}
	g := &gate{port: addr.Port, open: make(chan struct{}), end: make(chan struct{}), to: to}
	g.all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed below
			}
			g.all.Go(func() { g.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		close(g.end)
		g.all.Wait()
	})
	return g
}

// serve ends when both sides have: one end of a connection closes the other.
func (g *gate) serve(client net.Conn) {
	server, err := net.Dial("tcp", g.to)
	if err != nil {
		_ = client.Close()
		return
	}
	stop := sync.OnceFunc(func() {
		_ = client.Close()
		_ = server.Close()
	})
	done := make(chan struct{})
	g.all.Go(func() {
		select {
		case <-g.end:
		case <-done:
		}
		stop()
	})
	sent := make(chan struct{})
	g.all.Go(func() {
		defer stop()
		_, _ = io.Copy(server, &watcher{Conn: client, sent: sent})
	})
	defer close(done)
	buf := make([]byte, 4096)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-sent: // this is the answer to the mail
			select {
			case <-g.open:
			case <-g.end:
				return
			}
		default:
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// watcher notes the dot at the end of a mail, before the server gets it.
type watcher struct {
	net.Conn
	text strings.Builder
	once sync.Once
	sent chan struct{}
}

func (w *watcher) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	w.text.Write(p[:n])
	if strings.Contains(w.text.String(), "\r\n.\r\n") {
		w.once.Do(func() { close(w.sent) })
	}
	return n, err
}
