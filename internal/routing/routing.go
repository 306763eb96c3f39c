// Package routing decides which pattern of a route matches an event type.
package routing

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/notifyd/notifyd/delivery"
)

// Check returns an error that wraps [delivery.ErrPattern] unless pattern is an
// event type ("order.created"), a prefix ("order.*") or "*".
func Check(pattern string) error {
	body := strings.TrimSuffix(pattern, ".*")
	isRefused := func(r rune) bool { return r == '*' || unicode.IsSpace(r) || unicode.IsControl(r) }

	switch {
	case pattern == "*":
		return nil
	case body == "":
		return fmt.Errorf("%w %q: give an event type, a prefix such as order.*, or *", delivery.ErrPattern, pattern)
	case strings.ContainsFunc(body, isRefused):
		return fmt.Errorf("%w %q: a star may stand alone or end the pattern as .*, and there are no spaces or control "+
			"characters", delivery.ErrPattern, pattern)
	}

	return nil
}

// Best returns the index of the pattern that routes an event type, -1 if none matches: the
// type itself, else the longest prefix, else "*". The patterns must be valid.
func Best(patterns []string, eventType string) int {
	best := -1
	length := -1
	for i, p := range patterns {
		prefix, isPrefix := strings.CutSuffix(p, "*")
		switch {
		case p == eventType && !isPrefix:
			return i
		case isPrefix && len(prefix) > length && strings.HasPrefix(eventType, prefix):
			best = i
			length = len(prefix)
		}
	}
	return best
}
