package smtpsink

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// listener returns connections that inject the faults.
type listener struct {
	net.Listener
	sink *Sink
}

func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}

	s := l.sink
	s.mu.Lock()
	defer s.mu.Unlock()

	c := &lineConn{Conn: raw, sink: s, stopped: s.stopped, closed: make(chan struct{})}
	if s.opts.TLS == ImplicitTLS {
		c.upgrade()
	}

	c.r = bufio.NewReader(c.Conn)
	s.conns[c] = struct{}{}
	s.accepted++
	s.announce()

	if s.server == nil { // accepted during Close
		go func() { _ = c.Close() }()
	}

	return c, nil
}

// lineConn sits between the socket and go-smtp. It passes on one line at a time,
// so that a fault can answer a command before go-smtp sees it, and does STARTTLS
// itself, so that it still sees lines afterwards.
//
// Only go-smtp's goroutine for the connection calls Read and Write; any goroutine
// may call Close.
type lineConn struct {
	net.Conn
	sink    *Sink
	stopped <-chan struct{}

	r       *bufio.Reader
	rest    []byte // of the line that Read is passing on
	greeted bool
	inData  bool
	ehlo    bool // the reply to EHLO is next
	tls     bool
	mails   int // carried

	once   sync.Once
	closed chan struct{}
}

func (c *lineConn) upgrade() {
	c.Conn = tls.Server(c.Conn, &tls.Config{
		Certificates: []tls.Certificate{c.sink.cert}, MinVersion: tls.VersionTLS12,
	})
	c.r = bufio.NewReader(c.Conn)
	c.tls = true
}

// Close closes the connection and removes it from the sink's list.
func (c *lineConn) Close() error {
	var err error
	c.once.Do(func() {
		close(c.closed)

		s := c.sink
		s.mu.Lock()
		conn := c.Conn
		delete(s.conns, c)
		s.announce()
		s.mu.Unlock()

		if t, ok := conn.(*tls.Conn); ok {
			conn = t.NetConn() // a TLS goodbye could block
		}
		err = conn.Close()
	})
	return err
}

// Read returns the client's lines that no fault has answered.
func (c *lineConn) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		line, err := c.r.ReadString('\n')
		if err != nil {
			return 0, err
		}

		if c.inData {
			c.inData = line != ".\r\n"
			c.rest = []byte(line)
			break
		}

		pass, err := c.command(line)
		if err != nil {
			return 0, err
		}
		if pass {
			c.rest = []byte(line)
		}
	}

	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// command examines one command line and reports whether to pass it to go-smtp.
func (c *lineConn) command(line string) (pass bool, err error) {
	verb, _, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
	stage := Stage(strings.ToUpper(verb))
	if stage == "HELO" {
		stage = Ehlo
	}
	if stage == Auth {
		c.sink.login()
	}

	answered, err := c.fault(stage, line)
	if err != nil || answered {
		return false, err
	}

	c.ehlo = stage == Ehlo
	if stage == STLS && !c.tls && c.sink.opts.TLS == StartTLS {
		if _, err := io.WriteString(c.Conn, "220 2.0.0 Ready to start TLS\r\n"); err != nil {
			return false, err
		}
		c.sink.mu.Lock()
		c.upgrade()
		c.sink.mu.Unlock()
		return false, nil
	}
	return true, nil
}

// fault runs the fault that is scripted for a stage and reports whether it
// answered the client.
func (c *lineConn) fault(stage Stage, text string) (answered bool, err error) {
	f, ok := c.sink.take(stage, text, c.mails)
	if !ok {
		return false, nil
	}

	if err := c.pause(f); err != nil {
		return true, err
	}

	if reply := f.reply(); reply != "" {
		if _, err := io.WriteString(c.Conn, reply); err != nil {
			return true, err
		}
		answered = true
	}

	if f.Drop || f.Code == 421 {
		_ = c.Close()
		return true, io.EOF
	}

	return answered, nil
}

// pause waits for the delay of a fault, or for the end of its hang.
func (c *lineConn) pause(f Fault) error {
	if f.Delay <= 0 && !f.Hang {
		return nil
	}

	var timeout <-chan time.Time
	if f.Hang {
		c.sink.hang(1)
		defer c.sink.hang(-1)
	} else {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		timeout = t.C
	}

	// A client that gives up closes its side, which Peek notices. The client must
	// not send anything while it waits for an answer.
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = c.r.Peek(1)
	}()
	defer func() {
		_ = c.SetReadDeadline(time.Now()) // ends the Peek
		<-gone
		_ = c.SetReadDeadline(time.Time{})
	}()

	select {
	case <-timeout:
		return nil
	case <-gone:
		return io.EOF
	case <-c.closed:
		return io.EOF
	case <-c.stopped:
		return io.EOF
	}
}

// Write passes go-smtp's replies on. The faults of the stage Connect happen at
// the greeting.
func (c *lineConn) Write(p []byte) (int, error) {
	if !c.greeted {
		c.greeted = true
		answered, err := c.fault(Connect, "")
		if err != nil {
			return 0, err
		}
		if answered {
			return len(p), nil
		}
	}

	if strings.HasPrefix(string(p), "354") {
		c.inData = true
	}

	out := string(p)
	offersTLS := c.sink.opts.TLS == StartTLS && !c.tls
	if c.ehlo && offersTLS && strings.HasPrefix(out, "250-") {
		out += "250-STARTTLS\r\n"
	}
	c.ehlo = false

	if _, err := io.WriteString(c.Conn, out); err != nil {
		return 0, err
	}
	return len(p), nil
}

func formatReply(code int, text string) string {
	var b strings.Builder
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		sep := "-"
		if i == len(lines)-1 {
			sep = " "
		}
		fmt.Fprintf(&b, "%d%s%s\r\n", code, sep, l)
	}
	return b.String()
}

func contains(text, match string) bool {
	return match == "" || strings.Contains(text, match)
}
