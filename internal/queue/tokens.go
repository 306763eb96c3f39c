package queue

import (
	"maps"
	"slices"
	"sync"

	"github.com/notifyd/notifyd/internal/deliveries"
)

// tokens numbers the leases of a relay, and tracks which of them are live. A lease ends in a commit
// that PostgreSQL may lose in a crash, because the relay does not wait for the flush. Then the
// table has a lease of a live relay that the relay has forgotten. See [Housekeeper].
type tokens struct {
	mu   sync.Mutex // leaf: no other lock is taken under it
	last int64
	live map[int64]struct{}
}

// next returns the token of a new lease, which is live from now on: its row may exist before the
// reply to the commit arrives.
func (t *tokens) next() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	if t.live == nil {
		t.live = make(map[int64]struct{})
	}
	t.live[t.last] = struct{}{}
	return t.last
}

// end records that these leases are over: no delivery runs under them, and their outcome has been
// committed, or never will be.
func (t *tokens) end(ended ...int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, token := range ended {
		delete(t.live, token)
	}
}

// now returns the current leases.
func (t *tokens) now() Tokens {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Tokens{Live: slices.Collect(maps.Keys(t.live)), Last: t.last}
}

func tokensOf(entries ...[]deliveries.Entry) (tokens []int64) {
	for _, some := range entries {
		for i := range some {
			tokens = append(tokens, some[i].Token)
		}
	}
	return tokens
}
