package when

import (
	"bytes"
	"encoding/json"
)

// This file reads the payload member by member: an expression asks for one or two members, and a decoder would build all
// of them. PostgreSQL has checked that the text is JSON. In any other text the functions find nothing, and read nothing
// outside of the text.

// space returns the index of the first character from i that is not white space.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// end returns the index after the value that begins at i, or -1 if no value begins there.
func end(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return endOfString(b, i)
	case '{', '[':
		return endOfNested(b, i)
	}
	return endOfWord(b, i)
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
			if i = endOfString(b, i) - 1; i < 0 {
				return -1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// members calls f for each member of an object, with the bounds of its key, including the quotes, and of its value. It
// reports whether the text is an object, as far as it was read.
func members(b []byte, f func(key, keyEnd, text, textEnd int)) bool {
	i := space(b, 1)
	for i < len(b) && b[i] == '"' {
		k := endOfString(b, i)
		if k < 0 {
			return false
		}
		key := i
		if i = space(b, k); i >= len(b) || b[i] != ':' {
			return false
		}
		i = space(b, i+1)
		v := end(b, i)
		if v < 0 {
			return false
		}
		f(key, k, i, v)
		if i = space(b, v); i < len(b) && b[i] == ',' {
			i = space(b, i+1)
			continue
		}
		break
	}
	return i < len(b) && b[i] == '}'
}

// unquote returns the string that a text in quotes stands for.
func unquote(b []byte) (s string, ok bool) {
	if bytes.IndexByte(b, '\\') < 0 && len(b) >= 2 {
		return string(b[1 : len(b)-1]), true
	}
	return s, json.Unmarshal(b, &s) == nil
}

// isKey reports whether a text in quotes stands for a name.
func isKey(quoted []byte, name string) bool {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return len(quoted) >= 2 && string(quoted[1:len(quoted)-1]) == name
	}
	s, ok := unquote(quoted)
	return ok && s == name
}
