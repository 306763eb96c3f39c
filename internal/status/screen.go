package status

import (
	"cmp"
	"fmt"
	"slices"
)

// minBlock is the fewest lines in which a block says anything: a title, a problem with its cure, and how many more there are.
const minBlock = 4

// squeeze returns lines of the blocks that fit into a number of lines, and how many lines of whole blocks it leaves out.
// The problems get half of the room, or more if nothing else needs it. Then come the destinations, and then the other
// blocks in their order.
func squeeze(blocks []block, room int) (lines []toned, left int) {
	quota := make([]int, len(blocks))
	rest := room
	for _, i := range byImportance(blocks) {
		all := len(blocks[i].lines())
		quota[i] = min(all, rest)
		if blocks[i].part == partActions {
			quota[i] = min(all, max(minBlock, room/2), rest)
		}
		if quota[i] < min(all, minBlock) {
			quota[i] = 0
		}
		rest -= quota[i]
	}

	for i := range blocks {
		b := &blocks[i]
		all := b.lines()
		if b.part == partActions && quota[i] > 0 {
			quota[i] = min(len(all), quota[i]+rest)
		}

		switch {
		case quota[i] == 0:
			left += len(all)
		case quota[i] == len(all):
			lines = append(lines, all...)
		default:
			lines = append(lines, cutBlock(b, quota[i])...)
		}
	}
	return lines, left
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

// cutBlock returns the most severe items of a block, and how many more there are, in as many lines.
func cutBlock(b *block, most int) []toned {
	items := slices.Clone(b.items)
	slices.SortStableFunc(items, func(x, y item) int { return cmp.Compare(y.tone, x.tone) })

	short := *b
	for short.items = nil; len(short.lines())+len(items[len(short.items)].lines) < most; {
		short.items = items[:len(short.items)+1]
	}

	more := fmt.Sprintf("  %d more %s; use notifyd status", len(items)-len(short.items), b.noun)
	return append(short.lines(), toned{warn, more})
}
