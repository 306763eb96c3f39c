package idset

import (
	"math"
	"slices"
)

// Watermark is the set of ids that a reader has passed: all ids up to Head except the ids in Open. The zero value has all
// ids up to 0.
type Watermark struct {
	Head int64 `json:"head"`
	Open Set   `json:"open"`
}

// Has reports whether the id has been passed. [SQLHas] is the same in SQL.
func (w *Watermark) Has(id int64) bool { return id <= w.Head && !w.Open.Contains(id) }

// Missing returns the ids up to top, or up to the head if that is higher, that have not been passed. [SQLMissing] is the
// same in SQL.
func (w *Watermark) Missing(top int64) Set {
	missing := slices.Clone(w.Open)
	if top > w.Head {
		missing.Add(Range{From: w.Head + 1, To: top})
	}
	return missing
}

// Lowest returns the highest id up to which all ids have been passed. [SQLLowest] is the same in SQL.
func (w *Watermark) Lowest() int64 {
	if len(w.Open) > 0 {
		first := max(w.Open[0].From, math.MinInt64+1)
		return min(w.Head, first-1)
	}
	return w.Head
}

// Within reports whether another reader has passed all ids of w.
func (w *Watermark) Within(o Watermark) bool {
	if o.Head < w.Head {
		return false
	}

	for _, g := range o.Open {
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

// Equal reports whether both have the same head and the same open ids.
func (w *Watermark) Equal(o *Watermark) bool { return w.Head == o.Head && slices.Equal(w.Open, o.Open) }

// Or returns the ids that one of two readers, or both, have passed.
func (w Watermark) Or(o Watermark) Watermark {
	head := max(w.Head, o.Head)
	return Watermark{head, w.Missing(head).And(o.Missing(head))}
}

// And returns the ids that two readers have both passed.
func (w Watermark) And(o Watermark) Watermark {
	return Watermark{max(w.Head, o.Head), w.Open.Or(o.Open)}.Back(min(w.Head, o.Head))
}

// Back returns the ids up to an id that have been passed.
func (w Watermark) Back(head int64) Watermark {
	open := slices.Clone(w.Open)
	if head < math.MaxInt64 {
		open.Remove(Range{From: head + 1, To: math.MaxInt64})
	}
	return Watermark{min(w.Head, head), open}
}
