package flight

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/tail"
)

// TestWatermark: the open ids are exactly the events that the lane has, has returned, or does not see yet, and the events
// still to be written. A stored delivery is not open: its row counts.
func TestWatermark(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const head = 60
		var gaps idset.Set
		open := make(map[int64]bool)
		f := New(func() bool { return true }, func() {})
		var batch []dispatch.Delivery
		var more []int64
		inMemory, bytes := 0, 0
		for id := int64(1); id <= head; id++ {
			d := dispatch.Delivery{Event: &delivery.Event{ID: id, Payload: []byte("12345")}}
			switch rapid.SampledFrom([]string{"delivered", "gap", "batch", "returned", "row at the lane", "row returned", "more"}).Draw(t, "what") {
			case "gap":
				gaps.Add(idset.Range{From: id, To: id})
				open[id] = true
			case "batch":
				batch, open[id] = append(batch, d), true
				inMemory, bytes = inMemory+1, bytes+5
			case "returned":
				f.Return(d)
				open[id] = true
				inMemory++
			case "row at the lane":
				d.Row = true
				batch, bytes = append(batch, d), bytes+5
			case "row returned":
				d.Row = true
				f.Return(d)
			case "more":
				more, open[id] = append(more, id), true
			default:
			}
		}
		returned := len(f.Returned)
		if len(batch) > 0 {
			p := f.Batch()
			p.Fill(append(p.Alloc(len(batch)), batch...))
			f.Begin(p, batch)
		}
		if f.Bytes != bytes || f.Unanswered != len(batch) || f.Count() != len(batch)+returned {
			t.Fatalf("%d bytes, %d without an answer, %d under way; want %d, %d, %d", f.Bytes, f.Unanswered, f.Count(), bytes, len(batch), len(batch)+returned)
		}
		at, n := f.Watermark(tail.NewReader(head, gaps, tail.NewWriterScanner()), more)
		if at.Head != head || n != inMemory {
			t.Fatalf("head %d, %d in memory; want %d, %d", at.Head, n, head, inMemory)
		}
		var want idset.Set
		for _, id := range slices.Sorted(maps.Keys(open)) {
			want.Add(idset.Range{From: id, To: id})
		}
		if at.Open.String() != want.String() {
			t.Fatalf("open %s, want %s", at.Open, want)
		}
	})
}

// TestReturn: events that the lane returns are sorted by id, whatever the order of their return.
func TestReturn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := New(nil, nil)
		ids := rapid.SliceOfDistinct(rapid.Int64Range(1, 100), func(id int64) int64 { return id }).Draw(t, "ids")
		for _, id := range ids {
			f.Return(dispatch.Delivery{Event: &delivery.Event{ID: id}})
		}
		slices.Sort(ids)
		for i, d := range f.Returned {
			if d.Event.ID != ids[i] {
				t.Fatalf("%d is at %d, want %d", d.Event.ID, i, ids[i])
			}
		}
		if len(f.Returned) != len(ids) {
			t.Fatalf("%d of %d are left", len(f.Returned), len(ids))
		}
	})
}
