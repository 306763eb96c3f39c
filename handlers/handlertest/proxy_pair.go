package handlertest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
)

// pair is one connection: the client's half and the server's.
type pair struct {
	proxy *Proxy
	once  sync.Once
	gone  chan struct{} // closed by reset
	done  chan struct{} // closed when both halves are closed

	// Guarded by proxy.mu.
	client, server net.Conn // server is nil while it is being dialled
	muted          bool
	writing        bool // an answer is on its way to the client
}

// run lives as long as the connection.
func (c *pair) run() {
	p := c.proxy

	defer func() {
		c.reset()
		p.mu.Lock()
		delete(p.pairs, c)
		p.announce()
		p.mu.Unlock()
		close(c.done)
	}()

	server, err := (&net.Dialer{}).DialContext(p.ctx, "tcp", p.upstream)
	if err != nil {
		return // the server is down: the client gets a reset
	}

	p.mu.Lock()
	c.server = server
	p.mu.Unlock()

	select {
	case <-c.gone: // reset while it was being dialled
		abort(server)
		return
	default:
	}

	var pumps sync.WaitGroup
	pumps.Go(c.requests)
	pumps.Go(c.answers)
	pumps.Wait()
	c.end(func(conn net.Conn) { _ = conn.Close() }) // both sides have ended their streams
}

// reset closes both halves with RST, unless they are closed.
func (c *pair) reset() { c.end(abort) }

// end closes both halves, once.
func (c *pair) end(closing func(net.Conn)) {
	c.once.Do(func() {
		c.proxy.mu.Lock()
		client := c.client
		server := c.server
		close(c.gone)
		c.proxy.mu.Unlock()
		closing(client)
		if server != nil {
			closing(server)
		}
	})
}

// abort closes a connection with RST.
func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails if it is closed already
	}
	_ = conn.Close()
}

// finish passes the end of a stream on.
func finish(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite() // fails if it is closed already
	}
}

// bufferSize is that of io.Copy.
const bufferSize = 32 << 10

// requests passes the client's bytes on.
func (c *pair) requests() {
	buf := make([]byte, bufferSize)
	var seen []byte // the last bytes sent, as far as a match may begin in them
	for {
		n, err := c.client.Read(buf)

		if n > 0 {
			seen = c.look(seen, buf[:n])
			m, werr := c.server.Write(buf[:n])
			c.count(m)
			if werr != nil {
				c.reset()
				return
			}
		}

		if err != nil {
			c.ended(err, c.server)
			return
		}
	}
}

// look mutes the connection if the bytes being sent complete a match. The
// connection is muted before the bytes reach the server, and so before the
// server can answer.
func (c *pair) look(seen, chunk []byte) []byte {
	p := c.proxy
	if p.matches == nil {
		return nil
	}

	seen = append(seen, chunk...)
	keep := 0
	for _, match := range p.matches {
		// The kept bytes no longer contain a match that was complete before,
		// unless another match is longer.
		from := max(len(seen)-len(chunk)-len(match)+1, 0)
		if bytes.Contains(seen[from:], match) {
			p.mu.Lock()
			c.muted = c.muted || p.muted
			p.mu.Unlock()
		}
		keep = max(keep, len(match)-1)
	}

	keep = min(keep, len(seen))
	return append(seen[:0], seen[len(seen)-keep:]...)
}

func (c *pair) count(n int) {
	p := c.proxy
	p.mu.Lock()
	p.sent += int64(n)
	p.announce()
	p.mu.Unlock()
}

// answers passes the server's bytes on, unless they are held back.
func (c *pair) answers() {
	buf := make([]byte, bufferSize)
	for {
		n, err := c.server.Read(buf)

		for rest := buf[:n]; len(rest) > 0; {
			if !c.enter() {
				return
			}
			m, werr := c.client.Write(rest)
			c.leave()
			rest = rest[m:]

			// A deadline is how Mute ends a write to a client that does not read.
			if werr != nil && !errors.Is(werr, os.ErrDeadlineExceeded) {
				c.reset()
				return
			}
		}

		if err != nil {
			if c.enter() {
				c.ended(err, c.client)
				c.leave()
			}
			return
		}
	}
}

// ended passes on that a stream is over: its end as an end, an error as a reset.
func (c *pair) ended(err error, to net.Conn) {
	if errors.Is(err, io.EOF) {
		finish(to)
		return
	}
	c.reset()
}

// enter waits until answers may pass, and reports whether the connection is
// still there. leave follows.
func (c *pair) enter() bool {
	p := c.proxy
	for {
		p.mu.Lock()
		select {
		case <-c.gone:
			p.mu.Unlock()
			return false
		default:
		}

		if !c.muted {
			c.writing = true
			p.mu.Unlock()
			return true
		}

		changed := p.changed
		p.mu.Unlock()

		select {
		case <-changed:
		case <-c.gone:
			return false
		}
	}
}

func (c *pair) leave() {
	p := c.proxy
	p.mu.Lock()
	c.writing = false
	p.announce()
	p.mu.Unlock()
}
