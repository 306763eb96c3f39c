package console

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

const (
	chartWidth  = 300.0
	chartHeight = 60.0
)

// chart is a small picture of one or two series over the last five minutes.
type chart struct {
	Title string
	Now   string // the newest value, for people
	Note  string // a second line
	Class string // the color, a class of the stylesheet
	Alt   string // the picture in words
	// Line, Second and Area are paths of SVG; "" for none.
	Line, Second, Area string
}

// newChart draws values, oldest first, and second behind them if it is not nil.
// NaN makes a gap.
func newChart(title, class string, values, second []float64, show func(float64) string) chart {
	top := 0.0
	for _, list := range [][]float64{values, second} {
		for _, v := range list {
			if !math.IsNaN(v) {
				top = max(top, v)
			}
		}
	}
	newest := math.NaN()
	if len(values) > 0 {
		newest = values[len(values)-1]
	}
	c := chart{Title: title, Class: class, Now: show(newest), Note: "highest in 5 minutes " + show(top)}
	c.Alt = fmt.Sprintf("%s: now %s, %s", title, c.Now, c.Note)
	scale := top * 1.05
	if scale == 0 {
		scale = 1
	}
	c.Line, c.Area = paths(values, scale)
	c.Second, _ = paths(second, scale)
	return c
}

// paths returns the line, and the area below it. The newest value is at the right.
func paths(values []float64, scale float64) (line, area string) {
	var l, a strings.Builder
	step := chartWidth / float64(samples-1)
	at := func(i int) float64 { return chartWidth - float64(len(values)-1-i)*step }
	begun := -1
	end := func(i int) {
		if begun >= 0 {
			fmt.Fprintf(&a, "L%s %sL%s %sZ", coordinate(at(i-1)), coordinate(chartHeight), coordinate(at(begun)), coordinate(chartHeight))
		}
		begun = -1
	}
	for i, v := range values {
		if math.IsNaN(v) {
			end(i)
			continue
		}
		verb := "L"
		if begun < 0 {
			verb, begun = "M", i
		}
		p := verb + coordinate(at(i)) + " " + coordinate(chartHeight-1-v/scale*(chartHeight-2))
		l.WriteString(p)
		a.WriteString(p)
	}
	end(len(values))
	return l.String(), a.String()
}

func coordinate(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }

// column returns one figure of every point.
func column[T any](list []T, of func(T) float64) []float64 {
	values := make([]float64, len(list))
	for i, p := range list {
		values[i] = of(p)
	}
	return values
}

// unknown stands for an unknown value.
const unknown = "–"

// showRate writes events per second.
func showRate(f float64) string {
	switch {
	case math.IsNaN(f):
		return unknown
	case f == 0 || f >= 100:
		return showCount(math.Round(f)) + "/s"
	default:
		return strconv.FormatFloat(f, 'f', 1, 64) + "/s"
	}
}

// showCount writes a number with spaces between thousands.
func showCount(f float64) string {
	if math.IsNaN(f) {
		return unknown
	}
	digits := strconv.FormatFloat(f, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "\u202f" + digits[i:]
	}
	return digits
}

// showSeconds writes a time.
func showSeconds(f float64) string {
	switch {
	case math.IsNaN(f):
		return unknown
	case f == 0:
		return "0"
	case f < 0.001:
		return strconv.FormatFloat(f*1e6, 'f', 0, 64) + " µs"
	case f < 1:
		return strconv.FormatFloat(f*1e3, 'g', 3, 64) + " ms"
	case f < 60:
		return strconv.FormatFloat(f, 'f', 1, 64) + " s"
	case f < 3600:
		return fmt.Sprintf("%d min %d s", int(f)/60, int(f)%60)
	case f < 48*3600:
		return fmt.Sprintf("%d h %d min", int(f)/3600, int(f)%3600/60)
	default:
		return fmt.Sprintf("%d days", int(f)/86400)
	}
}
