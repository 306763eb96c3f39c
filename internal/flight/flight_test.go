package flight

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/tail"
)

// TestAccount: what is at the lane, what it has returned, what is invisible and what is still to be written is open, and nothing else is. A
// stored delivery is not: its row counts.
func TestAccount(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const head = 60
		var gaps tail.Ranges
		open := make(map[int64]bool)
		f := New(func() bool { return true }, func() {})
		var parcel []dispatch.Delivery
		var more []int64
		inMemory, bytes := 0, 0
		for id := int64(1); id <= head; id++ {
			d := dispatch.Delivery{Event: &delivery.Event{ID: id, Payload: []byte("12345")}}
			switch rapid.SampledFrom([]string{"delivered", "gap", "parcel", "returned", "row at the lane", "row returned", "more"}).Draw(t, "what") {
			case "gap":
				gaps.Add(tail.Range{From: id, To: id})
				open[id] = true
			case "parcel":
				parcel, open[id] = append(parcel, d), true
				inMemory, bytes = inMemory+1, bytes+5
			case "returned":
				f.GiveBack(d)
				open[id] = true
				inMemory++
			case "row at the lane":
				d.Row = true
				parcel, bytes = append(parcel, d), bytes+5
			case "row returned":
				d.Row = true
				f.GiveBack(d)
			case "more":
				more, open[id] = append(more, id), true
			default:
			}
		}
		returned := len(f.Returned)
		if len(parcel) > 0 {
			p := f.Parcel()
			p.Fill(append(p.Room(len(parcel)), parcel...))
			f.Begin(p, parcel)
		}
		if f.Bytes != bytes || f.Left != len(parcel) || f.UnderWay() != len(parcel)+returned {
			t.Fatalf("%d bytes, %d without an answer, %d under way; want %d, %d, %d", f.Bytes, f.Left, f.UnderWay(), bytes, len(parcel), len(parcel)+returned)
		}
		gotHead, got, n := f.Account(tail.NewReader(head, gaps, tail.NewWitnesses()), more)
		if gotHead != head || n != inMemory {
			t.Fatalf("head %d, %d in memory; want %d, %d", gotHead, n, head, inMemory)
		}
		var want tail.Ranges
		for _, id := range slices.Sorted(maps.Keys(open)) {
			want.Add(tail.Range{From: id, To: id})
		}
		if got.String() != want.String() {
			t.Fatalf("open %s, want %s", got, want)
		}
	})
}

// TestGiveBack: what the lane returns is sorted by id, in whatever order it comes.
func TestGiveBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := New(nil, nil)
		ids := rapid.SliceOfDistinct(rapid.Int64Range(1, 100), func(id int64) int64 { return id }).Draw(t, "ids")
		for _, id := range ids {
			f.GiveBack(dispatch.Delivery{Event: &delivery.Event{ID: id}})
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
