package wire

import "cmp"

const (
	// rowGuess is the assumed size of a row before the first read, in bytes. It is large: events of 10 MB must not
	// come by the hundred, and the assumption halves with each read of small ones.
	rowGuess = 128 << 10
	// rowGrowth is by how much rows are assumed to be larger after a read that failed.
	rowGrowth = 4
)

// RowSize is the assumed size of the next rows of a read, by the rows of earlier ones. The zero value knows none.
type RowSize struct {
	bytes int
}

// Rows returns how many of n rows probably fit into a number of bytes, at least 1. 0 bytes mean no bound.
func (s RowSize) Rows(n, bytes int) int {
	if bytes <= 0 {
		return n
	}
	return min(n, max(1, bytes/cmp.Or(s.bytes, rowGuess)))
}

// Saw records the number of rows of a read, and their bytes. Larger rows count at once, and smaller ones step by step.
func (s *RowSize) Saw(rows, bytes int) {
	if rows > 0 {
		s.bytes = max(1, bytes/rows, cmp.Or(s.bytes, rowGuess)/2)
	}
}

// Failed records that a read failed, perhaps because its rows were too large to arrive in time. After small rows the next
// read is as small as the first one: with four times their size it might have as many rows as the one that failed.
func (s *RowSize) Failed() {
	s.bytes = min(max(rowGrowth*cmp.Or(s.bytes, rowGuess), rowGuess), maxRow)
}

// maxRow is the largest size of a row in PostgreSQL, in bytes.
const maxRow = 1 << 30
