package order

// keySet is a set of keys for lookups that mostly miss: a miss reads one bit, out of few enough to
// stay in the processor's caches, and no large map. The zero value is empty.
type keySet struct {
	all  map[Key]uint64 // the mark of each
	bits []uint64       // a key has the bit that the low bits of low select, and may share it
	room int            // how many keys can still be added before there are more bits
}

const (
	// bitsPerKey is the minimum number of bits for each added key.
	bitsPerKey = 16
	leastBits  = 1024
)

func (s *keySet) len() int { return len(s.all) }

func (s *keySet) has(k Key) bool {
	if word, bit := s.bit(k); word == nil || *word&bit == 0 {
		return false
	}
	_, is := s.all[k]
	return is
}

// add adds a key, with the mark 0 if it is new.
func (s *keySet) add(k Key) {
	if s.all == nil {
		s.all = make(map[Key]uint64)
	}
	if _, is := s.all[k]; is {
		return
	}
	s.all[k] = 0
	if s.room--; s.room < 0 {
		s.spread()
		return
	}
	s.set(k)
}

// mark adds a key, and gives it a mark.
func (s *keySet) mark(k Key, n uint64) {
	s.add(k)
	s.all[k] = n
}

// remove leaves the bit, which other keys may share, until the bits are rebuilt.
func (s *keySet) remove(k Key) { delete(s.all, k) }

// spread rebuilds all bits, with room for as many keys again.
func (s *keySet) spread() {
	n := leastBits
	for n < 2*bitsPerKey*len(s.all) {
		n *= 2
	}
	s.bits, s.room = make([]uint64, n/64), n/bitsPerKey-len(s.all)
	for k := range s.all {
		s.set(k)
	}
}

func (s *keySet) set(k Key) {
	word, bit := s.bit(k)
	*word |= bit
}

func (s *keySet) bit(k Key) (word *uint64, bit uint64) {
	if len(s.bits) == 0 {
		return nil, 0
	}
	return &s.bits[k.low/64%uint64(len(s.bits))], 1 << (k.low % 64)
}
