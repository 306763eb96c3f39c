package store

import (
	"time"

	"github.com/notifyd/notifyd/internal/backoff"
)

const (
	// firstRefusal is short: a deadlock, or a lock that a session held for too long, is over by then.
	firstRefusal = 100 * time.Millisecond
	// longestRefusal bounds how long a database that accepts again goes unnoticed.
	longestRefusal = 20 * time.Second
)

// Pauses computes the pauses between attempts at a statement. The pauses grow, without an end. Only one goroutine may
// use a Pauses.
type Pauses struct{ lost, refused backoff.Pauses }

// NewPauses returns the Pauses of one part of a relay.
func NewPauses() Pauses {
	return Pauses{backoff.Reconnects(), backoff.NewPauses(firstRefusal, longestRefusal, 4)}
}

// After returns the pause after an error: up to 2 s, plus or minus half, while the database is unavailable. After a
// refusal it is up to 20 s, because each attempt costs the database a statement.
func (p Pauses) After(err error) time.Duration {
	if IsDown(err) {
		return p.lost.Next()
	}
	return p.refused.Next()
}

// Reset shortens the pauses after a success.
func (p Pauses) Reset() {
	p.lost.Reset()
	p.refused.Reset()
}
