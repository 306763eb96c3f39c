package queue

import (
	"maps"
	"slices"
	"sync"
)

// tokens numbers the leases of a relay, and knows which of them have not come to
// their end. A lease ends in a commit that PostgreSQL may lose in a crash, because
// none is waited for: then the table has a lease of a relay that lives and has
// forgotten it. See [Housekeeper].
type tokens struct {
	mu   sync.Mutex // a leaf: no other lock is taken under it
	last int64
	live map[int64]struct{}
}

// next returns the token of a new lease, which is live from then on: it may be in
// the table before the relay hears that it is.
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

// end takes word that nobody works on these leases any more, and that what became
// of them has been committed, or never will be.
func (t *tokens) end(ended ...int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, token := range ended {
		delete(t.live, token)
	}
}

// now returns the leases of this moment.
func (t *tokens) now() Tokens {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Tokens{Live: slices.Collect(maps.Keys(t.live)), Last: t.last}
}

func tokensOf(entries ...[]Entry) (tokens []int64) {
	for _, some := range entries {
		for i := range some {
			tokens = append(tokens, some[i].Token)
		}
	}
	return tokens
}
