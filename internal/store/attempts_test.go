package store

import (
	"errors"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/session"
)

// TestConnectText: of several attempts the one that names the cause remains, and a SQLSTATE comes first.
func TestConnectText(t *testing.T) {
	t.Parallel()
	const head = "failed to connect to `user=a database=b`:"
	noTLS := "127.0.0.1:5 (h): " + "tls error: server refused TLS connection"
	noDatabase := `127.0.0.1:5 (h): server error: FATAL: database "b" does not exist (SQLSTATE 3D000)`
	refused := "127.0.0.1:1 (g): dial error: dial tcp 127.0.0.1:1: connect: connection refused"
	password := "127.0.0.1:5 (h): server error: FATAL: password authentication failed (SQLSTATE 28P01)"
	noLine := "127.0.0.1:5 (h): server error: FATAL: no pg_hba.conf entry, no encryption (SQLSTATE 28000)"
	for _, c := range []struct {
		attempts []string
		want     string
		cure     string // the begin
	}{
		{[]string{noTLS, noDatabase}, noDatabase, ""},
		{[]string{refused, refused}, refused, "start the server"},
		{[]string{refused, refused, noTLS, noDatabase}, noDatabase + "; " + refused, ""},
		{[]string{password, noLine}, password, ""},
		{[]string{noTLS}, noTLS, "have the server offer TLS"},
		{[]string{noTLS, refused}, refused + "; " + noTLS, "start the server"},
		{[]string{"hostname resolving error: lookup x: no such host", "lookup x: no such host"}, "hostname resolving error: lookup x: no such host", "start the server"},
	} {
		text := head + " " + c.attempts[0]
		if len(c.attempts) > 1 {
			text = head + "\n\t" + strings.Join(c.attempts, "\n\t")
		}
		err := errors.New(text)
		if got := session.ConnectText(err); got != head+" "+c.want {
			t.Errorf("%q:\n got %s\nwant %s", c.attempts, got, head+" "+c.want)
		}
		if got := ConnectCure(err); c.cure != "" && !strings.HasPrefix(got, c.cure) {
			t.Errorf("%q: the cure is %q", c.attempts, got)
		}
	}
	if got := session.ConnectText(errors.New("prepare the connection: no\ntoken")); got != "prepare the connection: no token" {
		t.Error(got)
	}
}
