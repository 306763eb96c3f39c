package store

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/session"
)

// SQLSTATEs of refused connections.
const (
	wrongPassword  = "28P01"
	notAdmitted    = "28000" // no such role, no right to log in, no line in pg_hba.conf
	noDatabase     = "3D000"
	noPrivilege    = "42501"
	tooManyClients = "53300"
	stillStarting  = "57P03"
	protocolError  = "08P01" // of PgBouncer, with the name of the setting as the message
)

// BesideClaims are the most connections of a relay that claim nothing: those that listen, hold the notify lock, prove
// life and answer queries, two more where it reads a stream, and one that records calls with large events.
const BesideClaims = 7

// ConnectCure returns what a person can do about a failed connection: the cure for the server's answer, or a general
// one.
func ConnectCure(err error) string {
	if cure := refusal(err); cure != "" {
		return cure
	}
	if cure := crowded(err, 0); cure != "" {
		return cure
	}

	switch code, _ := stateOf(err); code {
	case stillStarting:
		return "wait until the server has started"
	default:
		return "start the server, or fix the connection string"
	}
}

// crowded returns the cure if the server or the pooler has no connection left for a relay that wants some; "" for any
// other error. 0 stands for a relay with unknown settings.
func crowded(err error, wants int) string {
	code, _ := stateOf(err)
	answer, isPg := errors.AsType[*pgconn.PgError](err)
	var cure string
	switch {
	case code == tooManyClients:
		cure = "raise max_connections of the server or the limit of the role, or end connections that nobody needs"
	case isPg && code == protocolError && strings.Contains(answer.Message, "query_wait_timeout"):
		cure = "raise default_pool_size of the pooler, or end connections that nobody needs"
	default:
		return ""
	}

	if wants == 0 {
		return fmt.Sprintf("%s: a relay wants relay.connections and up to %d more", cure, BesideClaims)
	}

	return fmt.Sprintf("%s: this relay wants up to %d", cure, wants)
}

// IsLogin reports whether the server has refused user or password. With LDAP or PAM a wrong password is a 28000. If
// one of several hosts did not answer, it may be the primary, and accept the login soon.
func IsLogin(err error) bool {
	code, _ := stateOf(err)
	_, unreached := errors.AsType[*net.OpError](err)
	return !unreached && (code == wrongPassword || code == notAdmitted)
}

// isWrongPassword reports whether err refuses the credentials in every database of the server.
func isWrongPassword(err error) bool {
	code, _ := stateOf(err)
	return code == wrongPassword
}

// refusal returns the cure of a lasting refusal; "" for any other error.
func refusal(err error) string {
	switch code, _ := stateOf(err); code {
	case wrongPassword:
		return "fix user or password of the connection string, or have the password of the role changed; " +
			"a role that does not exist is answered in the same way"
	case notAdmitted:
		return "create the role with LOGIN, or have pg_hba.conf admit it from here, or fix the user of the connection string"
	case noDatabase:
		return "create the database, or fix its name in the connection string"
	case noPrivilege:
		return "GRANT CONNECT ON DATABASE to the role, or fix the user of the connection string"
	case "":
		return session.TLSCure(err)
	default:
		return ""
	}
}
