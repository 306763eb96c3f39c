package store

import "unicode/utf8"

// maxErrorBytes is how much of an error's text is kept in last_error: enough
// for a server's answer with some context, little enough to list many.
const maxErrorBytes = 1000

// errorText makes s fit for a text column: shortened, UTF-8, no zero bytes.
func errorText(s string) string {
	if len(s) > maxErrorBytes {
		s = s[:maxErrorBytes] + "..."
	}
	clean := make([]rune, 0, len(s))
	for _, r := range s {
		if r != 0 && r != utf8.RuneError {
			clean = append(clean, r)
		}
	}
	return string(clean)
}
