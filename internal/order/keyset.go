package order

// keySet is a set of keys for lookups that mostly miss. A miss reads one bit and no large map; the bits are few
// enough for the processor's caches. The zero value is empty.
type keySet struct {
	all   map[Key]uint64 // the failure that blocked each aggregate; 0 without one
	bits  []uint64       // the low bits of Key.low select a bit; keys may share bits
	spare int            // number of keys to add before the bits must grow
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

// add adds a key. A new key has the failure number 0.
func (s *keySet) add(k Key) {
	if s.all == nil {
		s.all = make(map[Key]uint64)
	}
	if _, is := s.all[k]; is {
		return
	}

	s.all[k] = 0
	if s.spare--; s.spare < 0 {
		s.grow()
		return
	}

	s.set(k)
}

// setFailure adds a key with the number of a failure.
func (s *keySet) setFailure(k Key, n uint64) {
	s.add(k)
	s.all[k] = n
}

// remove leaves the bit, which other keys may share, until the next grow.
func (s *keySet) remove(k Key) { delete(s.all, k) }

// grow rebuilds the bits with space for twice as many keys.
func (s *keySet) grow() {
	n := leastBits
	for n < 2*bitsPerKey*len(s.all) {
		n *= 2
	}

	s.bits = make([]uint64, n/64)
	s.spare = n/bitsPerKey - len(s.all)

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
