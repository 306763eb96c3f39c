package store

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestRefusals(t *testing.T) {
	t.Parallel()
	for code, c := range map[string]struct {
		cure    string
		refused bool
	}{
		"28P01": {"fix user or password", true},
		"28000": {"create the role with LOGIN", true},
		"3D000": {"create the database", true},
		"42501": {"GRANT CONNECT", true},
		"53300": {"raise max_connections", false},
		"57P03": {"wait until the server has started", false},
		"57P01": {"start the server, or fix the connection string", false},
	} {
		err := error(&connectError{error: fmt.Errorf("two addresses: %w", errors.Join(io.EOF, state(code)))})
		var refused interface{ Refusal() string }
		if !errors.As(fmt.Errorf("database: %w", err), &refused) || (refused.Refusal() != "") != c.refused || !strings.Contains(ConnectCure(err), c.cure) {
			t.Errorf("%s: refused by %q, cured by %q", code, refused.Refusal(), ConnectCure(err))
		}
	}
	if cure := ConnectCure(io.EOF); cure != "start the server, or fix the connection string" {
		t.Error(cure)
	}
}

// TestNoConnectionLeft: the server has no connection left, or the pooler. The error of a relay has how many it wants.
func TestNoConnectionLeft(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  *pgconn.PgError
		cure string
	}{
		"server":         {&pgconn.PgError{Severity: "FATAL", Code: "53300", Message: "sorry, too many clients already"}, "raise max_connections of the server"},
		"pooler":         {&pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: "query_wait_timeout"}, "raise default_pool_size of the pooler"},
		"pooler refuses": {&pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: "no such database: x"}, ""},
	} {
		relay := (&connectError{c.err, 10}).Error()
		if strings.Contains(relay, "this relay wants up to 10") != (c.cure != "") || !strings.Contains(relay, c.cure) {
			t.Errorf("%s: a relay reports %q", name, relay)
		}
		command := ConnectCure(c.err)
		if strings.Contains(command, "a relay wants relay.connections and up to 7 more") != (c.cure != "") || !strings.Contains(command, c.cure) {
			t.Errorf("%s: a command prints %q", name, command)
		}
	}
}
