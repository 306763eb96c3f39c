// Package login limits logins after refused credentials. Servers lock accounts after repeated failures, and only a
// person can make the next login succeed.
package login

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// First is the pause after the first refusal. Each further refusal doubles the pause.
	First = time.Minute
	// Longest bounds the pauses.
	Longest = 15 * time.Minute
)

// Gate limits the logins of one program to one server. The zero value limits nothing. It is safe for concurrent use.
type Gate struct {
	mu    sync.Mutex
	who   string // the refused credentials
	err   error  // the refusal
	until time.Time
	pause time.Duration
}

// Refusal returns the last refusal of these credentials, or nil if a login is due. A login with other credentials is
// due at once.
func (g *Gate) Refusal(who string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.who != who || !time.Now().Before(g.until) {
		return nil
	}
	return g.err
}

// Refused records that these credentials were refused. Concurrent logins count as one.
func (g *Gate) Refused(who string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	now := time.Now()
	switch {
	case g.who != who:
		g.pause = First
	case now.Before(g.until):
		return
	default:
		g.pause = min(2*g.pause, Longest)
	}

	g.who = who
	g.err = err
	g.until = now.Add(g.pause*3/4 + rand.N(g.pause/4)) //nolint:gosec // separates relays
}

// Accepted records a successful login, and ends the limit.
func (g *Gate) Accepted() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.who = ""
	g.err = nil
	g.until = time.Time{}
	g.pause = 0
}
