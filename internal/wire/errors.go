package wire

import "unicode/utf8"

// MaxErrorBytes is how much of an error's text is kept in last_error: enough for a server's answer
// with some context, little enough to list many.
const MaxErrorBytes = 1000

// ErrorText makes s valid for a text column: shortened, UTF-8, without zero bytes.
func ErrorText(s string) string {
	if len(s) > MaxErrorBytes {
		s = s[:MaxErrorBytes] + "..."
	}
	clean := make([]rune, 0, len(s))
	for _, r := range s {
		if r != 0 && r != utf8.RuneError {
			clean = append(clean, r)
		}
	}
	return string(clean)
}
