package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// arrival is one event as it arrived at a destination, perhaps repeatedly.
type arrival struct {
	ID  int64     `json:"id"`
	Key string    `json:"key"`
	By  int       `json:"by"` // the process that delivered it, if known
	At  time.Time `json:"-"`
}

// place is the destination of the relays under test.
type place interface {
	// all returns the arrivals so far, in order.
	all() []arrival
	// distinct is the number of different events among them.
	distinct() int
	// unsure is the number of arrivals whose answer may not have reached the relay.
	unsure() int
}

// How a sink treats its input.
type mode uint8

const (
	modeUp      mode = iota
	modeSlow         // answers late
	modeBlocked      // accepts connections, and neither reads nor answers
	modeDown         // refuses
)

// slowness is the delay of a slow sink's answer: longer than the lock budget.
const slowness = 150 * time.Millisecond

// sink is a destination that outlives the relays: each line that it reads is a
// batch of events, and each line that it writes acknowledges one.
type sink struct {
	pace time.Duration // how long a batch takes while all is well
	addr string
	work sync.WaitGroup
	stop chan struct{}

	mu       sync.Mutex
	mode     mode
	changed  chan struct{} // closed and replaced when mode changes
	listener net.Listener
	conns    map[net.Conn]int // size of the last batch
	got      []arrival
	ids      map[int64]bool
	maybe    int
	held     int // batches that wait for a blocked sink
}

func newSink(t *testing.T, pace time.Duration) *sink {
	t.Helper()
	s := &sink{pace: pace, stop: make(chan struct{}), changed: make(chan struct{}), conns: make(map[net.Conn]int), ids: make(map[int64]bool)}
	l, err := freeport.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	s.accept(l)
	t.Cleanup(func() {
		s.set(t, modeDown)
		close(s.stop)
		s.work.Wait()
	})
	return s
}

// accept serves the connections of l.
func (s *sink) accept(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener = l
	s.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			s.work.Go(func() { s.serve(conn) })
		}
	})
}

// set changes how the sink behaves.
func (s *sink) set(t *testing.T, m mode) {
	t.Helper()
	s.mu.Lock()
	was := s.mode
	s.mode = m
	close(s.changed)
	s.changed = make(chan struct{})
	if m == modeDown && was != modeDown {
		_ = s.listener.Close()
		for conn := range s.conns {
			_ = conn.Close()
		}
	}
	s.mu.Unlock()
	if was == modeDown && m != modeDown {
		l, err := freeport.Reopen(t.Context(), s.addr)
		if err != nil {
			t.Fatal(err)
		}
		s.accept(l)
	}
}

func (s *sink) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // the other end notices
	s.mu.Lock()
	if s.mode == modeDown {
		s.mu.Unlock()
		return
	}
	s.conns[conn] = 0
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.maybe += s.conns[conn] // its last answer may have been lost
		delete(s.conns, conn)
	}()
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var batch []arrival
		if json.Unmarshal(lines.Bytes(), &batch) != nil || !s.take(conn, batch) {
			return
		}
		if _, err := conn.Write([]byte("ok\n")); err != nil {
			return
		}
	}
}

// take records a batch when the sink admits it, and returns when the answer is
// due; false without an answer.
func (s *sink) take(conn net.Conn, batch []arrival) bool {
	if !s.admit() {
		return false
	}
	s.mu.Lock()
	now, pause := time.Now(), s.pace
	if s.mode == modeDown {
		s.mu.Unlock()
		return false
	}
	if s.mode == modeSlow {
		pause = slowness
	}
	for _, a := range batch {
		a.At = now
		s.got = append(s.got, a)
		s.ids[a.ID] = true
	}
	s.conns[conn] = len(batch)
	s.mu.Unlock()
	if pause == 0 {
		return true
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.stop:
		return false
	}
}

// admit waits while the sink is blocked.
func (s *sink) admit() bool {
	s.mu.Lock()
	if s.mode == modeBlocked {
		s.held++
		defer func() {
			s.mu.Lock()
			s.held--
			s.mu.Unlock()
		}()
	}
	for s.mode == modeBlocked {
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.stop:
			return false
		}
		s.mu.Lock()
	}
	s.mu.Unlock()
	return true
}

func (s *sink) all() []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clip(s.got)
}

func (s *sink) distinct() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

func (s *sink) unsure() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maybe
}

// holding is the number of batches that wait for a blocked sink.
func (s *sink) holding() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// client is the relay's side of a sink.
type client struct {
	addr string
	idle chan net.Conn
}

func newClient(addr string, most int) *client {
	return &client{addr: addr, idle: make(chan net.Conn, most)}
}

// send passes on a batch and waits for the answer. A failed connection is closed,
// so that the sink notices.
func (c *client) send(ctx context.Context, batch []arrival) error {
	var conn net.Conn
	select {
	case conn = <-c.idle:
	default:
		var err error
		if conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", c.addr); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	line, err := json.Marshal(batch)
	if err != nil {
		return err
	}
	if _, err = conn.Write(append(line, '\n')); err == nil {
		_, err = conn.Read(make([]byte, 3))
	}
	if err != nil {
		_ = conn.Close()
		return err
	}
	select {
	case c.idle <- conn:
	default:
		_ = conn.Close()
	}
	return nil
}

// mailbox is a mail server as a destination.
type mailbox struct {
	*smtpsink.Sink

	mu    sync.Mutex
	drops int
}

// drop takes the next n mails and answers nothing.
func (m *mailbox) drop(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drops += n
	m.Fail(smtpsink.Fault{Stage: smtpsink.DataEnd, Drop: true, Times: n})
}

func (m *mailbox) unsure() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drops
}

func (m *mailbox) all() []arrival {
	mails := m.Mails()
	got := make([]arrival, 0, len(mails))
	for _, mail := range mails {
		msg, err := mail.Parse()
		if err != nil {
			continue // that mail is missed then
		}
		id, err := strconv.ParseInt(strings.TrimSpace(msg.Text), 10, 64)
		if err == nil {
			got = append(got, arrival{ID: id, Key: strings.TrimSpace(strings.TrimPrefix(msg.Subject, "key")), At: mail.ReceivedAt})
		}
	}
	return got
}

func (m *mailbox) distinct() int {
	ids := make(map[int64]bool)
	for _, a := range m.all() {
		ids[a.ID] = true
	}
	return len(ids)
}

// forget returns all arrivals so far, and begins anew.
func (s *sink) forget() []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.got
	s.got, s.ids = nil, make(map[int64]bool)
	return got
}
