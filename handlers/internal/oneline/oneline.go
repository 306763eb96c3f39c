// Package oneline makes texts from outside fit for one line.
package oneline

import (
	"strings"
	"unicode"
)

// MaxReply is how many bytes of a server's text get into an error.
const MaxReply = 300

// Of makes one line of a text: white space and control characters become single
// spaces, and text beyond limit bytes is cut, with dots in its place.
func Of(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if cut := Cut(text, limit); len(cut) < len(text) {
		return cut + "..."
	}
	return text
}

// Cut returns the first limit bytes of a text at most, without half a letter.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}
