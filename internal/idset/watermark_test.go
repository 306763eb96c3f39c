package idset_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// span is the number of ids with which the tests work. The ids begin at a base, some below the first possible head.
const span = 24

// model is a watermark, and the same as one bool per id.
type model struct {
	idset.Watermark

	has [span]bool
}

// drawBase draws the lowest id: both ends of the numbers occur.
func drawBase(t *rapid.T) int64 {
	return rapid.SampledFrom([]int64{-4, math.MinInt64, math.MaxInt64 - span + 1, 7_000_000_000}).Draw(t, "base")
}

// drawModel draws a watermark whose head is one of the ids.
func drawModel(t *rapid.T, base int64) (m model) {
	head := rapid.Int64Range(0, span-1).Draw(t, "head")
	m.Head = base + head
	for i := range head + 1 {
		m.has[i] = rapid.Bool().Draw(t, "has")
		if !m.has[i] {
			m.Open.Add(idset.Range{From: base + i, To: base + i})
		}
	}
	return m
}

// same fails unless the watermark has exactly these ids.
func same(t *rapid.T, base int64, what string, got idset.Watermark, want func(i int) bool) {
	t.Helper()
	check(t, got.Open)
	if n := len(got.Open); n > 0 && got.Open[n-1].To > got.Head {
		t.Fatalf("%s: %v has open ids above its head", what, got)
	}
	for i := range span {
		if got.Has(base+int64(i)) != want(i) {
			t.Fatalf("%s: %v has %d: %v", what, got, base+int64(i), !want(i))
		}
	}
}

// sameSet fails unless the set has exactly these ids.
func sameSet(t *rapid.T, base int64, what string, got idset.Set, want func(i int) bool) {
	t.Helper()
	check(t, got)
	n := int64(0)
	for i := range span {
		if got.Contains(base+int64(i)) != want(i) {
			t.Fatalf("%s: %v contains %d: %v", what, got, base+int64(i), !want(i))
		}
		if want(i) {
			n++
		}
	}
	if got.IDs() != n {
		t.Fatalf("%s: %v has %d ids, want %d", what, got, got.IDs(), n)
	}
}

// TestWatermark compares watermarks and sets with one bool per id.
func TestWatermark(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		base := drawBase(t)
		w := drawModel(t, base)
		o := drawModel(t, base)
		at := rapid.IntRange(0, span-1).Draw(t, "at")
		top := base + int64(at)

		same(t, base, "itself", w.Watermark, func(i int) bool { return w.has[i] })
		same(t, base, "Or", w.Or(o.Watermark), func(i int) bool { return w.has[i] || o.has[i] })
		same(t, base, "And", w.And(o.Watermark), func(i int) bool { return w.has[i] && o.has[i] })
		same(t, base, "Back", w.Back(top), func(i int) bool { return w.has[i] && i <= at })

		upTo := max(top, w.Head)
		isMissing := func(i int) bool { return !w.has[i] && base+int64(i) <= upTo }
		sameSet(t, base, "Missing", w.Missing(top), isMissing)
		sameSet(t, base, "Or of sets", w.Missing(top).Or(o.Open), func(i int) bool { return isMissing(i) || o.Open.Contains(base+int64(i)) })
		sameSet(t, base, "And of sets", w.Missing(top).And(o.Open), func(i int) bool { return isMissing(i) && o.Open.Contains(base+int64(i)) })
		sameSet(t, base, "Minus", w.Missing(top).Minus(o.Open), func(i int) bool { return isMissing(i) && !o.Open.Contains(base+int64(i)) })

		within := true
		for i := range span {
			within = within && (!w.has[i] || o.has[i])
		}
		if headIsHigh := o.Head >= w.Head; w.Within(o.Watermark) != (within && headIsHigh) {
			t.Fatalf("%v is within %v: %v", w.Watermark, o.Watermark, w.Within(o.Watermark))
		}
		if w.Equal(&o.Watermark) != (w.Head == o.Head && w.has == o.has) {
			t.Fatalf("%v equals %v: %v", w.Watermark, o.Watermark, w.Equal(&o.Watermark))
		}

		if first := slices.Index(w.has[:], false); first > 0 && w.Lowest() != base+int64(first)-1 {
			t.Fatalf("the lowest of %v is %d", w.Watermark, w.Lowest())
		}
	})
}

// TestWith adds ids to a set, and removes them again.
func TestWith(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		base := drawBase(t)
		open := drawModel(t, base).Open
		var ids []int64
		var added [span]bool
		for i := range span {
			added[i] = rapid.Bool().Draw(t, "add") && !open.Contains(base+int64(i))
			if added[i] {
				ids = append(ids, base+int64(i))
			}
		}

		with := open.With(ids)
		sameSet(t, base, "With", with, func(i int) bool { return added[i] || open.Contains(base+int64(i)) })
		sameSet(t, base, "Without", with.Without(ids), func(i int) bool { return open.Contains(base + int64(i)) })
	})
}

// TestSQL: PostgreSQL computes the same sets as Go.
func TestSQL(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Tables{Notify: outboxsql.NotifyOff})
	query := `SELECT ` + idset.SQLHas("w.head", "w.open", "$3::bigint") + `, ` + idset.SQLLowest("w.head", "w.open") + `,
			` + idset.SQLMissing("w.head", "w.open", "$3::bigint") + `::text
		FROM (SELECT $1::bigint AS head, $2::text::int8multirange AS open) AS w`

	rapid.Check(t, func(t *rapid.T) {
		// PostgreSQL cannot calculate beyond the first and the last number.
		base := rapid.SampledFrom([]int64{-4, math.MinInt64 + 1, math.MaxInt64 - span, 7_000_000_000}).Draw(t, "base")
		w := drawModel(t, base).Watermark
		id := base + rapid.Int64Range(0, span-1).Draw(t, "id")

		var has bool
		var lowest int64
		var missing idset.Set
		err := db.Conn.QueryRow(db.Context(), query, w.Head, w.Open.String(), id).Scan(&has, &lowest, &missing)
		if err != nil {
			t.Fatal(err)
		}

		if has != w.Has(id) {
			t.Fatalf("%v has %d: %v in SQL", w, id, has)
		}
		if lowest != w.Lowest() {
			t.Fatalf("%v has all ids up to %d, in SQL up to %d", w, w.Lowest(), lowest)
		}
		if want := w.Missing(id); !slices.Equal(missing, want) {
			t.Fatalf("%v misses %v up to %d, in SQL %v", w, want, id, missing)
		}
	})
}
