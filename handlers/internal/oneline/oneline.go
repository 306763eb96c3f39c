// Package oneline has what all destinations need to report what a server has said: errors
// of one line that hold no secret, and texts from outside made fit for them.
package oneline

import (
	"strings"
	"unicode"

	"github.com/notifyd/notifyd/internal/secret"
)

// MaxReply is how many bytes of a server's text get into an error.
const MaxReply = 300

// Error is an error with nothing in it that must not be seen.
type Error struct {
	Text  string // one line
	Cause error  // for errors.Is and As, nil if it could hold a secret
}

// Error returns the line.
func (e *Error) Error() string { return e.Text }

// Unwrap returns the cause: a server's code, the network's error, or what is wrong with
// the event.
func (e *Error) Unwrap() error { return e.Cause }

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

// Reply makes the text of a server, or of the HTTP client, fit for an error: one short
// line without the secrets.
func Reply(text string, secrets *secret.Redactor) string {
	text = secrets.Redact(text)
	if strings.Contains(text, "proxy address") {
		text = "HTTP_PROXY or HTTPS_PROXY is not a URL" // the text repeats it, with its password
	}
	return Of(text, MaxReply)
}
