package store

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// SQLSTATEs with another meaning than their class.
const (
	// queryCanceled is a statement_timeout, or a person's cancellation.
	queryCanceled = "57014"
	// lockNotAvailable is a lock_timeout.
	lockNotAvailable = "55P03"
	// insufficientPrivilege is a missing GRANT.
	insufficientPrivilege = "42501"
	// diskFull: a file of a table or an index cannot grow.
	diskFull = "53100"
	// internalError is a fault of the server, or of notifyd itself.
	internalError = "XX000"
	// dataCorrupted: a value of a row cannot be read.
	dataCorrupted = "XX001"
	// foreignKey: a row that something references cannot be deleted.
	foreignKey = "23503"
	// ignored is the code of a session.IgnoredError.
	ignored = "02000"
	// notSupported: PostgreSQL cannot run the statement on a table with a rule.
	notSupported = "0A000"
	// indexCorrupted: an index and its table do not match.
	indexCorrupted = "XX002"
)

// IsDown reports whether err means that the database was unavailable, in contrast to an answer from it. A statement
// that took too long, waited too long for a lock, or lacked space or memory was answered: the next statement may be
// quick, and need none of these.
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
		return true // the server ended the session
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

// IsHidden reports whether a statement was refused because row level security hides rows from it.
func IsHidden(err error) bool { return session.IsHidden(err) }

// IsCanceled reports whether the server cancelled a slow statement.
func IsCanceled(err error) bool {
	code, _ := stateOf(err)
	return code == queryCanceled
}

// BoundOf names the timeout by which the server cancelled a statement; empty for other errors.
func BoundOf(err error) string {
	switch code, _ := stateOf(err); code {
	case queryCanceled:
		return "statement_timeout of " + statementTimeout.String()
	case lockNotAvailable:
		return "lock_timeout of " + lockTimeout.String()
	}
	return ""
}

// stateOf returns the SQLSTATE of an error from the server.
func stateOf(err error) (code string, answered bool) {
	var answer interface{ SQLState() string }
	if !errors.As(err, &answer) {
		return "", false
	}
	return answer.SQLState(), true
}

// Reporter receives the results of a relay's statements. dispatch.Dispatcher implements it.
type Reporter interface {
	ReportDatabase(err error)
	ReportRefusal(r observe.Refusal)
}

// Report reports the result of statements of a part of the relay; nil is good. An error means that the database is
// unavailable, that it answers and refuses the statements, or that another session holds a lock.
func Report(to Reporter, part string, err error) {
	_, foreign := errors.AsType[*ForeignLockError](err)
	isRefusal := foreign || errors.Is(err, outboxsql.ErrModeChanging)
	if err != nil && IsDown(err) && !isRefusal {
		to.ReportDatabase(err)
		return
	}

	to.ReportDatabase(nil)

	r := observe.Refusal{Part: part, Err: err}
	if err != nil {
		r.Code, _ = stateOf(err)
		r.Cure = CureOf(err)
		var single interface{ Outcomes() int }
		if errors.As(err, &single) {
			r.Outcomes = single.Outcomes()
		}
	}

	to.ReportRefusal(r)
}

// CureOf returns what a person can do about a refused statement.
func CureOf(err error) string {
	if session.IsHidden(err) {
		return session.HiddenCure
	}
	code, _ := stateOf(err)
	return Cure(code)
}

// Cure returns what a person can do about a statement that the database refuses with a SQLSTATE.
func Cure(code string) string {
	switch {
	case code == insufficientPrivilege:
		return "give the relay's role its privileges: notifyd migrate --print-grants prints the statements; " +
			"where the log names row-level security, ALTER ROLE ... BYPASSRLS"
	case code == queryCanceled:
		return "find what makes the statement slow: the database's load, a trigger on the tables, or a table that needs VACUUM"
	case code == lockNotAvailable:
		return "find the session that holds a lock on the tables for so long, in pg_locks, and end its transaction"
	case code == internalError:
		return "report the error to those who make what it names"
	case code == indexCorrupted:
		return "REINDEX the tables of notifyd; notifyd doctor compares the collations of the database with those of its machine"
	case code == diskFull:
		return "give the database's disk space"
	case code == foreignKey:
		return "give the foreign key ON DELETE CASCADE or ON DELETE SET NULL, or drop it; " +
			"notifyd doctor lists the foreign keys to outbox_events"
	case code == notSupported:
		return "drop the rule that the error names; notifyd doctor lists the rules that are not notifyd's"
	case code == ignored:
		return "drop the trigger or the rule that ignores the change; notifyd doctor lists those that are not notifyd's"
	case code == dataCorrupted:
		return "restore the row from a backup, or replace its payload and its headers"
	case code[:min(2, len(code))] == "P0", code[:min(2, len(code))] == "23":
		return "correct or drop the trigger or the constraint that refuses the change; it is not one of notifyd's"
	case code[:min(2, len(code))] == "42":
		return "notifyd doctor compares the tables with what this version needs"
	default:
		return "see the error, and the database's log"
	}
}
