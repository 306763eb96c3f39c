// Package textview formats text of strangers for people: payloads of events as text, and other data as its size and first
// bytes; and nothing that controls a terminal.
package textview

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// shown bounds the bytes shown of data that is not text.
const shown = 256

// Text reports whether data can be shown unchanged: UTF-8 without control characters other than line ends and tabs.
func Text(data []byte) bool {
	isForeign := func(r rune) bool { return r < ' ' && !isSpace(r) }
	return utf8.Valid(data) && !bytes.ContainsFunc(data, isForeign)
}

// isSpace reports whether r is a control character that plain text may contain.
func isSpace(r rune) bool { return r == '\n' || r == '\r' || r == '\t' }

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

// Controls reports whether a character controls a terminal, or changes the order in which text is shown: C0, DEL, C1, line
// separators and the characters of bidirectional text.
func Controls(r rune) bool {
	isBreak := r == '\u2028' || r == '\u2029'
	return isBreak || unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}

// JSON returns JSON text with the characters of [Controls] in the form \u009b, and with U+FFFD for a byte that is not UTF-8. The
// JSON means the same: such characters stand only within its texts. White space between values stays.
func JSON(text []byte) []byte {
	isForeign := func(r rune) bool { return r >= 0x7f && Controls(r) }
	if !bytes.ContainsFunc(text, func(r rune) bool { return isForeign(r) || r == utf8.RuneError }) {
		return text
	}

	var out bytes.Buffer
	for _, r := range string(text) { // a byte that is not UTF-8 is one U+FFFD
		if isForeign(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	return out.Bytes()
}

// JSONWriter writes JSON text in the form of [JSON]. Each Write has whole characters.
type JSONWriter struct{ W io.Writer }

// Write implements io.Writer.
func (w JSONWriter) Write(text []byte) (int, error) {
	if _, err := w.W.Write(JSON(text)); err != nil {
		return 0, err //nolint:wrapcheck // it is the error of W
	}
	return len(text), nil
}

// HTML returns a page with U+FFFD for each character of [Controls] in its text, except line ends and tabs. A form sends back the
// values of its attributes and the text of a textarea: these stay as they are.
func HTML(page []byte) []byte {
	isForeign := func(r rune) bool { return Controls(r) && !isSpace(r) }
	if !bytes.ContainsFunc(page, isForeign) {
		return page
	}

	var out bytes.Buffer
	isTyped := false // the text is of a textarea
	for len(page) > 0 {
		begin := bytes.IndexByte(page, '<')
		if begin < 0 {
			begin = len(page)
		}
		text := page[:begin]
		if !isTyped {
			text = bytes.Map(func(r rune) rune {
				if isForeign(r) {
					return unicode.ReplacementChar
				}
				return r
			}, text)
		}
		out.Write(text)

		tag := page[begin:]
		if end := bytes.IndexByte(tag, '>'); end >= 0 {
			tag = tag[:end+1]
		}
		out.Write(tag)
		isTyped = bytes.HasPrefix(tag, []byte("<textarea"))
		page = page[begin+len(tag):]
	}
	return out.Bytes()
}

// maxGrowth bounds how many times its size a JSON text may have with indents.
const maxGrowth = 8

// Indent returns a JSON text with its values on lines of their own. It returns a text unchanged if that would multiply its
// size: each line has two spaces for each level, so 20 KB of lists within lists would become 200 MB.
func Indent(text []byte) []byte {
	size := 0
	depth := 0
	inText := false
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
