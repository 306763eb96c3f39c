package rabbitmq

import (
	"net"
	"sync"
	"time"
)

// blockedPatience is how long a write may still take once the broker has reported
// an alarm: long enough for bytes that are already on their way.
const blockedPatience = 200 * time.Millisecond

// flushAt is how much is gathered before it is written: some dozens of small messages, so
// that the broker begins with the first while the next are prepared.
const flushAt = 32 << 10

// socket gives every write a deadline. The library sets no deadline: a publish into
// a full socket would hang for as long as the broker does. The closing of the
// connection would hang too, because it waits for the publish.
//
// The library writes each message separately. Between gather and flush those writes
// are combined: each write costs both sides more than a small message does.
type socket struct {
	net.Conn
	timeout time.Duration

	writing sync.Mutex // held while something is written, so that bytes keep their order
	pending []byte     // gathered and not written
	holders int        // deliveries that gather

	mu      sync.Mutex
	blocked bool
}

// Write implements io.Writer. An error leaves part of a frame on its way. The
// connection is unusable then, and the library closes it.
func (s *socket) Write(p []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()

	if s.holders == 0 {
		return s.write(p)
	}

	s.pending = append(s.pending, p...)
	if len(s.pending) < flushAt {
		return len(p), nil
	}

	if err := s.flushLocked(); err != nil {
		return 0, err
	}

	return len(p), nil
}

// gather buffers writes until flush. Its caller is about to write without waiting in
// between.
func (s *socket) gather() {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.holders++
}

// flush ends gather, and writes all gathered bytes, those of other deliveries included. It
// returns the errors of Write.
func (s *socket) flush() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.holders--
	return s.flushLocked()
}

func (s *socket) flushLocked() error {
	if len(s.pending) == 0 {
		return nil
	}
	_, err := s.write(s.pending)
	s.pending = s.pending[:0]
	return err
}

func (s *socket) write(p []byte) (int, error) {
	s.mu.Lock()
	limit := s.timeout
	if s.blocked {
		limit = min(limit, blockedPatience)
	}
	err := s.SetWriteDeadline(time.Now().Add(limit))
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return s.Conn.Write(p)
}

// hurry shortens the deadline while the broker takes nothing, also of a write under
// way.
func (s *socket) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = true
	// An error means that the socket is closed: then no write is under way.
	_ = s.SetWriteDeadline(time.Now().Add(min(s.timeout, blockedPatience)))
}

// relax ends hurry.
func (s *socket) relax() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = false
}
