package testenv

import (
	"net/url"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// PgBouncer starts a PgBouncer in front of the server of a connection URL, and
// returns the URL that leads through it to the same database. mode is its
// pool_mode: "session", "transaction" or "statement". The end of the test stops it.
func PgBouncer(tb testing.TB, postgresURL, mode string) string {
	tb.Helper()
	_, through := OwnPgBouncer(tb, postgresURL, mode)
	return through
}

// OwnPgBouncer is [PgBouncer] for a test that also kills or freezes the pooler.
func OwnPgBouncer(tb testing.TB, postgresURL, mode string) (server *privateserver.Server, through string) {
	tb.Helper()
	u, err := url.Parse(postgresURL)
	if err != nil {
		tb.Fatal("the URL of PostgreSQL is invalid") // it may hold a password
	}

	if _, has := u.User.Password(); has {
		tb.Skip("PgBouncer of the tests has no password for PostgreSQL")
	}

	server = OwnServer(tb, "pgbouncer", privateserver.PgBouncer(u.Hostname(), u.Port(), u.User.Username(), mode))
	u.Host = server.Addr()
	return server, u.String()
}
