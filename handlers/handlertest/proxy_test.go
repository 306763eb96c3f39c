package handlertest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

var _ handlertest.Network = (*handlertest.Proxy)(nil)

// patience bounds a test that waits for something that must happen.
const patience = 2 * time.Minute

// upper is a server that answers each line in upper case, and remembers it.
type upper struct {
	addr  string
	lines chan string
	ends  chan error // why reading a connection ended
}

func startUpper(t *testing.T) *upper {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &upper{addr: l.Addr().String(), lines: make(chan string, 1000), ends: make(chan error, 100)}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { u.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		work.Wait()
	})
	return u
}

func (u *upper) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			u.ends <- err
			return
		}
		u.lines <- line
		if _, err := io.WriteString(conn, strings.ToUpper(line)); err != nil {
			u.ends <- err
			return
		}
		if line == "bye\n" {
			return
		}
	}
}

type peer struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func dial(t *testing.T, p *handlertest.Proxy) *peer {
	t.Helper()
	conn, err := net.DialTimeout("tcp", p.Addr(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &peer{conn, t, bufio.NewReader(conn)}
}

func (c *peer) say(line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c, line); err != nil {
		c.t.Fatal(err)
	}
}

func (c *peer) hear(want string) {
	c.t.Helper()
	if got, err := c.r.ReadString('\n'); err != nil || got != want+"\n" {
		c.t.Fatalf("heard %q, %v; want %q", got, err, want)
	}
}

// quiet wants that nothing can be read. What the proxy lets pass is there
// within microseconds.
func (c *peer) quiet() {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if b, err := c.r.Peek(1); err == nil {
		c.t.Fatalf("heard %q", b)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
}

// here reports whether there is something to read, without waiting: a deadline could
// pass before the read begins.
func (c *peer) here() bool {
	c.t.Helper()
	raw, err := c.Conn.(*net.TCPConn).SyscallConn() //nolint:forcetypeassert // dial has made it
	must(c.t, err)
	n := 0
	must(c.t, raw.Read(func(fd uintptr) bool {
		n, _, _ = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	}))
	return c.r.Buffered() > 0 || n > 0
}

// soon reports whether there is something to read within a millisecond.
func (c *peer) soon() bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	defer func() { _ = c.SetReadDeadline(time.Now().Add(patience)) }()
	_, err := c.r.Peek(1)
	return err == nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPasses(t *testing.T) {
	t.Parallel()
	u := startUpper(t)
	p := handlertest.StartProxy(t, u.addr)
	a, b := dial(t, p), dial(t, p)
	a.say("one")
	b.say("two")
	b.hear("TWO")
	a.hear("ONE")
	must(t, p.WaitSent(testenv.Within(t, patience), 8))
	if p.Open() != 2 || p.Accepted() != 2 || p.Sent() != 8 {
		t.Errorf("%d open, %d accepted, %d bytes", p.Open(), p.Accepted(), p.Sent())
	}
	// The client closes: an end is passed on as an end.
	_ = a.Close()
	must(t, p.WaitOpen(testenv.Within(t, patience), 1))
	if err := testenv.Receive(t, patience, "the end", u.ends); !errors.Is(err, io.EOF) {
		t.Errorf("the server heard %v", err)
	}
	// The server closes: its last answer arrives, and then the end.
	b.say("bye")
	b.hear("BYE")
	if _, err := b.r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	_ = b.Close()
	must(t, p.WaitOpen(testenv.Within(t, patience), 0))
	if fmt.Sprintf("%s:%d", p.Host(), p.Port()) != p.Addr() {
		t.Errorf("%s, %d and %s", p.Host(), p.Port(), p.Addr())
	}
}

// TestHalfClosed: a client may say that it is done and wait for the answer.
func TestHalfClosed(t *testing.T) {
	t.Parallel()
	p := handlertest.StartProxy(t, startUpper(t).addr)
	c := dial(t, p)
	p.Mute()
	c.say("last words")
	tcp, _ := c.Conn.(*net.TCPConn)
	must(t, tcp.CloseWrite())
	c.quiet()
	p.Heal()
	c.hear("LAST WORDS")
	if _, err := c.r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}

func TestMute(t *testing.T) {
	t.Parallel()
	u := startUpper(t)
	p := handlertest.StartProxy(t, u.addr)
	before := dial(t, p)
	before.say("a")
	before.hear("A")
	testenv.Receive(t, patience, "the line", u.lines)
	p.Mute()
	after := dial(t, p)
	before.say("b")
	testenv.Receive(t, patience, "the line", u.lines) // requests pass
	after.say("c")
	testenv.Receive(t, patience, "the line", u.lines)
	before.quiet()
	after.quiet()
	p.Heal()
	before.hear("B")
	after.hear("C")
	after.say("d")
	after.hear("D")
}

// TestMuteTakesEffectAtOnce: an answer that was under way is out in full, or
// not at all, when Mute returns.
func TestMuteTakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	p := handlertest.StartProxy(t, startUpper(t).addr)
	c := dial(t, p)
	for range 200 {
		c.say("x")
		p.Mute()
		// Bytes that have passed are here at once.
		if !c.here() && c.soon() {
			t.Fatal("an answer came after Mute had returned")
		}
		p.Heal()
		c.hear("X")
	}
}

// TestMuteOfAClientThatDoesNotRead: the proxy is in the middle of a write that
// cannot go on.
func TestMuteOfAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	const size = 96 << 20 // far more than the buffers of two connections
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		chunk := []byte(strings.Repeat("z", 64<<10))
		for sent := 0; sent < size; sent += len(chunk) {
			if _, err := conn.Write(chunk); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-served })
	p := handlertest.StartProxy(t, l.Addr().String())
	c := dial(t, p)
	n, err := io.CopyN(io.Discard, c, 1<<20)
	must(t, err)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 100 { // within a few of them all buffers are full
		p.Mute() // must not hang
		p.Heal()
		<-tick.C
	}
	rest, err := io.Copy(io.Discard, c)
	if err != nil || n+rest != size {
		t.Errorf("%d of %d bytes came, %v", n+rest, size, err)
	}
}

