package rabbitmq

import (
	"net"
	"sync"
	"time"
)

// blockedPatience is how long a write may still take once the broker has said
// that it takes nothing: long enough for what is already on its way.
const blockedPatience = 200 * time.Millisecond

// socket gives every write a deadline. The library has none: a publish into a
// full socket would hang for as long as the broker does, and with it even the
// closing of the connection, which waits for the publish.
type socket struct {
	net.Conn
	timeout time.Duration

	mu      sync.Mutex
	blocked bool
}

// Write implements io.Writer. An error leaves part of a frame on its way, so
// the connection is of no more use; the library closes it then.
func (s *socket) Write(p []byte) (int, error) {
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

// hurry is for a broker that takes nothing for now. A write under way feels it
// as well.
func (s *socket) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = true
	// It fails for a socket that is closed, where there is no write to end.
	_ = s.SetWriteDeadline(time.Now().Add(min(s.timeout, blockedPatience)))
}

// relax ends hurry.
func (s *socket) relax() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = false
}
