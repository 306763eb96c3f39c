package tail

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// check fails unless r keeps the promises of Ranges.
func check(tb rapid.TB, r Ranges) {
	tb.Helper()
	for i, g := range r {
		if g.From > g.To || i > 0 && (r[i-1].To == math.MaxInt64 || g.From <= r[i-1].To+1) {
			tb.Fatalf("%v is not a set of ranges", []Range(r))
		}
	}
}

// TestRanges compares sets of ranges with sets of ids, at both ends of the numbers too.
func TestRanges(t *testing.T) {
	t.Parallel()
	const size = 40
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.SampledFrom([]int64{0, math.MinInt64, math.MaxInt64 - size + 1, 7_000_000_000}).Draw(t, "base")
		var r Ranges
		var in [size]bool
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				from := rapid.Int64Range(0, size-1).Draw(t, "from")
				to := rapid.Int64Range(max(0, from-1), size-1).Draw(t, "to")
				add := rapid.Bool().Draw(t, "add")
				g := Range{base + from, base + to}
				if to < from {
					g = Range{g.From, g.From - 1} // has no ids
					if g.To > g.From {
						return // it wraps round
					}
				}
				if add {
					r.Add(g)
				} else {
					r.Remove(g)
				}
				for i := from; i <= to; i++ {
					in[i] = add
				}
			},
			"": func(t *rapid.T) {
				check(t, r)
				n := int64(0)
				for i, want := range in {
					if r.Contains(base+int64(i)) != want {
						t.Fatalf("%v: %d is %v", r, base+int64(i), !want)
					}
					if want {
						n++
					}
				}
				if r.IDs() != n || r.Len() != len(r) {
					t.Fatalf("%v: %d ids, want %d", r, r.IDs(), n)
				}
				if back, err := ParseRanges(r.String()); err != nil || !slices.Equal(back, r) {
					t.Fatalf("%v came back as %v: %v", r, back, err)
				}
			},
		})
	})
}

func TestIDsOfAll(t *testing.T) {
	t.Parallel()
	if n := (Ranges{{math.MinInt64, math.MaxInt64}}).IDs(); n != math.MaxInt64 {
		t.Error(n)
	}
	if n := (Ranges{{1, math.MaxInt64}}).IDs(); n != math.MaxInt64 {
		t.Error(n)
	}
}

// TestParseRanges reads PostgreSQL's output, and writes its input unchanged.
func TestParseRanges(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	for _, text := range []string{"{}", "{[1,4)}", "{[1,4),[7,8)}", "{[-5,0),[4294967296,8589934592)}", "{[9,9],[1,2]}", "{[1,9),[5,12)}", "{(,3)}", "{[3,)}", "{(,)}", "{(2,5]}"} {
		r, err := ParseRanges(testdb.One[string](l, l.Conn, `SELECT $1::int8multirange::text`, text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		check(t, r)
		if !testdb.One[bool](l, l.Conn, `SELECT $1::int8multirange * int8multirange(int8range(-9223372036854775808, NULL)) = $2::int8multirange * int8multirange(int8range(-9223372036854775808, NULL))`, text, r.String()) {
			t.Errorf("%s became %s", text, r)
		}
	}
}

// FuzzParseRanges: no text is taken for another set than its own.
func FuzzParseRanges(f *testing.F) {
	for _, seed := range []string{"", "{", "{}", "}{", "{[1,2)}", "{[1,2),[5,9)}", "{[1,2),}", "{[5,9),[1,7]}", "{(,)}", "{[3,)}", "{(9223372036854775807,)}", "{[2,1)}", "{empty}", "{[,]}", "{[1,2", "{[a,b)}", "{)}", "{]}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRanges(text)
		if err != nil {
			if r != nil {
				t.Errorf("%q: %v beside %v", text, r, err)
			}
			return
		}
		check(t, r)
		if back, err := ParseRanges(r.String()); err != nil || !slices.Equal(back, r) {
			t.Errorf("%q is %v, and that is %v: %v", text, r, back, err)
		}
	})
}

// TestRangesCommon: the intersection of two sets has exactly the ids of both.
func TestRangesCommon(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var sets [2]Ranges
		for i := range sets {
			for range rapid.IntRange(0, 5).Draw(t, "ranges") {
				from := rapid.Int64Range(-20, 20).Draw(t, "from")
				sets[i].Add(Range{from, from + rapid.Int64Range(0, 6).Draw(t, "more")})
			}
		}
		var want int64
		for id := int64(-30); id < 40; id++ {
			if sets[0].Contains(id) && sets[1].Contains(id) {
				want++
			}
		}
		if got := sets[0].And(sets[1]).IDs(); got != want {
			t.Fatalf("%v and %v have %d in common, want %d", sets[0], sets[1], got, want)
		}
	})
	if got := (Ranges{{11, 1<<32 + 5}}).And(Ranges{{math.MinInt64, 10}, {1 << 32, 1<<32 + 5}}).IDs(); got != 6 {
		t.Errorf("behind a jump: %d", got)
	}
}
