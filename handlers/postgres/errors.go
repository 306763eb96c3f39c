package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"

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
		{Codes: []string{"42P01", "3F000"}, Class: outcome.Unavailable, Cure: "create the table: the page of the destination has the SQL; or correct schema and table"},
		{Codes: []string{"42703", "42804"}, Class: outcome.Unavailable, Cure: "compare the table's columns with those of the page of the destination"},
		{Codes: []string{"42P10"}, Class: outcome.Unavailable, Cure: "the table needs PRIMARY KEY or UNIQUE (source, dedupe_id)"},
		{Codes: []string{"42501"}, Class: outcome.Unavailable, Cure: "grant INSERT and SELECT on the table and USAGE on its schema"},
		{Codes: []string{"40001", "40P01"}, Class: outcome.Unavailable, Cure: "look for transactions that lock rows of the table, or what its triggers use, in another order"},
		{Codes: []string{stateReadOnly}, Class: outcome.Unavailable, Cure: "url must lead to the primary: name all hosts"},
		// Bad values, constraints, a row that is too large, and errors raised by a
		// trigger.
		{Codes: []string{"22", "23", "54", "P0"}, Class: outcome.Permanent},
	}
}

// lookUp returns the class and the cure of a code.
func lookUp(code string) (class outcome.Class, cure string) {
	class, cure = codes().Find(false, code, code[:min(2, len(code))])
	return cmp.Or(class, outcome.Unavailable), cure
}

// isContent reports whether the database refuses a row for its content.
func isContent(code string) bool {
	class, _ := lookUp(code)
	return class == outcome.Permanent
}

// classify turns the error of a statement into the error of Deliver. ctx is the context of the delivery, and
// within the context of the statement.
func (h *Handler) classify(ctx, within context.Context, err error) error {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || ctx.Err() != nil {
		return h.out.NoAnswer(ctx, within, "maybe written", err)
	}
	class, cure := lookUp(server.Code)
	// The detail is left out: it repeats the row.
	f := outcome.Failure{Text: fmt.Sprintf("%s (SQLSTATE %s)", server.Message, server.Code), Cure: cure}
	if server.Code == "40001" || server.Code == "40P01" {
		f.Code = errConflict
	}
	return class.Mark(0, h.out.Line(f))
}
