package status

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/notifyd/notifyd/internal/cli"
)

// minBlock is the fewest lines in which a block says anything: a title, a problem with its cure, and how many more there are.
const minBlock = 4

// Screen returns the status for a terminal of a height: at most as many lines. What has no room is counted. The last line
// has the time, and ends with the footer.
func (s *Status) Screen(v View, height int, footer string) string {
	p := &paper{}
	blocks := s.blocks(v)
	total := len(blocks) - 1 // empty lines
	for i := range blocks {
		total += len(blocks[i].lines())
	}
	room := max(1, height) - 1 // without the footer
	footer = cli.Moment(s.At) + "  " + footer
	if total <= room {
		for _, b := range blocks {
			p.block(b)
		}
	} else if left := p.squeeze(blocks, room); left > 0 {
		footer = fmt.Sprintf("%d more lines; use notifyd status  %s", left, footer)
	}
	p.line(plain, footer)
	return p.print(v)
}

// squeeze prints what fits into a number of lines, without empty lines, and returns how many lines of whole blocks it leaves out.
// The problems get half of the room, or more if nothing else needs it. Then come the destinations, and then the other blocks in their order.
func (p *paper) squeeze(blocks []block, room int) (left int) {
	quota, rest := make([]int, len(blocks)), room
	for _, i := range byImportance(blocks) {
		lines := len(blocks[i].lines())
		quota[i] = min(lines, rest)
		if blocks[i].part == partActions {
			quota[i] = min(lines, max(minBlock, room/2), rest)
		}
		if quota[i] < min(lines, minBlock) {
			quota[i] = 0
		}
		rest -= quota[i]
	}
	for i := range blocks {
		b := &blocks[i]
		lines := b.lines()
		if b.part == partActions && quota[i] > 0 {
			quota[i] = min(len(lines), quota[i]+rest)
		}
		switch {
		case quota[i] == 0:
			left += len(lines)
		case quota[i] == len(lines):
			p.lines = append(p.lines, lines...)
		default:
			p.lines = append(p.lines, b.cut(quota[i])...)
		}
	}
	return left
}

// byImportance returns the indexes of blocks, the most important first.
func byImportance(blocks []block) []int {
	order := make([]int, len(blocks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(blocks[a].part, blocks[b].part) })
	return order
}

// cut returns the most severe items of a block, and how many more there are, in as many lines.
func (b *block) cut(most int) []toned {
	items := slices.Clone(b.items)
	slices.SortStableFunc(items, func(x, y item) int { return cmp.Compare(y.tone, x.tone) })
	short := *b
	for short.items = nil; len(short.lines())+len(items[len(short.items)].lines) < most; {
		short.items = items[:len(short.items)+1]
	}
	return append(short.lines(), toned{warn, fmt.Sprintf("  %d more %s; use notifyd status", len(items)-len(short.items), b.noun)})
}
