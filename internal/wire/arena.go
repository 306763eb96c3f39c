package wire

import "strings"

// blockSize is the size of a block. Who keeps one event keeps its block, so it
// is no larger than what makes the allocations cheap. The first block is small:
// an idle relay reads one event at a time.
const (
	blockSize  = 64 << 10
	firstBlock = 1 << 10
)

// Arena hands out copies of payloads from large blocks: one allocation for
// many events. A block is never reused, because handlers may keep an event. The
// zero value is ready for use.
type Arena struct{ block []byte }

// Keep returns a copy of raw, which has no room to grow.
func (a *Arena) Keep(raw []byte) []byte {
	if len(raw) > blockSize/4 {
		return append([]byte(nil), raw...)
	}
	if len(a.block)+len(raw) > cap(a.block) {
		size := blockSize
		if a.block == nil {
			size = max(firstBlock, len(raw))
		}
		a.block = make([]byte, 0, size)
	}
	start := len(a.block)
	a.block = append(a.block, raw...)
	return a.block[start:len(a.block):len(a.block)]
}

// Strings is an [Arena] of strings: ids of aggregates, of which nearly every one is
// another. Its blocks grow from little, because they are short.
type Strings struct{ block *strings.Builder }

// Sizes of the blocks of [Strings].
const (
	firstStrings = 64
	mostStrings  = 16 << 10
)

// Keep returns raw as a string.
func (s *Strings) Keep(raw []byte) string {
	if len(raw) == 0 {
		return ""
	}
	if len(raw) > mostStrings/4 {
		return string(raw)
	}
	if s.block == nil || s.block.Len()+len(raw) > s.block.Cap() {
		size := firstStrings
		if s.block != nil {
			size = min(2*s.block.Cap(), mostStrings)
		}
		s.block = new(strings.Builder)
		s.block.Grow(max(size, len(raw)))
	}
	start := s.block.Len()
	s.block.Write(raw) // never grows, so that what was handed out stays where it is
	return s.block.String()[start:]
}
