// Package idle keeps idle connections, or clients on top of them, for their next user.
package idle

import (
	"sync"
	"time"
)

// MaxAge is how long a destination without its own setting uses a connection. Only a new connection
// resolves the server's name again: without a maximum age, events would go to the old address for as long
// as it answers.
const MaxAge = 5 * time.Minute

// Pool keeps idle values, such as connections. The zero value is an empty pool, and
// it is safe for concurrent use.
type Pool[T any] struct {
	mu     sync.Mutex
	idle   []T // the last one is the next to be used
	closed bool
}

// Take returns the value that was put back last, so that a single user always gets the
// same one. From an empty pool it returns the result of fresh. Two calls of fresh never
// run at once. Take returns false if the pool is closed.
func (p *Pool[T]) Take(fresh func() T) (value T, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return value, false
	}
	if last := len(p.idle) - 1; last >= 0 {
		value = p.idle[last]
		p.idle = p.idle[:last]
		return value, true
	}
	return fresh(), true
}

// Put gives a value back. It returns false if the pool is closed: the caller closes the
// value.
func (p *Pool[T]) Put(value T) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.idle = append(p.idle, value)
	}
	return !p.closed
}

// Close closes the pool and returns the idle values, for the caller to close. Put then
// refuses the values in use. Closing again returns nothing.
func (p *Pool[T]) Close() []T {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.idle
	p.idle = nil
	p.closed = true
	return idle
}
