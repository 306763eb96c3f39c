package delivery

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// ErrPattern is wrapped by errors about an invalid pattern.
var ErrPattern = errors.New("invalid pattern")

// CheckPattern returns an error that wraps [ErrPattern] unless pattern is an
// event type ("order.created"), a prefix ("order.*") or "*".
func CheckPattern(pattern string) error {
	body := strings.TrimSuffix(pattern, ".*")
	switch {
	case pattern == "*":
		return nil
	case body == "":
		return fmt.Errorf("%w %q: give an event type, a prefix such as order.*, or *", ErrPattern, pattern)
	case strings.ContainsRune(body, '*'), strings.ContainsFunc(body, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return fmt.Errorf("%w %q: a star may stand alone or end the pattern as .*, and there are no spaces or control characters", ErrPattern, pattern)
	}
	return nil
}

// BestPattern returns the index of the pattern that routes an event type, -1 if none matches: the
// type itself, else the longest prefix, else "*". It is for programs that inspect routes without a
// relay; the patterns must be valid.
func BestPattern(patterns []string, eventType string) int {
	best, length := -1, -1
	for i, p := range patterns {
		prefix, isPrefix := strings.CutSuffix(p, "*")
		switch {
		case p == eventType && !isPrefix:
			return i
		case isPrefix && len(prefix) > length && strings.HasPrefix(eventType, prefix):
			best, length = i, len(prefix)
		}
	}
	return best
}
