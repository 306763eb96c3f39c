package store

import (
	"errors"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestIsDown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"no answer":      {io.EOF, true},
		"an answer":      {state("22003"), false},
		"wrapped answer": {errors.Join(errors.New("settle"), state("22003")), false},
		"shutting down":  {state("57P01"), true},
		"no connection":  {state("08006"), true},
		"disk full":      {state("53100"), false},
		"out of memory":  {state("53200"), false},
		"too many":       {&pgconn.PgError{Code: "53300", SeverityUnlocalized: "FATAL"}, true},
		"read only":      {state("25006"), true},
		"lock timeout":   {state("55P03"), false},
		"timeout":        {state("57014"), false},
		"ended session":  {&pgconn.PgError{Code: "25P03", SeverityUnlocalized: "FATAL"}, true},
		"no session":     {&connectError{error: state("28P01")}, true},
		"no code":        {state(""), false},
	} {
		if got := IsDown(tc.err); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

type state string

func (s state) Error() string    { return "state " + string(s) }
func (s state) SQLState() string { return string(s) }
