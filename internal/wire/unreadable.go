package wire

import (
	"errors"
	"fmt"
	"strings"
)

// Limits for [EventBytes] and [EventColumns] with which a statement reads neither payload nor headers, for events that
// PostgreSQL cannot read. With Escaped the names in the event are escaped to ASCII, too.
const (
	Bare    = -1
	Escaped = -2
)

// UnreadableError reports an event that PostgreSQL cannot read.
type UnreadableError struct{ err error }

// Error implements error.
func (e *UnreadableError) Error() string {
	if stateOf(e.err) == indexCorrupted {
		return fmt.Sprintf("event cannot be read: %v", e.err)
	}
	return fmt.Sprintf("event cannot be read: %v: "+
		"replace its payload or its headers, or restore its row from a backup, then replay it", e.err)
}

// Unwrap returns PostgreSQL's error.
func (e *UnreadableError) Unwrap() error { return e.err }

// Care describes how a statement reads events.
type Care struct {
	Rows       int   // at most
	EventBytes int   // a limit, Bare or Escaped
	Why        error // set unless EventBytes is a limit: why the one event is not delivered
}

// Retreat calls read with up to rows events. If PostgreSQL cannot read one of them, Retreat halves the number and calls
// read again, down to one event. That event is read without its payload and headers. retreated reports that there may be
// more events than were read. If Retreat returns an error, the caller must not use any rows.
func Retreat(rows, limit int, read func(Care) error) (retreated bool, err error) {
	for c := (Care{Rows: rows, EventBytes: limit}); ; {
		err := read(c)
		switch {
		case !IsUnreadable(err):
			return c.Rows < rows || c.Why != nil, err
		case c.Rows > 1:
			c.Rows /= 2
		case c.Why == nil:
			c.EventBytes = Bare
			c.Why = &UnreadableError{err}
		case c.EventBytes == Bare:
			c.EventBytes = Escaped
		default:
			return true, c.Why
		}
	}
}

// IsUnreadable reports whether PostgreSQL could not read a value: the value is damaged, or the client's encoding cannot
// represent it. If the error also ended the connection, the next read reports that.
func IsUnreadable(err error) bool {
	code := stateOf(err)
	return strings.HasPrefix(code, "XX") || strings.HasPrefix(code, "22") // internal error, data exception
}

// indexCorrupted is the code of an index that does not match its table. Another payload does not cure that.
const indexCorrupted = "XX002"

// stateOf returns the code of an error of PostgreSQL, "" for other errors.
func stateOf(err error) string {
	var answer interface{ SQLState() string } // of *pgconn.PgError, which this package does not import
	if !errors.As(err, &answer) {
		return ""
	}
	return answer.SQLState()
}

// Name is an SQL expression for a column of text that is read whatever its size.
func Name(column string, limit int) string {
	if limit == Escaped {
		return "encode(convert_to(" + column + ", getdatabaseencoding()), 'escape')"
	}
	return column
}
