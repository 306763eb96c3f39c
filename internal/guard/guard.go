// Package guard calls what others have written, whatever it does: handlers, observers, and
// the methods of their errors.
package guard

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// MaxText is how many bytes are kept of a text of somebody else.
const MaxText = 8 << 10

// Call calls f, and returns what it panics with as an error. what says in that who has panicked.
func Call(what string, f func()) (err error) {
	defer Recover(what, &err)
	f()
	return nil
}

// Recover is to be deferred: it makes an error of a panic, with its stack. what says who has panicked.
func Recover(what string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%s panicked: %s\n%s", what, Text(p), debug.Stack())
	}
}

// Text returns what v says of itself: an error its text, others what they print as. It is
// valid UTF-8 without zero bytes, and no longer than about MaxText.
func Text(v any) (s string) {
	defer func() {
		if recover() != nil {
			s = fmt.Sprintf("(a %T whose text cannot be had, because its method panics; is it a nil pointer?)", v)
		}
	}()
	if err, ok := v.(error); ok {
		return Clean(err.Error())
	}
	return Clean(fmt.Sprint(v))
}

// Clean returns the beginning of s as valid UTF-8 without zero bytes.
func Clean(s string) string {
	if len(s) > MaxText {
		s = s[:MaxText] + "..."
	}
	return strings.Clone(strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", ""))
}
