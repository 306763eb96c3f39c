package handlertest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/freeport"
)

const testPassword = "correct horse/battery"

// testServer keeps events. A client says AUTH and a password, then PUT and the
// id of an event with payload and content type per line, and gets one line for each: OK, NO for an event that
// is refused, WAIT, or FEWER.
type testServer struct {
	addr string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{}
	received []int64
	messages map[int64]arrived
	work     sync.WaitGroup
}

// arrived is a payload and its content type.
type arrived struct {
	body []byte
	kind string
}

func startServer(tb testing.TB) *testServer {
	tb.Helper()
	s := &testServer{conns: make(map[net.Conn]struct{}), messages: make(map[int64]arrived)}
	s.start(tb)
	tb.Cleanup(func() { s.stop(tb) })
	return s
}

func (s *testServer) start(tb testing.TB) {
	tb.Helper()
	open := freeport.Listen
	if s.addr != "" {
		open = func(ctx context.Context) (net.Listener, error) { return freeport.Reopen(ctx, s.addr) }
	}
	l, err := open(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	s.mu.Lock()
	s.listener, s.addr = l, l.Addr().String()
	s.mu.Unlock()
	s.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			stopped := s.listener != l
			if !stopped {
				s.conns[conn] = struct{}{}
				s.work.Go(func() { s.serve(conn) })
			}
			s.mu.Unlock()
			if stopped {
				_ = conn.Close()
			}
		}
	})
}

func (s *testServer) stop(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	if s.listener != nil {
		_ = s.listener.Close()
		s.listener = nil
	}
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}

func (s *testServer) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		verb, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
		if _, err := fmt.Fprintln(conn, s.answer(verb, arg)); err != nil {
			return
		}
	}
}

func (s *testServer) answer(verb, arg string) string {
	switch {
	case verb == "AUTH" && arg == testPassword, verb == "QUIT":
		return "OK"
	case verb == "AUTH":
		return "DENIED"
	case strings.HasSuffix(arg, " bad"):
		return "NO"
	case strings.HasSuffix(arg, " slow"):
		return "WAIT"
	case strings.HasSuffix(arg, " much"):
		return "FEWER"
	}
	number, message, _ := strings.Cut(arg, "|")
	id, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return "NO"
	}
	text, kind, _ := strings.Cut(message, "|")
	body, err := hex.DecodeString(text)
	if err != nil {
		return "NO"
	}
	s.mu.Lock()
	s.received, s.messages[id] = append(s.received, id), arrived{body, kind}
	s.mu.Unlock()
	return "OK"
}

func (s *testServer) ids() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int64(nil), s.received...)
}

func (s *testServer) message(_ testing.TB, id int64) ([]byte, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.messages[id]
	return m.body, m.kind
}

// client is a handler as it should be.
type client struct {
	addr, password string
	slot           chan struct{} // held while conn is in use
	done           chan struct{} // closed by Close
	once           sync.Once

	conn net.Conn
	r    *bufio.Reader
}

func newClient(addr string) *client {
	return &client{addr: addr, password: testPassword, slot: make(chan struct{}, 1), done: make(chan struct{})}
}

var errClosed = errors.New("client: closed")

func (c *client) Deliver(ctx context.Context, e *delivery.Event) error {
	return c.DeliverBatch(ctx, []*delivery.Event{e})[0]
}

func (c *client) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	errs := make([]error, len(events))
	all := func(err error) []error {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	if err := c.acquire(ctx); err != nil {
		return all(err)
	}
	defer func() { <-c.slot }()
	if err := c.connect(ctx); err != nil {
		return all(c.lost(ctx, err))
	}
	stop := c.closeWhenDone(ctx, c.conn)
	defer stop()
	var lines strings.Builder
	for _, e := range events {
		fmt.Fprintf(&lines, "PUT %d|%x|%s%s\n", e.ID, e.Payload, cmp.Or(e.ContentType, "application/json"), e.Headers["mark"])
	}
	if _, err := c.conn.Write([]byte(lines.String())); err != nil {
		return all(c.lost(ctx, err))
	}
	for i := range events {
		line, err := c.r.ReadString('\n')
		if err != nil {
			err = c.lost(ctx, err)
			for ; i < len(events); i++ {
				errs[i] = err
			}
			return errs
		}
		switch strings.TrimSpace(line) {
		case "OK":
		case "WAIT":
			errs[i] = delivery.RetryAfter(7*time.Second, errors.New("client: wait"))
		case "FEWER":
			errs[i] = delivery.Throttled(9*time.Second, errors.New("client: too much"))
		default:
			errs[i] = delivery.Permanent(errors.New("client: refused"))
		}
	}
	return errs
}

func (c *client) acquire(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-c.done:
		return delivery.Unavailable(errClosed)
	default:
	}
	select {
	case c.slot <- struct{}{}:
		return nil
	case <-c.done:
		return delivery.Unavailable(errClosed)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// connect makes a connection, if there is none.
func (c *client) connect(ctx context.Context) error {
	if c.conn != nil {
		return nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return err
	}
	c.conn, c.r = conn, bufio.NewReader(conn)
	defer c.closeWhenDone(ctx, conn)()
	if _, err := fmt.Fprintln(conn, "AUTH", c.password); err != nil {
		return err
	}
	line, err := c.r.ReadString('\n')
	if err == nil && strings.TrimSpace(line) != "OK" {
		err = errors.New("client: wrong password")
	}
	return err
}

// closeWhenDone closes conn when ctx is done or the client is closed.
func (c *client) closeWhenDone(ctx context.Context, conn net.Conn) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	over := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-ctx.Done():
		case <-c.done:
		case <-over:
			return
		}
		_ = conn.Close()
	}()
	return func() {
		close(over)
		<-ended
		cancel()
	}
}

// lost forgets the connection and says why it is gone.
func (c *client) lost(ctx context.Context, err error) error {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("client: %w", context.Cause(ctx))
	}
	return delivery.Unavailable(fmt.Errorf("client: %w", err))
}

func (c *client) Close() error {
	c.once.Do(func() {
		close(c.done)
		c.slot <- struct{}{}
		if c.conn != nil {
			_ = c.conn.Close()
			c.conn = nil
		}
		<-c.slot
	})
	return nil
}
