package status

import (
	"strings"
	"unicode/utf8"
)

// tone is the colour of a line on a terminal.
type tone uint8

const (
	plain tone = iota
	heading
	warn
	bad
)

// escape returns the sequence that switches a terminal to the tone; "" for plain.
func (t tone) escape() string {
	switch t {
	case heading:
		return "\x1b[1m"
	case warn:
		return "\x1b[33m"
	case bad:
		return "\x1b[31m"
	default:
		return ""
	}
}

// paper collects lines.
type output struct{ lines []toned }

type toned struct {
	tone tone
	text string
}

func (p *output) line(t tone, text string) { p.lines = append(p.lines, toned{t, text}) }

// print returns the lines. Escape sequences are added last, so that none comes from the tables.
func (p *output) print(v View) string {
	var b strings.Builder
	for _, l := range p.lines {
		text := cut(strings.TrimRight(v.Clean(l.text), " "), v.Width)
		if code := l.tone.escape(); v.Color && code != "" && text != "" {
			text = code + text + "\x1b[0m"
		}
		b.WriteString(text)
		b.WriteByte('\n')
	}
	return b.String()
}

// cut shortens a line; width 0 means no limit.
func cut(line string, width int) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:max(0, width-1)]) + ">"
}

// grid is a table. Its first left columns are flush left, the others flush right.
type grid struct {
	head []string
	left int
	rows []gridRow
}

type gridRow struct {
	tone  tone
	cells []string
}

func (g *grid) row(t tone, cells ...string) { g.rows = append(g.rows, gridRow{t, cells}) }

// gap separates two columns.
const gap = "  "

// grid prints a table below an empty line, nothing if it has no rows.
func (p *output) grid(g grid) {
	if len(g.rows) == 0 {
		return
	}
	p.line(plain, "")
	all := append([]gridRow{{heading, g.head}}, g.rows...)
	wide := make([]int, len(g.head))
	for _, r := range all {
		for i, cell := range r.cells {
			wide[i] = max(wide[i], utf8.RuneCountInString(cell))
		}
	}
	for _, r := range all {
		cells := make([]string, len(r.cells))
		for i, cell := range r.cells {
			space := strings.Repeat(" ", wide[i]-utf8.RuneCountInString(cell))
			if cells[i] = space + cell; i < g.left {
				cells[i] = cell + space
			}
		}
		p.line(r.tone, strings.Join(cells, gap))
	}
}
