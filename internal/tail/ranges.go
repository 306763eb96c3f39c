package tail

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Range is the range of ids from From to To, both included.
type Range struct{ From, To int64 }

// Ranges is a set of ids: sorted, disjoint ranges that do not touch. The zero value is the empty set. In the database
// it is an int8multirange.
type Ranges []Range

// Len returns the number of ranges.
func (r Ranges) Len() int { return len(r) }

// IDs returns the number of ids, at most [math.MaxInt64].
func (r Ranges) IDs() int64 {
	var n uint64
	for _, g := range r {
		n += uint64(g.To) - uint64(g.From) //nolint:gosec // the difference is never negative
		if n >= math.MaxInt64 {
			return math.MaxInt64
		}
		n++
	}

	return int64(n)
}

// And returns the ids that are in both sets.
func (r Ranges) And(o Ranges) (both Ranges) {
	for i, j := 0, 0; i < len(r) && j < len(o); {
		if low, high := max(r[i].From, o[j].From), min(r[i].To, o[j].To); low <= high {
			both = append(both, Range{low, high})
		}
		if r[i].To < o[j].To {
			i++
		} else {
			j++
		}
	}
	return both
}

// Without returns the set without some ids, which are in order.
func (r Ranges) Without(ids []int64) Ranges {
	left := make(Ranges, 0, len(r))
	for _, g := range r {
		for ; len(ids) > 0 && ids[0] <= g.To; ids = ids[1:] {
			if ids[0] < g.From {
				continue
			}
			if ids[0] > g.From {
				left = append(left, Range{g.From, ids[0] - 1})
			}

			g.From = ids[0] + 1
		}
		if g.From <= g.To {
			left = append(left, g)
		}
	}

	return left
}

// Contains reports whether id is in the set.
func (r Ranges) Contains(id int64) bool {
	i := r.Reaching(id)
	return i < len(r) && r[i].From <= id
}

// Reaching returns the index of the first range that ends at id or above it.
func (r Ranges) Reaching(id int64) int {
	i, _ := slices.BinarySearchFunc(r, id, func(g Range, id int64) int { return cmp.Compare(g.To, id) })
	return i
}

// Add adds the ids of g to the set. A range that ends before it begins is empty.
func (r *Ranges) Add(g Range) {
	if g.From > g.To {
		return
	}

	all := *r
	low, high := g.From, g.To // including neighbours that touch
	if low > math.MinInt64 {
		low--
	}
	if high < math.MaxInt64 {
		high++
	}

	i := all.Reaching(low)
	j := i
	for j < len(all) && all[j].From <= high {
		g = Range{min(g.From, all[j].From), max(g.To, all[j].To)}
		j++
	}

	*r = slices.Replace(all, i, j, g)
}

// Remove removes the ids of g from the set.
func (r *Ranges) Remove(g Range) {
	if g.From > g.To {
		return
	}

	all := *r
	var left [2]Range
	rest := left[:0]

	i := all.Reaching(g.From)
	j := i
	for ; j < len(all) && all[j].From <= g.To; j++ {
		if all[j].From < g.From {
			rest = append(rest, Range{all[j].From, g.From - 1})
		}
		if all[j].To > g.To {
			rest = append(rest, Range{g.To + 1, all[j].To})
		}
	}

	*r = slices.Replace(all, i, j, rest...)
}

// String returns the set as PostgreSQL writes an int8multirange: "{[1,4),[7,8)}".
func (r Ranges) String() string {
	b := make([]byte, 0, 2+len(r)*2*len("[1234567890"))
	b = append(b, '{')
	for i, g := range r {
		if i > 0 {
			b = append(b, ',')
		}

		b = strconv.AppendInt(append(b, '['), g.From, 10)
		b = append(b, ',')
		if g.To < math.MaxInt64 { // the highest number has no bound
			b = strconv.AppendInt(b, g.To+1, 10)
		}

		b = append(b, ')')
	}

	return string(append(b, '}'))
}

// errRanges is returned for a text that is not a set of ids.
var errRanges = errors.New("not an int8multirange")

// ParseRanges reads the format of [Ranges.String] and of PostgreSQL. A missing bound is the lowest or the highest
// number.
func ParseRanges(text string) (Ranges, error) {
	body, opened := strings.CutPrefix(text, "{")
	body, closed := strings.CutSuffix(body, "}")
	if !opened || !closed {
		return nil, fmt.Errorf("%w: no braces", errRanges)
	}

	var all Ranges
	for n := 0; body != ""; n++ {
		if n > 0 {
			rest, comma := strings.CutPrefix(body, ",")
			body = rest
			if !comma {
				return nil, fmt.Errorf("%w: no comma after %d ranges", errRanges, n)
			}
		}

		end := strings.IndexAny(body, ")]")
		if end < 0 {
			return nil, fmt.Errorf("%w: range %d has no end", errRanges, n+1)
		}

		g, err := parseRange(body[:end+1])
		if err != nil {
			return nil, err
		}

		all.Add(g)
		body = body[end+1:]
	}

	return all, nil
}

// parseRange reads one range, from bracket to bracket.
func parseRange(text string) (g Range, err error) {
	from, to, ok := strings.Cut(text[1:max(1, len(text)-1)], ",")
	if !ok || text[0] != '[' && text[0] != '(' {
		return g, fmt.Errorf("%w: %q", errRanges, text)
	}

	g = Range{math.MinInt64, math.MaxInt64}
	if from != "" {
		g.From, err = strconv.ParseInt(from, 10, 64)
		if err != nil {
			return g, fmt.Errorf("%w: %q", errRanges, text)
		}
		if text[0] == '(' {
			g.From++
		}
	}

	if to != "" {
		g.To, err = strconv.ParseInt(to, 10, 64)
		if err != nil {
			return g, fmt.Errorf("%w: %q", errRanges, text)
		}
		if text[len(text)-1] == ')' {
			g.To--
		}
	}

	// An excluded bound that is the highest or the lowest number has overflowed.
	isAboveAll := from != "" && text[0] == '(' && g.From == math.MinInt64
	isBelowAll := to != "" && text[len(text)-1] == ')' && g.To == math.MaxInt64
	if g.From > g.To || isAboveAll || isBelowAll {
		return g, fmt.Errorf("%w: %q is empty", errRanges, text)
	}

	return g, nil
}
