package store

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// SQLSTATEs that say less about the database than their class does, or more.
const (
	// queryCanceled is a statement_timeout, or a cancellation by a person.
	queryCanceled = "57014"
	// lockNotAvailable is a lock_timeout.
	lockNotAvailable = "55P03"
	// insufficientPrivilege is a missing GRANT.
	insufficientPrivilege = "42501"
	// diskFull is a file of a table or an index that cannot grow.
	diskFull = "53100"
)

// IsDown reports whether err means that the database was unavailable, as opposed to an answer from
// it. A statement that took too long, that waited too long for a lock, or for which there is no space
// or memory left, was answered: the next one may be as quick as ever, and need none.
func IsDown(err error) bool {
	if _, connecting := errors.AsType[*connectError](err); connecting {
		return true
	}
	code, answered := stateOf(err)
	switch {
	case errors.Is(err, ErrPooler):
		return false
	case !answered:
		return true
	case len(code) < 2 || code == queryCanceled:
		return false
	case code == readOnly: // a failover is in progress
		return true
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC") {
		return true // the server has ended the session
	}
	switch code[:2] {
	case "08", "57": // connection exception, operator intervention
		return true
	}
	return false
}

// IsDenied reports whether a privilege is missing.
func IsDenied(err error) bool {
	code, _ := stateOf(err)
	return code == insufficientPrivilege && !IsDown(err)
}

// IsCanceled reports whether the server gave up a statement that took too long.
func IsCanceled(err error) bool {
	code, _ := stateOf(err)
	return code == queryCanceled
}

// BoundOf names the bound by which the server gave up a statement of a relay, empty if it was none.
func BoundOf(err error) string {
	switch code, _ := stateOf(err); code {
	case queryCanceled:
		return "statement_timeout of " + statementTimeout.String()
	case lockNotAvailable:
		return "lock_timeout of " + lockTimeout.String()
	}
	return ""
}

// stateOf returns the SQLSTATE of an error that the server has sent.
func stateOf(err error) (code string, answered bool) {
	var answer interface{ SQLState() string }
	if !errors.As(err, &answer) {
		return "", false
	}
	return answer.SQLState(), true
}

// Reporter takes what the statements of a relay have come to. A dispatch.Dispatcher is one.
type Reporter interface {
	ReportDatabase(err error)
	ReportRefusal(r observe.Refusal)
}

// Report passes on what the statements of a part of the relay have come to, nil if all is well: the
// database is unavailable, or it answers and refuses them, or another session keeps the part away.
func Report(to Reporter, part string, err error) {
	_, foreign := errors.AsType[*ForeignLockError](err)
	if err != nil && IsDown(err) && !foreign && !errors.Is(err, outboxsql.ErrModeChanging) {
		to.ReportDatabase(err)
		return
	}
	to.ReportDatabase(nil)
	r := observe.Refusal{Part: part, Err: err}
	if err != nil {
		r.Code, _ = stateOf(err)
		r.Cure = Cure(r.Code)
	}
	to.ReportRefusal(r)
}

// Cure says what a person can do about a statement of a relay that the database refuses with a
// SQLSTATE.
func Cure(code string) string {
	switch {
	case code == insufficientPrivilege:
		return "give the relay's role its privileges: notifyd migrate --print-grants prints the statements"
	case code == queryCanceled:
		return "find what makes the statement slow: the database's load, a trigger on the tables, or a table that needs VACUUM"
	case code == lockNotAvailable:
		return "find the session that holds a lock on the tables for so long, in pg_locks, and end its transaction"
	case code == diskFull:
		return "give the database's disk space"
	case code == "P0001", code[:min(2, len(code))] == "23":
		return "correct or drop the trigger or the constraint that refuses the change; it is not one of notifyd's"
	case code[:min(2, len(code))] == "42":
		return "notifyd doctor compares the tables with what this version needs"
	default:
		return "see the error, and the database's log"
	}
}
