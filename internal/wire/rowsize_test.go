package wire_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/internal/wire"
)

// TestRowSize: the number of rows falls to a quarter after a failure and to one after a few, whatever the rows before, and
// after reads it follows their size.
func TestRowSize(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const most, bytes = 500, 8 << 20
		var s wire.RowSize
		for range rapid.IntRange(0, 10).Draw(t, "reads") {
			s.Saw(rapid.IntRange(0, most).Draw(t, "rows"), rapid.IntRange(0, 1<<30).Draw(t, "bytes"))
		}

		before := s
		before.Failed()
		if n := before.Rows(most, bytes); n > max(1, s.Rows(most, bytes)/4) || n < 1 {
			t.Fatalf("%d rows after a failure, %d before", n, s.Rows(most, bytes))
		}
		for range 16 {
			before.Failed()
		}
		if n := before.Rows(most, bytes); n != 1 {
			t.Fatalf("%d rows after many failures", n)
		}

		size := rapid.IntRange(1, 20<<20).Draw(t, "size")
		for range 32 {
			before.Saw(10, 10*size)
		}
		if n, want := before.Rows(most, bytes), min(most, max(1, bytes/size)); n != want {
			t.Fatalf("%d rows of %d bytes, want %d", n, size, want)
		}
		if before.Rows(most, 0) != most {
			t.Fatal("0 is a bound")
		}
	})
}
