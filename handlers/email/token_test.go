package email

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestXOAUTH2: each connection logs in with the token of that moment, from a file or a program. A refused token is a
// refused login, and no error has a token.
func TestXOAUTH2(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]func(*Config, string){
		"file":    func(c *Config, path string) { c.TokenFile = filepath.Base(path) },
		"command": func(c *Config, path string) { c.TokenCommand, c.TokenLifetime = []string{"cat", path}, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var now atomic.Value
			now.Store("t0ken-one")
			s := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.ImplicitTLS, Username: "shop@example.com", Token: func() string { return now.Load().(string) }}) //nolint:forcetypeassert // a text
			dir := t.TempDir()
			path := filepath.Join(dir, "token")
			testenv.WriteFile(t, path, "t0ken-one\n")
			writeFile(t, dir, "ca.pem", s.CertPEM())
			cfg := config(s)
			cfg.TLS, cfg.CAFile, cfg.Auth, cfg.Username, cfg.MaxConnectionMails = TLSImplicit, "ca.pem", AuthXOAUTH2, "shop@example.com", 1
			source(&cfg, path)
			h := deliverytest.Open(t, New, cfg, handlers.WithBaseDir(dir))
			if m, _ := deliverOne(t, h, s, event(ada)); m.User != "shop@example.com" {
				t.Errorf("logged in as %q", m.User)
			}

			now.Store("t0ken-two")
			err := h.Deliver(testenv.Within(t, patience), event(ada))
			if !delivery.IsUnauthorized(err) || strings.Contains(err.Error(), "t0ken") {
				t.Errorf("with a token that has expired: %v", err)
			}
			testenv.WriteFile(t, path, "t0ken-two\n")
			testenv.Await(t, "a login with the new token", func() bool { return h.Deliver(t.Context(), event(ada)) == nil })

			testenv.WriteFile(t, path, "")
			err = h.Deliver(testenv.Within(t, patience), event(ada))
			if deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), "token_"+name+": ") {
				t.Errorf("without a token: %v", err)
			}
		})
	}
}
