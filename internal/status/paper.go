package status

import (
	"slices"
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

// output collects lines.
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

// part orders the parts of the status by their importance on a small screen.
type part uint8

const (
	partActions part = iota
	partDestinations
	partOthers
)

// block is a part of the status: a title, and items under it.
type block struct {
	part   part
	title  string // "" for none
	header []toned
	items  []item
	noun   string // for "3 more problems"
}

// item has lines that stay together.
type item struct {
	tone  tone // of the most severe line
	lines []toned
}

func (b *block) add(t tone, text string) { b.items = append(b.items, item{t, []toned{{t, text}}}) }

// lines returns all lines of a block.
func (b *block) lines() (all []toned) {
	if b.title != "" {
		all = append(all, toned{heading, b.title})
	}
	all = append(all, b.header...)
	for _, i := range b.items {
		all = append(all, i.lines...)
	}
	return all
}

// block prints a block, below an empty line unless it is the first.
func (p *output) block(b block) {
	if len(p.lines) > 0 {
		p.line(plain, "")
	}
	p.lines = append(p.lines, b.lines()...)
}

// grid is a table. Its first left columns are flush left, the others flush right.
type grid struct {
	head   []string
	left   int
	narrow []string // the columns that a narrow screen goes without, the least important first
	rows   []gridRow
}

type gridRow struct {
	tone  tone
	cells []string
}

func (g *grid) row(t tone, cells ...string) { g.rows = append(g.rows, gridRow{t, cells}) }

// gap separates two columns.
const gap = "  "

// widths returns the width of each column.
func (g *grid) widths() []int {
	wide := make([]int, len(g.head))
	for i, cell := range g.head {
		wide[i] = utf8.RuneCountInString(cell)
	}
	for _, r := range g.rows {
		for i, cell := range r.cells {
			wide[i] = max(wide[i], utf8.RuneCountInString(cell))
		}
	}
	return wide
}

// fit removes columns until the table fits the width; 0 means no limit.
func (g *grid) fit(width int) {
	for _, name := range g.narrow {
		total := -len(gap)
		for _, w := range g.widths() {
			total += w + len(gap)
		}

		i := slices.Index(g.head, name)
		if width <= 0 || total <= width || i < 0 {
			return
		}

		g.head = slices.Delete(slices.Clone(g.head), i, i+1)
		for r := range g.rows {
			g.rows[r].cells = slices.Delete(g.rows[r].cells, i, i+1)
		}
	}
}

// block returns the table as a block whose items are the rows.
func (g grid) block(of part, noun string, width int) block {
	g.fit(width)
	wide := g.widths()
	text := func(cells []string) string {
		line := make([]string, len(cells))
		for i, cell := range cells {
			space := strings.Repeat(" ", wide[i]-utf8.RuneCountInString(cell))
			line[i] = space + cell
			if i < g.left {
				line[i] = cell + space
			}
		}
		return strings.Join(line, gap)
	}

	b := block{part: of, noun: noun}
	b.header = []toned{{heading, text(g.head)}}
	for _, r := range g.rows {
		b.add(r.tone, text(r.cells))
	}
	return b
}
