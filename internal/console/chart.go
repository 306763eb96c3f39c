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

// unit is the unit of a chart's values, under its name in the script.
type unit string

const (
	perSecond  unit = "rate"
	duration   unit = "seconds"
	eventCount unit = "count"
)

func (u unit) show(f float64) string {
	switch u {
	case perSecond:
		return showRate(f)
	case duration:
		return showSeconds(f)
	default:
		return showCount(f)
	}
}

// label is show for an axis, whose numbers are round.
func (u unit) label(f float64) string {
	before, after, found := strings.Cut(u.show(f), ".0")
	if !found {
		return before
	}
	return before + after
}

// middle is the label of the middle of an axis: empty where half of the scale is half an event.
func (u unit) middle(scale float64) string {
	if half := scale / 2; u != eventCount || half == math.Trunc(half) {
		return u.label(half)
	}
	return ""
}

// series is a line of a chart: values, oldest first. NaN makes a gap.
type series struct {
	name   string // "" where there is only one
	values []float64
}

// newest is the last value; NaN without values.
func (s *series) newest() float64 {
	if len(s.values) == 0 {
		return math.NaN()
	}
	return s.values[len(s.values)-1]
}

// chart is a small picture of one or two series over the last five minutes.
type chart struct {
	Title string
	Now   []string // the newest values, for people
	Top   string   // the label of the upper end of the axis
	Mid   string   // that of its middle, or empty
	Class string   // the color, a class of the stylesheet
	Alt   string   // the picture in words
	// Line, Second and Area are paths of SVG; "" for none.
	Line, Second, Area string
	// Names are the names of the series, if there are two.
	Names []string
	// Unit and Data are for the script that shows the values under the pointer: series of
	// numbers, with nothing for an unknown one.
	Unit unit
	Data string
}

// newChart draws one or two series; the second one is dashed.
func newChart(title, class string, u unit, all ...series) chart {
	top := 0.0
	for i := range all {
		for _, v := range all[i].values {
			if !math.IsNaN(v) {
				top = max(top, v)
			}
		}
	}

	scale := roundUp(top)
	c := chart{Title: title, Class: class, Top: u.label(scale), Mid: u.middle(scale), Unit: u}

	var data []string
	for i := range all {
		s := &all[i]
		text := u.show(s.newest())
		if s.name != "" {
			text = s.name + " " + text
			c.Names = append(c.Names, s.name)
		}
		c.Now = append(c.Now, text)
		data = append(data, numbers(s.values))
	}

	c.Data = strings.Join(data, ";")
	c.Alt = fmt.Sprintf("%s: now %s, highest in 5 minutes %s", title, strings.Join(c.Now, ", "), u.show(top))
	c.Line, c.Area = paths(all[0].values, scale)
	if len(all) > 1 {
		c.Second, _ = paths(all[1].values, scale)
	}

	return c
}

// roundUp returns a round number that is not below f, for the end of an axis: 1, 2 or 5 times a
// power of ten; 1 for nothing.
func roundUp(f float64) float64 {
	if f <= 0 {
		return 1
	}

	power := math.Pow(10, math.Floor(math.Log10(f)))
	for _, n := range []float64{1, 2, 5} {
		if f <= n*power {
			return n * power
		}
	}

	return 10 * power
}

// numbers are values in few bytes: a chart is sent every second.
func numbers(values []float64) string {
	var b strings.Builder
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		if !math.IsNaN(v) {
			b.WriteString(strconv.FormatFloat(v, 'g', 3, 64))
		}
	}
	return b.String()
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
			verb = "M"
			begun = i
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
