package wire

import "strings"

// blockSize is the size of a block. A handler that keeps one event keeps its block, so a block is
// only as large as cheap allocation needs. The first block is small: an idle relay reads one event
// at a time.
const (
	blockSize  = 64 << 10
	firstBlock = 1 << 10
)

// Arena hands out copies of payloads from large blocks: one allocation for
// many events. A block is never reused, because handlers may keep an event. The
// zero value is ready for use.
type Arena struct{ block []byte }

// Keep returns a copy of raw without spare capacity. The copy of nil is nil.
func (a *Arena) Keep(raw []byte) []byte {
	if raw == nil {
		return nil
	}
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

// Strings is an [Arena] for strings. It serves aggregate ids, which almost all differ. Blocks start small and grow,
// because the ids are short.
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
	s.block.Write(raw) // never grows, so that earlier strings stay valid

	return s.block.String()[start:]
}
