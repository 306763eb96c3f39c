package order

import (
	"testing"

	"pgregory.net/rapid"
)

// TestKeySet: the set has the keys that were added and not removed, also where keys share a bit.
func TestKeySet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key := func() Key {
			return Key{high: rapid.Uint64Range(0, 3).Draw(t, "high"), low: rapid.Uint64Range(0, 200).Draw(t, "low") * 37}
		}
		var s keySet
		want := map[Key]bool{}
		for range rapid.IntRange(0, 400).Draw(t, "n") {
			k := key()
			if rapid.IntRange(0, 2).Draw(t, "what") == 0 {
				s.remove(k)
				delete(want, k)
			} else {
				s.add(k)
				want[k] = true
			}
			if other := key(); s.has(other) != want[other] || s.has(k) != want[k] || s.len() != len(want) {
				t.Fatalf("%v and %v: %v and %v, of %d", k, other, s.has(k), s.has(other), s.len())
			}
		}
	})
}
