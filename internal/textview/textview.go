// Package textview formats the payloads of events for people: text unchanged, and other data as its size and first
// bytes.
package textview

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
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

// maxGrowth bounds how many times its size a JSON text may have with indents.
const maxGrowth = 8

// Indent returns a JSON text with its values on lines of their own. It returns a text unchanged if that would multiply its
// size: each line has two spaces for each level, so 20 KB of lists within lists would become 200 MB.
func Indent(text []byte) []byte {
	size, depth, inText := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{', c == '[':
			depth++
			size += 2 * depth
		case c == '}', c == ']':
			depth--
			size += 2 * depth
		case c == ',':
			size += 2 * depth
		}
	}
	if size > maxGrowth*len(text) {
		return text
	}

	var out bytes.Buffer
	if json.Indent(&out, text, "", "  ") != nil {
		return text
	}
	return out.Bytes()
}
