// Package safecall calls foreign code (handlers, observers, the methods of their errors) and
// survives its panics.
package safecall

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// MaxText bounds a foreign text, in bytes.
const MaxText = 8 << 10

// Call calls f and returns its panic as an error. what names the code that may panic.
func Call(what string, f func()) (err error) {
	defer Recover(what, &err)
	f()
	return nil
}

// Recover turns a panic into an error with its stack; it must be deferred. what names the code that may panic.
func Recover(what string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%s panicked: %s\n%s", what, Text(p), debug.Stack())
	}
}

// Text returns the message of an error, or the printed form of another value. The text is valid UTF-8 without zero
// bytes, and about MaxText long at most.
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

// Clean returns the beginning of s as valid UTF-8 without zero bytes, about MaxText long at most.
func Clean(s string) string {
	if len(s) > MaxText {
		s = s[:MaxText] + "..."
	}
	return strings.Clone(strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", ""))
}
