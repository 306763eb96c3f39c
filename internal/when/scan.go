package when

import (
	"bytes"
	"encoding/json"
	"slices"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/notifyd/notifyd/delivery"
)

// This file reads the payload member by member: an expression asks for one or two members, and a decoder would build all
// of them. PostgreSQL has checked that the text is JSON. In any other text the functions find nothing, and read nothing
// outside of the text.

const (
	// maxNesting bounds the lists and objects within each other. It is the bound of encoding/json.
	maxNesting = 10_000
	// An expression may read its payload multiple times, and spare bytes in addition.
	multiple, spare = 16, 1 << 20
	// jumpCost is the cost of looking up the end of a list or an object, in bytes.
	jumpCost = 16
	// longSpan is the shortest list or object whose end is looked up; the ends of shorter ones are searched.
	longSpan = 64
	// smallText and smallSpan bound the texts that are read without ends: a look-up would cost more than it saves.
	smallText, smallSpan = 64 << 10, 1 << 10
)

// document is the text of one payload. Only one goroutine may use it.
type document struct {
	text    []byte
	left    int // the bytes that the expression may still read
	indexed bool
	long    []span // once indexed: the lists and objects of at least longSpan bytes, in the order of the text
}

// span is the bounds of a list or an object. A text is shorter than 2 GiB.
type span struct{ from, to int32 }

// refill lets the next expression read as much as the one before.
func (d *document) refill() { d.left = multiple*len(d.text) + spare }

// spend counts bytes that are read, and cancels the expression when it has read too many.
func (d *document) spend(n int) {
	d.left -= n
	if d.left < 0 {
		cancel(errRead)
	}
}

// index finds the ends of all long lists and objects, in one pass: without them the text of a value is read once for each
// list and object around it.
func (d *document) index() {
	d.indexed = true
	d.spend(len(d.text))

	var open []int32 // the lists and objects that are not closed: indexes in long
	for i := 0; i < len(d.text); i++ {
		switch d.text[i] {
		case '"':
			i = endOfString(d.text, i) - 1
			if i < 0 {
				return
			}
		case '{', '[':
			if len(open) == maxNesting {
				cancel(errNested)
			}
			open = append(open, int32(len(d.long))) //nolint:gosec // see span
			d.long = append(d.long, span{from: int32(i)})
		case '}', ']':
			if len(open) == 0 {
				return
			}

			at := open[len(open)-1]
			open = open[:len(open)-1]
			d.long[at].to = int32(i) + 1
			if d.long[at].to-d.long[at].from < longSpan {
				d.long = d.long[:at] // all that it contains is shorter, and has been removed before
			}
		}
	}
}

// indexedEnd returns the index after the list or the object that begins at i, or 0 if it has to be searched.
func (d *document) indexedEnd(i int) int {
	if len(d.long) == 0 {
		return 0
	}
	at, ok := slices.BinarySearchFunc(d.long, i, func(s span, from int) int { return int(s.from) - from })
	if !ok {
		return 0
	}
	return int(d.long[at].to)
}

// end returns the index after the value that begins at i, or -1 if no value begins there.
func (d *document) end(i int) int {
	if i >= len(d.text) {
		return -1
	}

	var to int
	switch d.text[i] {
	case '"':
		to = endOfString(d.text, i)
	case '{', '[':
		to = d.indexedEnd(i)
		if to > 0 {
			d.spend(jumpCost)
			return to
		}
		to = endOfNested(d.text, i)
	default:
		to = endOfWord(d.text, i)
	}

	if to < 0 {
		d.spend(len(d.text) - i)
		return -1
	}

	d.spend(to - i)
	return to
}

// members calls f for each member of the object that begins at i, with the bounds of its key, including the quotes, and of
// its value. It reports whether the text is an object, as far as it was read.
func (d *document) members(i int, f func(key, keyEnd, text, textEnd int)) bool {
	b := d.text
	i = space(b, i+1)

	for i < len(b) && b[i] == '"' {
		k := endOfString(b, i)
		if k < 0 {
			return false
		}

		key := i
		d.spend(k - key)
		i = space(b, k)
		if i >= len(b) || b[i] != ':' {
			return false
		}

		i = space(b, i+1)
		v := d.end(i)
		if v < 0 {
			return false
		}

		f(key, k, i, v)
		i = space(b, v)
		if i < len(b) && b[i] == ',' {
			i = space(b, i+1)
			continue
		}
		break
	}

	return i < len(b) && b[i] == '}'
}

