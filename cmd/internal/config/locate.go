package config

import (
	"errors"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/handlers"
)

// message returns the text of a mistake without its path.
func message(err error) string {
	if fe, ok := err.(*handlers.FieldError); ok { //nolint:errorlint // only where nothing is wrapped around it
		return fe.Err.Error()
	}

	if fe, ok := errors.AsType[*handlers.FieldError](err); ok && strings.HasPrefix(err.Error(), fe.Path+": ") {
		return strings.TrimPrefix(err.Error(), fe.Path+": ")
	}
	return err.Error()
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// locate returns the position of the setting at path inside n: of its value if
// that is a scalar, else of the key of the innermost part that exists.
func locate(n *node, path string) pos {
	n = find(n, path)
	if n.kind == kindScalar {
		return n.at
	}
	return n.key
}

// has reports whether n has a setting at path.
func has(n *node, path string) bool {
	for path != "" && n != nil {
		n, path = step(n, path)
	}
	return n != nil
}

// find returns the node at path, or the innermost one on the way that exists.
func find(n *node, path string) *node {
	for path != "" {
		next, rest := step(n, path)
		if next == nil {
			return n
		}
		n = next
		path = rest
	}
	return n
}

// step removes the first part of a path. Keys of a map may contain dots, so the
// longest key that fits wins.
func step(n *node, path string) (next *node, rest string) {
	if n.kind == kindList {
		index, rest, _ := strings.Cut(path, ".")
		i, err := strconv.Atoi(index)
		if err != nil || i < 0 || i >= len(n.items) {
			return nil, ""
		}
		return n.items[i], rest
	}

	longest := -1
	for _, e := range n.entries {
		after, ok := strings.CutPrefix(path, e.name)
		endsThere := after == "" || after[0] == '.'
		if !ok || !endsThere || len(e.name) <= longest {
			continue
		}

		longest = len(e.name)
		next = e.value
		rest = strings.TrimPrefix(after, ".")
	}
	return next, rest
}
