package wire

import (
	"fmt"
	"unicode/utf8"
)

// MaxErrorBytes is how much of an error's text is kept in last_error: enough for a server's answer
// with some context, little enough to list many.
const MaxErrorBytes = 1000

// ErrorText makes s valid for a text column: shortened, UTF-8, without zero bytes. encoding is that of the
// database. One that is not for all characters gets ASCII alone, with \u00e9 for é: a character that it lacks
// would make PostgreSQL refuse the whole write.
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
