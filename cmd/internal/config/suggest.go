package config

import (
	"fmt"
	"strings"
)

// suggest returns ` (did you mean "x"?)` for the candidate nearest to word, or
// the list of candidates if none is near, or "" if that list would be long.
func suggest(word string, candidates []string) string {
	const longList = 24
	best := ""
	bestAt := len(word)/3 + 2 // a third of the letters may be wrong
	for _, c := range candidates {
		if n := distance(strings.ToLower(word), c); n < bestAt {
			best = c
			bestAt = n
		}
	}

	switch {
	case best != "":
		return fmt.Sprintf(" (did you mean %q?)", best)
	case len(candidates) == 0 || len(candidates) > longList:
		return ""
	default:
		return " (known: " + strings.Join(candidates, ", ") + ")"
	}
}

// distance is the number of letters to insert, remove, replace or swap with their
// neighbour to turn a into b.
func distance(a, b string) int {
	const tooLong = 64 // no key is that long, and the work is the product of the lengths
	if len(a) > tooLong || len(b) > tooLong {
		return max(len(a), len(b))
	}

	var before, previous []int
	current := make([]int, len(b)+1)
	for j := range current {
		current[j] = j
	}

	for i := 1; i <= len(a); i++ {
		before = previous
		previous = current
		current = make([]int, len(b)+1)
		current[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}

			current[j] = min(previous[j]+1, current[j-1]+1, previous[j-1]+cost)

			hasTwo := i > 1 && j > 1
			if hasTwo && a[i-1] == b[j-2] && a[i-2] == b[j-1] { // swapped neighbours
				current[j] = min(current[j], before[j-2]+1)
			}
		}
	}

	return current[len(b)]
}
