package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/exhaust"
)

// isContent reports whether the database refuses a row for what is in it, by the class of its code: bad
// values, constraints, a row that is too large, and what a trigger has raised.
func isContent(code string) bool {
	switch {
	case strings.HasPrefix(code, "22"), strings.HasPrefix(code, "23"), strings.HasPrefix(code, "54"), strings.HasPrefix(code, "P0"):
		return true
	default:
		return false
	}
}

// errConflict is the cause of a failure that other transactions have caused: the same statement may succeed at once.
var errConflict = errors.New("another transaction was in the way")

// isConflict reports whether a code is a serialization failure or a deadlock.
func isConflict(code string) bool { return code == "40001" || code == "40P01" }

// cure returns what an operator can do about a code, or "".
func cure(code string) string {
	switch code {
	case "28P01", "28000":
		return "check user and password in url, and pg_hba.conf"
	case "3D000":
		return "check the name of the database in url"
	case "42P01", "3F000":
		return "create the table: the page of the destination has the SQL; or correct schema and table"
	case "42703", "42804":
		return "compare the table's columns with those of the page of the destination"
	case "42P10":
		return "the table needs PRIMARY KEY or UNIQUE (source, dedupe_id)"
	case "42501":
		return "grant INSERT and SELECT on the table and USAGE on its schema"
	case "40001", "40P01":
		return "look for transactions that lock rows of the table, or what its triggers use, in another order"
	case stateReadOnly:
		return "url must lead to the primary: name all hosts"
	default:
		return ""
	}
}

// stateReadOnly is the code of a server, or a session, that cannot be written to.
const stateReadOnly = "25006"

// classify returns the error of Deliver for that of a statement. ctx is that of the delivery, and within that
// of the statement.
func (h *Handler) classify(ctx, within context.Context, err error) error {
	server, isServer := errors.AsType[*pgconn.PgError](err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("postgres: maybe written: %w", context.Cause(ctx))
	case isServer:
		return h.refused(server)
	case within.Err() != nil:
		return delivery.Unavailable(fmt.Errorf("postgres: no answer, maybe written: %w", context.Cause(within)))
	default:
		return delivery.Unavailable(h.network(err))
	}
}

// refused classifies an answer of the database. Its detail is left out: it repeats the row.
func (h *Handler) refused(e *pgconn.PgError) error {
	text := fmt.Sprintf("postgres: %s (SQLSTATE %s)", oneline.Reply(e.Message, h.redact), e.Code)
	if words := cure(e.Code); words != "" {
		text += " (" + words + ")"
	}
	err := &oneline.Error{Text: text}
	switch {
	case isContent(e.Code):
		return delivery.Permanent(err)
	case isConflict(e.Code):
		err.Cause = errConflict
	}
	if e.Code == "28P01" || e.Code == "28000" {
		return delivery.Unauthorized(err)
	}
	return delivery.Unavailable(err)
}

// network describes why there is no answer.
func (h *Handler) network(err error) error {
	line := &oneline.Error{Text: "postgres: " + oneline.Reply(err.Error(), h.redact), Cause: exhaust.Cause(err)}
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		line.Text += " (check sslmode and sslrootcert in url)"
		line.Cause = cert
	} else if op, ok := errors.AsType[*net.OpError](err); ok {
		line.Cause = op
	}
	return line
}
