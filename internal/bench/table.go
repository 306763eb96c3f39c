package bench

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	firstColumn = 31
	otherColumn = 12
)

// grid writes the tables for people: a name, and aligned numbers.
type grid struct{ out io.Writer }

func newTable(out io.Writer, first string, columns ...string) grid {
	g := grid{out}
	g.row(first, columns...)
	return g
}

func (g grid) row(name string, cells ...string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s", firstColumn, name)
	for _, cell := range cells {
		fmt.Fprintf(&b, "%*s", otherColumn, cell)
	}
	_, _ = fmt.Fprintln(g.out, strings.TrimRight(b.String(), " ")) // as env.printf
}

// times writes percentiles in milliseconds.
func (g grid) times(name string, sorted []time.Duration) {
	var cells []string
	for _, p := range []float64{0.5, 0.9, 0.99, 1} {
		cells = append(cells, fmt.Sprintf("%.3f", milliseconds(percentile(sorted, p))))
	}
	g.row(name, cells...)
}

// note explains the limits of the figures.
func (g grid) note() {
	_, _ = fmt.Fprintln(g.out, "\n-: not measured, or there is no such thing. A queue promises no order, a stream does.")
}

// number writes n with a comma at each thousand.
func number(n float64) string {
	digits := fmt.Sprintf("%.0f", n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
