package relaytest

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// way is the connection of one relay to the database. It can be cut, as by kill -9 or a firewall
// that resets: the server notices at once.
type way struct {
	target string
	listen net.Listener
	work   sync.WaitGroup

	mu   sync.Mutex
	cut  bool
	open map[net.Conn]bool
}

// newWay returns a way to the database at a URL, and the URL that leads along it.
func newWay(t *testing.T, database string) (*way, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &way{target: u.Host, listen: l, open: make(map[net.Conn]bool)}
	u.Host = l.Addr().String()
	w.work.Go(w.serve)
	t.Cleanup(func() {
		_ = l.Close()
		w.set(true)
		w.work.Wait()
	})
	return w, u.String()
}

// set cuts the way, or restores it.
func (w *way) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		for c := range w.open {
			_ = c.Close()
		}
	}
}

func (w *way) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = c.Close()
		return false
	}
	w.open[c] = true
	return true
}

func (w *way) serve() {
	for {
		in, err := w.listen.Accept()
		if err != nil {
			return
		}
		w.work.Go(func() { w.forward(in) })
	}
}

func (w *way) forward(in net.Conn) {
	if !w.keep(in) {
		return
	}
	out, err := net.Dial("tcp", w.target)
	if err != nil || !w.keep(out) {
		_ = in.Close()
		return
	}
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
		both.Go(func() {
			_, _ = io.Copy(to, from)
			_, _ = in.Close(), out.Close()
		})
	}
	both.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, in)
	delete(w.open, out)
}
