package store

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
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
		err := error(&connectError{fmt.Errorf("two addresses: %w", errors.Join(io.EOF, state(code)))})
		var refused interface{ Refusal() string }
		if !errors.As(fmt.Errorf("database: %w", err), &refused) || (refused.Refusal() != "") != c.refused || !strings.Contains(ConnectCure(err), c.cure) {
			t.Errorf("%s: refused by %q, cured by %q", code, refused.Refusal(), ConnectCure(err))
		}
	}
	if cure := ConnectCure(io.EOF); cure != "start the server, or fix the connection string" {
		t.Error(cure)
	}
}
