package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// errConflict is the cause of a failure that other transactions have caused: the same statement may succeed at once.
var errConflict = errors.New("another transaction was in the way")

// stateReadOnly is the code of a server, or a session, that cannot be written to.
const stateReadOnly = "25006"

// codes is the table of SQLSTATEs, and of their classes, which are the first two characters. A code that is not in it
// is a fault of the database.
func codes() outcome.Table[string] {
	return outcome.Table[string]{
		{Codes: []string{"28P01", "28000"}, Class: outcome.Unauthorized, Cure: "check user and password in url, and pg_hba.conf"},
		{Codes: []string{"3D000"}, Class: outcome.Unavailable, Cure: "check the name of the database in url"},
		{
			Codes: []string{"42P01", "3F000"},
			Class: outcome.Unavailable,
			Cure:  "create the table: the page of the destination has the SQL; or correct schema and table",
		},
		{
			Codes: []string{"42703", "42804"},
			Class: outcome.Unavailable,
			Cure:  "compare the table's columns with those of the page of the destination",
		},
		{Codes: []string{"42P10"}, Class: outcome.Unavailable, Cure: "the table needs PRIMARY KEY or UNIQUE (source, dedupe_id)"},
		{Codes: []string{"42501"}, Class: outcome.Unavailable, Cure: "grant INSERT and SELECT on the table and USAGE on its schema"},
		{
			Codes: []string{"40001", "40P01"},
			Class: outcome.Unavailable,
			Cure:  "look for transactions that lock rows of the table, or what its triggers use, in another order",
		},
		{Codes: []string{stateReadOnly}, Class: outcome.Unavailable, Cure: "url must lead to the primary: name all hosts"},
		{Codes: []string{noPartition}, Class: outcome.UnclearRetry, Cure: "create the partition"},
		{Codes: []string{rowSecurity}, Class: outcome.Unclear, Cure: "look at the policies of the table"},
		// The value itself: no text in this encoding, no JSON, a row that is too large.
		{Codes: []string{"22021", "22P05", badJSON, "54"}, Class: outcome.Permanent},
		// A value, a constraint or a view of the consumer, or an error raised by its trigger: a new constraint, a new
		// column or a broken trigger refuses every row.
		{
			Codes: []string{"22", "23", "44", "P0"},
			Class: outcome.Unclear,
			Cure:  "look at the row, and at the constraints and triggers of the table",
		},
	}
}

// PostgreSQL has one code for a constraint and for a missing partition, one for a missing right and for a policy of row
// level security, and one for all values that it cannot read. These stand for the second meaning.
const (
	noPartition = "23514 partition"
	rowSecurity = "42501 row"
	badJSON     = "22P02 JSON"
)

// meaning returns the code of an error, or the constant that stands for it. The names of routines are not translated, as the
// messages are.
func meaning(err *pgconn.PgError) string {
	switch {
	case err.Code == "23514" && err.ConstraintName == "":
		return noPartition
	case err.Code == "42501" && err.Routine == "ExecWithCheckOptions":
		return rowSecurity
	case err.Code == "22P02" && strings.HasPrefix(err.Routine, "json_"):
		return badJSON
	default:
		return err.Code
	}
}

// lookUp returns the class and the cure of an error.
func lookUp(err *pgconn.PgError) (class outcome.Class, cure string) {
	code := meaning(err)
	class, cure = codes().Find(false, code, code[:min(2, len(code))])
	return cmp.Or(class, outcome.Unavailable), cure
}

// isAboutRow reports whether the database refuses a row, and would take others of the statement.
func isAboutRow(err *pgconn.PgError) bool {
	class, _ := lookUp(err)
	return class.MayBeEvents()
}

// classify turns the error of a statement into the error of Deliver. ctx is the context of the delivery, and
// within the context of the statement.
func (h *Handler) classify(ctx, within context.Context, err error) error {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || ctx.Err() != nil {
		return h.out.NoAnswer(ctx, within, "maybe written", err)
	}
	class, cure := lookUp(server)
	// The detail is left out: it repeats the row.
	f := outcome.Failure{Text: fmt.Sprintf("%s (SQLSTATE %s)", server.Message, server.Code), Cure: cure}
	if server.Code == "40001" || server.Code == "40P01" {
		f.Code = errConflict
	}
	return class.Mark(0, h.out.Line(f))
}
