package idset_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// check fails unless r keeps the promises of idset.Set.
func check(tb rapid.TB, r idset.Set) {
	tb.Helper()
	for i, g := range r {
		if g.From > g.To || i > 0 && (r[i-1].To == math.MaxInt64 || g.From <= r[i-1].To+1) {
			tb.Fatalf("%v is not a set of ranges", []idset.Range(r))
		}
	}
}

// TestSet compares sets of ranges with sets of ids, at both ends of the numbers too.
func TestSet(t *testing.T) {
	t.Parallel()
	const size = 40
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.SampledFrom([]int64{0, math.MinInt64, math.MaxInt64 - size + 1, 7_000_000_000}).Draw(t, "base")
		var r idset.Set
		var in [size]bool
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				from := rapid.Int64Range(0, size-1).Draw(t, "from")
				to := rapid.Int64Range(max(0, from-1), size-1).Draw(t, "to")
				add := rapid.Bool().Draw(t, "add")
				g := idset.Range{From: base + from, To: base + to}
				if to < from {
					g = idset.Range{From: g.From, To: g.From - 1} // has no ids
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
				if back, err := idset.Parse(r.String()); err != nil || !slices.Equal(back, r) {
					t.Fatalf("%v came back as %v: %v", r, back, err)
				}
			},
		})
	})
}

func TestIDsOfAll(t *testing.T) {
	t.Parallel()
	if n := (idset.Set{{From: math.MinInt64, To: math.MaxInt64}}).IDs(); n != math.MaxInt64 {
		t.Error(n)
	}
	if n := (idset.Set{{From: 1, To: math.MaxInt64}}).IDs(); n != math.MaxInt64 {
		t.Error(n)
	}
}

// TestParse reads PostgreSQL's output, and writes its input unchanged.
func TestParse(t *testing.T) {
	t.Parallel()
	l := testdb.New(t, testdb.Tables{Notify: outboxsql.NotifyOff})
	for _, text := range []string{"{}", "{[1,4)}", "{[1,4),[7,8)}", "{[-5,0),[4294967296,8589934592)}", "{[9,9],[1,2]}", "{[1,9),[5,12)}", "{(,3)}", "{[3,)}", "{(,)}", "{(2,5]}"} {
		r, err := idset.Parse(testdb.One[string](l, l.Conn, `SELECT $1::int8multirange::text`, text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		check(t, r)
		if !testdb.One[bool](l, l.Conn, `SELECT $1::int8multirange * int8multirange(int8range(-9223372036854775808, NULL)) = $2::int8multirange * int8multirange(int8range(-9223372036854775808, NULL))`, text, r.String()) {
			t.Errorf("%s became %s", text, r)
		}
	}
}

// FuzzParse: no text is taken for another set than its own.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "{", "{}", "}{", "{[1,2)}", "{[1,2),[5,9)}", "{[1,2),}", "{[5,9),[1,7]}", "{(,)}", "{[3,)}", "{(9223372036854775807,)}", "{[2,1)}", "{empty}", "{[,]}", "{[1,2", "{[a,b)}", "{)}", "{]}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := idset.Parse(text)
		if err != nil {
			if r != nil {
				t.Errorf("%q: %v beside %v", text, r, err)
			}
			return
		}
		check(t, r)
		if back, err := idset.Parse(r.String()); err != nil || !slices.Equal(back, r) {
			t.Errorf("%q is %v, and that is %v: %v", text, r, back, err)
		}
	})
}

// TestAnd: PostgreSQL has all ids from the lowest number on, and the identifiers of partitions jump by 2^32.
func TestAnd(t *testing.T) {
	t.Parallel()
	all := idset.Set{{From: math.MinInt64, To: 10}, {From: 1 << 32, To: 1<<32 + 5}}
	if got := (idset.Set{{From: 11, To: 1<<32 + 5}}).And(all).IDs(); got != 6 {
		t.Errorf("behind a jump: %d", got)
	}
}
