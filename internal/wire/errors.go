package wire

import (
	"fmt"
	"unicode/utf8"
)

// MaxErrorBytes is how much of an error's text last_error keeps, in bytes: enough for a server's answer with some
// context, little enough to list many errors.
const MaxErrorBytes = 1000

// ErrorText makes s valid for a text column: shortened, UTF-8, without zero bytes. encoding is the encoding of the
// database. Unless the encoding has all characters, the result is ASCII, with \u00e9 in place of é. PostgreSQL would
// refuse the whole write for one character that the encoding lacks.
func ErrorText(s, encoding string) string {
	if len(s) > MaxErrorBytes {
		s = s[:MaxErrorBytes] + "..."
	}

	clean := make([]rune, 0, len(s))
	for _, r := range s {
		if r != 0 && r != utf8.RuneError {
			clean = append(clean, r)
		}
	}

	if encoding == "UTF8" || encoding == "SQL_ASCII" || encoding == "" {
		return string(clean)
	}

	var ascii []byte
	for _, r := range clean {
		switch {
		case r < utf8.RuneSelf:
			ascii = append(ascii, byte(r)) //nolint:gosec // r is ASCII
		case r > 0xFFFF:
			ascii = fmt.Appendf(ascii, `\U%08x`, r)
		default:
			ascii = fmt.Appendf(ascii, `\u%04x`, r)
		}
	}

	return string(ascii)
}
