package jsonline

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// Compact appends payload without its white space, on one line; numbers, order and doubled keys stay
// as they are, which Marshal would not leave. It appends nothing and returns an error if payload is not JSON.
func Compact(buf *bytes.Buffer, payload []byte) error {
	if json.Compact(buf, payload) == nil { // it appends nothing after an error
		return nil
	}

	// PostgreSQL nests deeper than that function reads.
	if err := checkDeep(payload); err != nil {
		return err
	}

	inText := false
	escaped := false
	for _, c := range payload {
		switch {
		case inText:
			inText = escaped || c != '"'
			escaped = !escaped && c == '\\'
		case c == ' ', c == '\t', c == '\r', c == '\n':
			continue
		default:
			inText = c == '"'
		}
		buf.WriteByte(c)
	}

	return nil
}

// checkDeep returns an error unless payload is one JSON value, however deeply nested.
func checkDeep(payload []byte) error {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber() // those beyond a float64 are JSON, too
	depth := 0
	values := 0

	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && depth == 0 && values == 1 {
			return nil
		}
		if err != nil {
			return err
		}

		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}

		if depth == 0 {
			values++
		}
	}
}
