// Package guard calls foreign code (handlers, observers, the methods of their errors) and
// survives its panics.
package guard

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// MaxText is how many bytes of a foreign text are kept.
const MaxText = 8 << 10

// Call calls f, and returns a panic of f as an error. what names the code that has panicked.
func Call(what string, f func()) (err error) {
	defer Recover(what, &err)
	f()
	return nil
}

// Recover must be deferred: it turns a panic into an error with its stack. what names the code that
// has panicked.
func Recover(what string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%s panicked: %s\n%s", what, Text(p), debug.Stack())
	}
}

// Text returns the text of v: the message of an error, the printed form of other values. It is
// valid UTF-8 without zero bytes, and no longer than about MaxText.
func Text(v any) (s string) {
	defer func() {
		if recover() != nil {
			s = fmt.Sprintf("(a %T whose text is unavailable, because its method panics; is it a nil pointer?)", v)
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
