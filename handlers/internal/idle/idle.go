// Package idle keeps idle connections, or clients on top of them, for their next user.
package idle

import (
	"sync"
	"time"
)

// MaxAge is how long a destination without a setting of its own uses a connection. Only a new connection
// looks the name of the server up again: without an age, events follow the old address for as long as that
// answers.
const MaxAge = 5 * time.Minute

// Pool keeps what is not in use. The zero value is an empty pool, and it is safe for
// concurrent use.
type Pool[T any] struct {
	mu     sync.Mutex
	idle   []T // the last one is the next to be used
	closed bool
}

// Take returns the value that was given back last, so that with one user at a time it is
// always the same, or what fresh makes if there is none. Two calls of fresh never run at
// once. It returns false if the pool is closed.
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

// Close closes the pool and returns what was idle, for the caller to close. What is in
// use is refused by Put. Closing again returns nothing.
func (p *Pool[T]) Close() []T {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.idle
	p.idle, p.closed = nil, true
	return idle
}
