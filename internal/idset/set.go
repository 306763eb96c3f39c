package idset

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

// Set is a set of ids: sorted, disjoint ranges that do not touch. The zero value is the empty set. In the database
// it is an int8multirange.
type Set []Range

// Len returns the number of ranges.
func (s Set) Len() int { return len(s) }

// IDs returns the number of ids, at most [math.MaxInt64].
func (s Set) IDs() int64 {
	var n uint64
	for _, g := range s {
		n += uint64(g.To) - uint64(g.From) //nolint:gosec // the difference is never negative
		if n >= math.MaxInt64 {
			return math.MaxInt64
		}
		n++
	}

	return int64(n)
}

// And returns the ids that are in both sets.
func (s Set) And(o Set) (both Set) {
	for i, j := 0, 0; i < len(s) && j < len(o); {
		if low, high := max(s[i].From, o[j].From), min(s[i].To, o[j].To); low <= high {
			both = append(both, Range{low, high})
		}
		if s[i].To < o[j].To {
			i++
		} else {
			j++
		}
	}
	return both
}

// Without returns the set without some ids, which are in order.
func (s Set) Without(ids []int64) Set { return s.Minus(Set(nil).With(ids)) }

// With returns the set with more ids, which are in order.
func (s Set) With(ids []int64) Set {
	all := make(Set, 0, len(s)+len(ids)/8)
	add := func(g Range) {
		n := len(all)
		if n > 0 && g.From <= all[n-1].To+1 {
			all[n-1].To = max(all[n-1].To, g.To)
			return
		}
		all = append(all, g)
	}

	for _, g := range s {
		for len(ids) > 0 && ids[0] < g.From {
			add(Range{ids[0], ids[0]})
			ids = ids[1:]
		}
		add(g)
	}

	for _, id := range ids {
		add(Range{id, id})
	}

	return all
}

// Or returns the ids that are in at least one of the sets.
func (s Set) Or(o Set) Set { return s.others().And(o.others()).others() }

// Minus returns the ids that are not in the other set.
func (s Set) Minus(o Set) Set { return s.And(o.others()) }

// others returns all numbers that are not in the set.
func (s Set) others() Set {
	all := make(Set, 0, len(s)+1)
	from := int64(math.MinInt64)
	for _, g := range s {
		if g.From > from {
			all = append(all, Range{from, g.From - 1})
		}
		if g.To == math.MaxInt64 {
			return all
		}

		from = g.To + 1
	}

	return append(all, Range{from, math.MaxInt64})
}

// Contains reports whether id is in the set.
func (s Set) Contains(id int64) bool {
	i := s.Reaching(id)
	return i < len(s) && s[i].From <= id
}

// Reaching returns the index of the first range that ends at id or above it.
func (s Set) Reaching(id int64) int {
	i, _ := slices.BinarySearchFunc(s, id, func(g Range, id int64) int { return cmp.Compare(g.To, id) })
	return i
}

// Add adds the ids of g to the set. A range that ends before it begins is empty.
func (s *Set) Add(g Range) {
	if g.From > g.To {
		return
	}

	all := *s
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

	*s = slices.Replace(all, i, j, g)
}

// Remove removes the ids of g from the set.
func (s *Set) Remove(g Range) {
	if g.From > g.To {
		return
	}

	all := *s
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

	*s = slices.Replace(all, i, j, rest...)
}

// String returns the set as PostgreSQL writes an int8multirange: "{[1,4),[7,8)}".
func (s Set) String() string {
	b := make([]byte, 0, 2+len(s)*2*len("[1234567890"))
	b = append(b, '{')
	for i, g := range s {
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

// errSyntax is returned for a text that is not a set of ids.
var errSyntax = errors.New("not an int8multirange")

// Parse reads the format of [Set.String] and of PostgreSQL. A missing bound is the lowest or the highest
// number.
func Parse(text string) (Set, error) {
	body, opened := strings.CutPrefix(text, "{")
	body, closed := strings.CutSuffix(body, "}")
	if !opened || !closed {
		return nil, fmt.Errorf("%w: no braces", errSyntax)
	}

	var all Set
	for n := 0; body != ""; n++ {
		if n > 0 {
			rest, comma := strings.CutPrefix(body, ",")
			body = rest
			if !comma {
				return nil, fmt.Errorf("%w: no comma after %d ranges", errSyntax, n)
			}
		}

		end := strings.IndexAny(body, ")]")
		if end < 0 {
			return nil, fmt.Errorf("%w: range %d has no end", errSyntax, n+1)
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

// MarshalText implements encoding.TextMarshaler, for JSON.
func (s Set) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Set) UnmarshalText(text []byte) (err error) {
	*s, err = Parse(string(text))
	return err
}

// Scan reads the text of an int8multirange from a row: open::text.
func (s *Set) Scan(text any) (err error) {
	t, isText := text.(string)
	if !isText {
		return fmt.Errorf("%w: %T", errSyntax, text)
	}

	*s, err = Parse(t)
	return err
}

// parseRange reads one range, from bracket to bracket.
func parseRange(text string) (g Range, err error) {
	from, to, ok := strings.Cut(text[1:max(1, len(text)-1)], ",")
	if !ok || text[0] != '[' && text[0] != '(' {
		return g, fmt.Errorf("%w: %q", errSyntax, text)
	}

	g = Range{math.MinInt64, math.MaxInt64}
	if from != "" {
		g.From, err = strconv.ParseInt(from, 10, 64)
		if err != nil {
			return g, fmt.Errorf("%w: %q", errSyntax, text)
		}
		if text[0] == '(' {
			g.From++
		}
	}

	if to != "" {
		g.To, err = strconv.ParseInt(to, 10, 64)
		if err != nil {
			return g, fmt.Errorf("%w: %q", errSyntax, text)
		}
		if text[len(text)-1] == ')' {
			g.To--
		}
	}

	// An excluded bound that is the highest or the lowest number has overflowed.
	isAboveAll := from != "" && text[0] == '(' && g.From == math.MinInt64
	isBelowAll := to != "" && text[len(text)-1] == ')' && g.To == math.MaxInt64
	if g.From > g.To || isAboveAll || isBelowAll {
		return g, fmt.Errorf("%w: %q is empty", errSyntax, text)
	}

	return g, nil
}
