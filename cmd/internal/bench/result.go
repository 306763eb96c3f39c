package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Result is the result of every bench: a column of figures for each scenario, and the faults of all runs.
type Result struct {
	Columns []*Column `json:"columns"`
	// Faults is nil if a bench delivers nothing that can be counted.
	Faults *Faults `json:"faults,omitempty"`

	// Upright makes the table have a row for each scenario, for benches with more scenarios than figures.
	Upright bool `json:"-"`

	intro []string // lines above the table
	notes []string // lines below the table
	rows  []figure // in the order in which they were first set
}

// Column has the figures of one scenario, by their names in the table.
type Column struct {
	Name    string             `json:"name"`
	Figures map[string]float64 `json:"figures"`

	result *Result
}

// Faults are deliveries that differ from what notifyd promises, in all runs of a bench.
type Faults struct {
	Lost       int64 `json:"lost"`
	Duplicates int64 `json:"duplicates"`
	// OutOfOrder counts the events that were delivered after a later one of their aggregate. It is counted only where
	// order is promised.
	OutOfOrder int64 `json:"out_of_order"`
}

// figure is a row of the table.
type figure struct {
	name     string
	decimals int
}

// OK reports whether no event was lost or out of order. Duplicates are allowed, but unexpected in a run without faults.
func (r *Result) OK() bool { return r.Faults == nil || r.Faults.Lost == 0 && r.Faults.OutOfOrder == 0 }

// Count adds faults to those of the bench.
func (r *Result) Count(more Faults) {
	if r.Faults == nil {
		r.Faults = &Faults{}
	}
	r.Faults.add(more)
}

func (f *Faults) add(more Faults) {
	f.Lost += more.Lost
	f.Duplicates += more.Duplicates
	f.OutOfOrder += more.OutOfOrder
}

// String is for people.
func (f Faults) String() string {
	return fmt.Sprintf("lost=%d duplicates=%d out_of_order=%d", f.Lost, f.Duplicates, f.OutOfOrder)
}

// Say adds a line above the table.
func (r *Result) Say(format string, args ...any) {
	r.intro = append(r.intro, fmt.Sprintf(format, args...))
}

// Note adds a line below the table.
func (r *Result) Note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// Column returns the column of a scenario, which it adds if it is missing.
func (r *Result) Column(name string) *Column {
	for _, c := range r.Columns {
		if c.Name == name {
			return c
		}
	}
	c := &Column{Name: name, Figures: make(map[string]float64), result: r}
	r.Columns = append(r.Columns, c)
	return c
}

// Set sets a figure, rounded to a number of decimals.
func (c *Column) Set(name string, value float64, decimals int) {
	r := c.result
	known := false
	for _, row := range r.rows {
		known = known || row.name == name
	}
	if !known {
		r.rows = append(r.rows, figure{name, decimals})
	}
	c.Figures[name] = round(value, decimals)
}

// relate sets a figure to the quotient of another figure and that of a base column, if both columns have it.
func (c *Column) relate(name, of string, base *Column) {
	mine, isMeasured := c.Figures[of]
	theirs, hasBase := base.Figures[of]
	if isMeasured && hasBase {
		c.Set(name, Ratio(mine, theirs), 3)
	}
}

// percentiles sets percentiles in milliseconds.
func (c *Column) percentiles(name string, sorted []time.Duration, percentiles ...float64) {
	var values []time.Duration
	for _, p := range percentiles {
		values = append(values, Percentile(sorted, p))
	}
	c.times(name, values, percentiles...)
}

// times sets the values of percentiles in milliseconds.
func (c *Column) times(name string, values []time.Duration, percentiles ...float64) {
	for i, p := range percentiles {
		label := fmt.Sprintf("%s, p%v, ms", name, 100*p)
		if p == 1 {
			label = name + ", max, ms"
		}
		c.Set(label, milliseconds(values[i]), 3)
	}
}

// faults sets a figure for each kind of fault.
func (c *Column) faults(prefix string, f Faults) {
	c.Set(prefix+"lost", float64(f.Lost), 0)
	c.Set(prefix+"duplicates", float64(f.Duplicates), 0)
	c.Set(prefix+"out of order", float64(f.OutOfOrder), 0)
}

// cell returns a figure for the table, and a dash if it was not measured.
func (c *Column) cell(f figure) string {
	value, ok := c.Figures[f.name]
	switch {
	case !ok:
		return "-"
	case f.decimals == 0:
		return number(value)
	default:
		return fmt.Sprintf("%.*f", f.decimals, value)
	}
}

// print writes the table for people, and what belongs to it.
func (r *Result) print(out io.Writer) {
	lines := slices.Concat(r.intro, []string{""}, aligned(r.cells()), []string{""}, r.notes)
	if r.Faults != nil {
		lines = append(lines, r.Faults.String())
	}
	_, _ = fmt.Fprintln(out, strings.Join(lines, "\n")) // as Env.Printf
}

// cells returns the table, with the names in the first row and the first column.
func (r *Result) cells() [][]string {
	table := [][]string{{""}}
	for _, c := range r.Columns {
		table[0] = append(table[0], c.Name)
	}
	for _, f := range r.rows {
		row := []string{f.name}
		for _, c := range r.Columns {
			row = append(row, c.cell(f))
		}
		table = append(table, row)
	}
	if !r.Upright {
		return table
	}

	turned := make([][]string, len(table[0]))
	for _, row := range table {
		for i, cell := range row {
			turned[i] = append(turned[i], cell)
		}
	}
	return turned
}

// aligned returns the lines of a table: the first column to the left, and numbers to the right.
func aligned(table [][]string) (lines []string) {
	const gap = 3
	widths := make([]int, len(table[0]))
	for _, row := range table {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, row := range table {
		var line strings.Builder
		fmt.Fprintf(&line, "%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			fmt.Fprintf(&line, "%*s", widths[i+1]+gap, cell)
		}
		lines = append(lines, line.String())
	}
	return lines
}

// number writes n with a comma at each thousand.
func number(n float64) string {
	digits := fmt.Sprintf("%.0f", n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