// elements calls f for each element of the list that begins at i, with its bounds. It reports whether the text is a list,
// as far as it was read.
func (d *document) elements(i int, f func(text, textEnd int)) bool {
	b := d.text
	for i = space(b, i+1); i < len(b) && b[i] != ']'; {
		v := d.end(i)
		if v < 0 {
			return false
		}

		f(i, v)
		i = space(b, v)
		if i >= len(b) || b[i] != ',' {
			break
		}
		i = space(b, i+1)
	}

	return i < len(b) && b[i] == ']'
}

// payloadOf returns the value of an event's payload. Only the content type decides whether it is JSON: a binary payload
// can look like JSON, such as one byte that is an ASCII digit.
func (d *document) payloadOf(e *delivery.Event) ref.Val {
	if !e.IsJSON() {
		return types.NewErrFromString(errBytes)
	}
	from := space(d.text, 0)
	to := len(d.text)
	for to > from && space(d.text[to-1:to], 0) == 1 {
		to--
	}
	return d.value(from, to)
}

// value returns the value of the JSON text between two indexes. Numbers without a fraction and an exponent are ints if
// they fit an int64; all others are doubles. The text of a list or an object is read when an expression asks for it.
func (d *document) value(from, to int) ref.Val {
	b := d.text[from:to]
	if len(b) == 0 {
		return types.NewErrFromString(errText)
	}

	switch b[0] {
	case '{', '[':
		isWhole := len(b) == len(d.text)
		isLarge := len(b) > smallSpan || len(d.text) > smallText
		if isLarge && !isWhole && !d.indexed {
			d.index()
		}

		at := span{int32(from), int32(to)} //nolint:gosec // see span
		if b[0] == '[' {
			return (&list{d: d, is: at}).scan()
		}
		return &object{d: d, at: at}
	case '"':
		d.spend(len(b))
		if s, ok := unquote(b); ok {
			return types.String(s)
		}
	case 't', 'f', 'n':
		switch string(b) {
		case "true":
			return types.True
		case "false":
			return types.False
		case "null":
			return types.NullValue
		}
	default:
		d.spend(len(b))
		if v, ok := number(string(b)); ok {
			return v
		}
	}

	return types.NewErrFromString(errText)
}

// isSame reports whether two texts of the same payload are the same, byte for byte. Comparisons ask once, at their begin:
// a comparison at each level would read the innermost value once per level.
func (d *document) isSame(a, b span) bool {
	if a.to-a.from != b.to-b.from {
		return false
	}
	d.spend(int(a.to - a.from))
	return bytes.Equal(d.of(a), d.of(b))
}

// of returns the text of a span.
func (d *document) of(s span) []byte { return d.text[s.from:s.to] }

// space returns the index of the first character from i that is not white space.
func space(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool {
	switch c {
	case ' ', '\n', '\t', '\r':
		return true
	}
	return false
}

// endOfWord returns the index after a number, true, false or null.
func endOfWord(b []byte, from int) int {
	i := from
	for ; i < len(b); i++ {
		switch b[i] {
		case ',', ']', '}', ':', ' ', '\t', '\r', '\n':
			if i == from {
				return -1
			}
			return i
		}
	}
	return i
}

func endOfString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

func endOfNested(b []byte, i int) int {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = endOfString(b, i) - 1
			if i < 0 {
				return -1
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// unquote returns the string that a text in quotes stands for.
func unquote(b []byte) (s string, ok bool) {
	if bytes.IndexByte(b, '\\') < 0 && len(b) >= 2 {
		return string(b[1 : len(b)-1]), true
	}
	return s, json.Unmarshal(b, &s) == nil
}

// unquoted is unquote without a copy, where there is nothing to replace.
func unquoted(b []byte) ([]byte, bool) {
	if bytes.IndexByte(b, '\\') < 0 && len(b) >= 2 {
		return b[1 : len(b)-1], true
	}
	s, ok := unquote(b)
	return []byte(s), ok
}

// isKey reports whether a text in quotes stands for a name.
func isKey(quoted, name []byte) bool {
	s, ok := unquoted(quoted)
	return ok && bytes.Equal(s, name)
}
