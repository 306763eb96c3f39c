package session

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// IgnoredError reports a write that PostgreSQL has accepted and that has changed nothing, although the row was there: a
// trigger or a rule has ignored it.
type IgnoredError struct {
	// Statement names the write.
	Statement string
	// Rows is how many rows it should have changed, and Changed how many it has.
	Rows, Changed int64
}

// Error implements error.
func (e *IgnoredError) Error() string {
	return fmt.Sprintf("statement %s changed %d of %d rows: a trigger that returns NULL, or a rule, ignores the write",
		e.Statement, e.Changed, e.Rows)
}

// SQLState returns the code of no_data.
func (*IgnoredError) SQLState() string { return "02000" }

// CheckChanged returns an [IgnoredError] if a statement has changed fewer rows than it should. The caller knows that the
// rows were there, and that no other session could change them.
func CheckChanged(statement string, changed, rows int64) error {
	if changed >= rows {
		return nil
	}
	return &IgnoredError{Statement: statement, Rows: rows, Changed: changed}
}

// ForgetIgnored makes a connection prepare its statements again after an [IgnoredError]. A prepared statement that a rule
// has made empty depends on nothing, and stays empty when the rule is gone.
func ForgetIgnored(ctx context.Context, conn *pgx.Conn, err error) error {
	if _, is := errors.AsType[*IgnoredError](err); !is || conn.IsClosed() {
		return nil
	}
	return conn.DeallocateAll(ctx)
}

// IsOfRow reports whether a write was refused for a reason that may lie in one of its rows: a constraint, a trigger, or
// a value that cannot be read.
func IsOfRow(err error) bool {
	var answer interface{ SQLState() string }
	if !errors.As(err, &answer) || len(answer.SQLState()) < 2 {
		return false
	}

	switch answer.SQLState()[:2] {
	case "02", "22", "23", "P0", "XX": // no data, data exception, integrity constraint violation, PL/pgSQL error, internal error
		return true
	}

	return false
}

// Refused is an item that PostgreSQL refuses alone.
type Refused[T any] struct {
	Item T
	Err  error
}

// IsConstraint reports whether a constraint refuses a write, such as a foreign key.
func IsConstraint(err error) bool {
	var answer interface{ SQLState() string }
	return errors.As(err, &answer) && strings.HasPrefix(answer.SQLState(), "23")
}

// maxRefused is how many items are refused, and none accepted, until the reason is taken for one that no single item has.
const maxRefused = 256

// InHalves writes items after a write of all of them was refused. It calls write, which keeps all or nothing of its items, with all
// items, and after a refusal that [IsOfRow] with each half of them, down to the single item. It returns the refused
// items, which are all that is not written. If it returns another error, some items may be written.
func InHalves[T any](items []T, write func(some []T) error) (refused []Refused[T], err error) {
	accepted := false
	for parts := [][]T{items}; len(parts) > 0; {
		some := parts[len(parts)-1]
		parts = parts[:len(parts)-1]

		err := write(some)
		switch {
		case err == nil:
			accepted = true
		case !IsOfRow(err), len(some) == 0:
			return nil, err
		case len(some) > 1:
			half := len(some) / 2
			parts = append(parts, some[half:], some[:half])
		default:
			refused = append(refused, Refused[T]{some[0], err})
			if len(refused) == maxRefused && !accepted {
				return nil, err
			}
		}
	}

	return refused, nil
}
