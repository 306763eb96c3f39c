package wire

import (
	"errors"
	"fmt"
)

// Values of EventBytes, as limits of events, with which nothing of an event is read that may be large:
// for events that cannot be read. With Escaped its names come with everything but ASCII escaped.
const (
	Bare    = -1
	Escaped = -2
)

// UnreadableError reports an event that PostgreSQL cannot read.
type UnreadableError struct{ err error }

// Error implements error.
func (e *UnreadableError) Error() string {
	return fmt.Sprintf("event cannot be read: %v: replace its payload or its headers, or restore its row from a backup, then replay it", e.err)
}

// Unwrap returns what PostgreSQL has answered.
func (e *UnreadableError) Unwrap() error { return e.err }

// Care is how a statement reads events.
type Care struct {
	Rows       int   // at most
	EventBytes int   // a limit, Bare or Escaped
	Why        error // set unless EventBytes is a limit: why the one event is not delivered
}

// Retreat calls read with up to rows events. Where one of them cannot be read, it calls it with half as
// many, and so on. The one that is left is read without its payload. retreated reports that there may be
// more events than were read. After an error that is returned the caller reads nothing.
func Retreat(rows, limit int, read func(Care) error) (retreated bool, err error) {
	for c := (Care{Rows: rows, EventBytes: limit}); ; {
		err := read(c)
		switch {
		case !unreadable(err):
			return c.Rows < rows || c.Why != nil, err
		case c.Rows > 1:
			c.Rows /= 2
		case c.Why == nil:
			c.EventBytes, c.Why = Bare, &UnreadableError{err}
		case c.EventBytes == Bare:
			c.EventBytes = Escaped
		default:
			return true, c.Why
		}
	}
}

// unreadable reports whether PostgreSQL could not read a value: it is damaged, or has no equivalent in the
// encoding of the client. Where the answer has ended the connection, the next read says so.
func unreadable(err error) bool {
	var answer interface{ SQLState() string } // of *pgconn.PgError, which this package does not import
	if !errors.As(err, &answer) || len(answer.SQLState()) < 2 {
		return false
	}
	class := answer.SQLState()[:2]
	return class == "XX" || class == "22" // internal error, data exception
}

// Name is an SQL expression for a column of text that is read whatever its size.
func Name(column string, limit int) string {
	if limit == Escaped {
		return "encode(convert_to(" + column + ", getdatabaseencoding()), 'escape')"
	}
	return column
}
