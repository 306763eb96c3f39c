// Package textview formats the payloads of events for people: text unchanged, and other data as its size and first
// bytes.
package textview

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

// shown bounds the bytes shown of data that is not text.
const shown = 256

// Text reports whether data can be shown unchanged: UTF-8 without control characters other than line ends and tabs.
func Text(data []byte) bool {
	return utf8.Valid(data) && !bytes.ContainsFunc(data, func(r rune) bool { return r < ' ' && r != '\n' && r != '\r' && r != '\t' })
}

// Payload returns data if it is text. Otherwise it returns the size and the first bytes as a hex dump, in several
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