func TestMuteAfter(t *testing.T) {
	t.Parallel()
	u := startUpper(t)
	p := handlertest.StartProxy(t, u.addr, handlertest.MuteAfter([]byte("something longer\n"), []byte("now\n")))
	c, other := dial(t, p), dial(t, p)
	c.say("now") // before Mute it means nothing
	c.hear("NOW")
	p.Mute()
	c.say("hello")
	c.hear("HELLO")
	other.say("hi")
	other.hear("HI")
	// In two pieces, which the server gets one by one.
	_, err := io.WriteString(c, "no")
	must(t, err)
	must(t, p.WaitSent(testenv.Within(t, patience), int64(len("now\nhello\nhi\nno"))))
	c.say("w")
	for range 4 {
		testenv.Receive(t, patience, "the line", u.lines)
	}
	c.quiet()
	other.say("still here") // every connection for itself
	other.hear("STILL HERE")
	p.Heal()
	c.hear("NOW")
}

func TestCut(t *testing.T) {
	t.Parallel()
	u := startUpper(t)
	p := handlertest.StartProxy(t, u.addr)
	a, b := dial(t, p), dial(t, p)
	for _, c := range []*peer{a, b} {
		c.say("a")
		c.hear("A")
	}
	p.Mute()
	a.say("held back")
	for range 3 {
		testenv.Receive(t, patience, "the line", u.lines)
	}
	p.Cut()
	if n := p.Open(); n != 0 {
		t.Errorf("%d connections are open", n)
	}
	for _, c := range []*peer{a, b} {
		if _, err := c.r.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client heard %v", err)
		}
		if err := testenv.Receive(t, patience, "the end", u.ends); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the server heard %v", err)
		}
	}
	// It is still muted, and a new connection is welcome.
	c := dial(t, p)
	c.say("c")
	c.quiet()
	p.Heal()
	c.hear("C")
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	p := handlertest.StartProxy(t, startUpper(t).addr)
	c := dial(t, p)
	c.say("a")
	c.hear("A")
	for range 3 {
		p.Refuse()
		p.Refuse() // again does nothing
		if conn, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("got %v, %v", conn, err)
		}
		c.say("b") // current connections stay
		c.hear("B")
		p.Heal()
		n := dial(t, p)
		n.say("n")
		n.hear("N")
	}
}

func TestServerIsDown(t *testing.T) {
	t.Parallel()
	port, err := freeport.Pick(t.Context())
	must(t, err)
	p := handlertest.StartProxy(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	// The reset may come while the client is still connecting.
	conn, err := net.DialTimeout("tcp", p.Addr(), patience)
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v", err)
	}
	must(t, p.WaitOpen(testenv.Within(t, patience), 0))
}

func TestClose(t *testing.T) {
	t.Parallel()
	p, err := handlertest.NewProxy(startUpper(t).addr)
	must(t, err)
	c := dial(t, p)
	must(t, p.WaitAccepted(testenv.Within(t, patience), 1))
	p.Mute()
	p.Close()
	p.Close()
	p.Heal() // does not bring it back
	if _, err := c.r.ReadByte(); err == nil {
		t.Error("the connection is there")
	}
	if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := p.WaitOpen(ctx, 7); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

// TestFaultsAtOnce is for the race detector and for hangs.
func TestFaultsAtOnce(t *testing.T) {
	t.Parallel()
	p := handlertest.StartProxy(t, startUpper(t).addr)
	ctx, cancel := context.WithCancel(t.Context())
	var clients, faults sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				conn, err := net.DialTimeout("tcp", p.Addr(), patience)
				if err != nil {
					continue
				}
				_ = conn.SetDeadline(time.Now().Add(patience))
				_, _ = io.WriteString(conn, "x\n")
				_, _ = conn.Read(make([]byte, 2))
				_ = conn.Close()
			}
		})
	}
	for _, f := range []func(){p.Cut, p.Mute, p.Refuse, p.Heal} {
		faults.Go(func() {
			for range 100 {
				f()
			}
		})
	}
	faults.Wait()
	cancel()
	p.Heal()
	clients.Wait()
	must(t, p.WaitOpen(testenv.Within(t, patience), 0))
}
