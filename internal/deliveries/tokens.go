package deliveries

import (
	"maps"
	"slices"
	"sync"
)

// Tokens are the tokens of a relay's leases at one moment.
type Tokens struct {
	// Live are the leases that exist, or may yet be written or settled.
	Live []int64
	// Last is the greatest token of any lease so far.
	Last int64
}

// Issuer numbers the leases of a relay, and tracks which of them are live. A lease ends in a commit that PostgreSQL may
// lose in a crash, because the relay does not wait for the flush. Then the table has a lease of a live relay that the
// relay has forgotten: see [Leases.TakeOverLost].
type Issuer struct {
	mu   sync.Mutex // leaf: no other lock is taken under it
	last int64
	live map[int64]struct{}
}

// NewIssuer returns an issuer of tokens above one.
func NewIssuer(last int64) *Issuer { return &Issuer{last: last, live: make(map[int64]struct{})} }

// Next returns the token of a new lease. It is live at once: the row may exist before the reply to the commit arrives.
func (i *Issuer) Next() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.last++
	i.live[i.last] = struct{}{}
	return i.last
}

// End records that the leases of these rows are over: no delivery runs under them, and their outcome has been
// committed, or never will be.
func (i *Issuer) End(rows ...Entry) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for j := range rows {
		delete(i.live, rows[j].Token)
	}
}

// Now returns the current leases.
func (i *Issuer) Now() Tokens {
	i.mu.Lock()
	defer i.mu.Unlock()
	return Tokens{Live: slices.Collect(maps.Keys(i.live)), Last: i.last}
}
