package tail

import (
	"math"
	"slices"
)

// Watermark is a set of ids that a reader has passed: all ids up to Head except those in Open.
type Watermark struct {
	Head int64
	Open Ranges
}

// Has reports whether the id has been passed.
func (w *Watermark) Has(id int64) bool { return id <= w.Head && !w.Open.Contains(id) }

// Within reports whether a reader with that head and these gaps has passed all ids of w.
func (w *Watermark) Within(head int64, gaps Ranges) bool {
	if head < w.Head {
		return false
	}

	for _, g := range gaps {
		if g.From > w.Head {
			break
		}

		i := w.Open.Reaching(g.From)
		if i == len(w.Open) || w.Open[i].From > g.From || w.Open[i].To < min(g.To, w.Head) {
			return false
		}
	}

	return true
}

// Equal reports whether both are the same set.
func (w *Watermark) Equal(o *Watermark) bool { return w.Head == o.Head && slices.Equal(w.Open, o.Open) }

// Or returns the ids that one of two readers, or both, have passed.
func (w Watermark) Or(o Watermark) Watermark {
	head := max(w.Head, o.Head)
	mine, others := slices.Clone(w.Open), slices.Clone(o.Open)
	mine.Add(Range{From: w.Head + 1, To: head})
	others.Add(Range{From: o.Head + 1, To: head})
	return Watermark{head, mine.And(others)}
}

// And returns the ids that two readers have both passed.
func (w Watermark) And(o Watermark) Watermark {
	head := min(w.Head, o.Head)
	open := slices.Clone(w.Open)
	for _, r := range o.Open {
		open.Add(r)
	}

	open.Remove(Range{From: head + 1, To: math.MaxInt64})
	return Watermark{head, open}
}
