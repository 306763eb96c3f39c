// Package legible shows the payloads of events to people: text as it is, and of anything else the size and
// how it begins.
package legible

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

// shown is how many bytes are shown of what is not text.
const shown = 256

// Text reports whether data is text that can be shown as it is: UTF-8 without control characters other
// than the ends of lines and tabs.
func Text(data []byte) bool {
	return utf8.Valid(data) && !bytes.ContainsFunc(data, func(r rune) bool { return r < ' ' && r != '\n' && r != '\r' && r != '\t' })
}

// Payload returns data if it is text, and else its size and its first bytes as a hex dump does, in several
// lines.
func Payload(data []byte) string {
	if Text(data) {
		return string(data)
	}
	what := fmt.Sprintf("%d bytes", len(data))
	if len(data) > shown {
		what += fmt.Sprintf(", the first %d", shown)
	}
	return what + "\n" + strings.TrimSuffix(hex.Dump(data[:min(len(data), shown)]), "\n")
}
