package daemon

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/console"
	"github.com/notifyd/notifyd/internal/profiles"
)

// adminMistake returns an error about the certificate as a mistake in the configuration: another start would not mend it.
// An address may become free, or exist, later.
func adminMistake(c *config.Config, err error) error {
	if _, isAddress := errors.AsType[*net.OpError](err); isAddress || c.Admin.TLS.CertFile == "" {
		return err
	}

	return &config.Error{Mistakes: []config.Mistake{c.Mistake("admin.tls.cert_file", cli.OneLine(err))}}
}

// startAdmin serves metrics, health and the console until ctx ends, if the configuration asks for it. wait returns
// once everything is closed.
func startAdmin(ctx context.Context, s *supervisor) (wait func(), err error) {
	c := s.config
	log := s.log
	if c.Admin.Listen == "" {
		return func() {}, nil
	}

	s.tokens = newTokens(c)
	serve := admin.Config{
		Address: c.Admin.Listen,
		Version: s.from.version,
		Metrics: s.metrics.registry,
		Checks:  view{s}.checks(),
		Live:    view{s}.Live,
		TLS:     AdminFiles(c, s.from.path),
		Token:   s.tokens.all,
		Prefix:  c.Admin.Prefix,
	}

	if c.Admin.Pprof {
		serve.Profiles = profiles.Handler()
	}

	s.console, err = newConsole(c, s.tokens, s.from.path, s.from.version, log)
	if err != nil {
		return nil, err
	}

	if s.console != nil {
		serve.Console = s.console
		s.console.follow(ctx, s.listed(c), s.member)
	}

	server, err := admin.Listen(ctx, serve, log)
	if err != nil {
		s.console.close()
		return nil, adminMistake(c, err)
	}

	log.InfoContext(ctx, "admin server listening", "listen", server.Addr(), "tls", c.Admin.TLS.CertFile != "",
		"token", !c.Admin.Token.IsZero(), "pprof", c.Admin.Pprof, "console", consoleURL(c, server.Addr()))

	if !c.Admin.Token.IsZero() && c.Admin.TLS.CertFile == "" && !c.Admin.Local() {
		log.WarnContext(ctx, "admin.token is sent unencrypted to admin.listen, which other machines reach: set admin.tls")
	}

	var running sync.WaitGroup
	if s.console != nil {
		running.Go(func() { s.console.Run(ctx) })
	}
	running.Go(func() {
		if err := server.Run(ctx); err != nil {
			log.ErrorContext(ctx, "admin server ended", "err", err)
		}
	})

	return func() {
		running.Wait()
		s.console.close()
	}, nil
}

// consoleURL returns where a browser on this machine finds the console; empty without one.
func consoleURL(c *config.Config, listens string) string {
	if !c.Admin.Console {
		return ""
	}

	scheme := "http"
	if c.Admin.TLS.CertFile != "" {
		scheme = "https"
	}

	host, port, err := net.SplitHostPort(listens)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		listens = net.JoinHostPort("localhost", port)
	}

	return scheme + "://" + listens + c.Admin.Prefix + console.Path
}

// tokens recognize the tokens of the admin server; nil where none is set.
type tokens struct {
	all      *admin.Verifier
	readOnly *admin.Verifier
}

func newTokens(c *config.Config) (t tokens) {
	if !c.Admin.Token.IsZero() {
		t.all = admin.NewVerifier(c.Admin.Token)
	}
	if !c.Admin.ReadOnlyToken.IsZero() {
		t.readOnly = admin.NewVerifier(c.Admin.ReadOnlyToken)
	}
	return t
}

// replace switches to the tokens of c, and reports whether one has changed. Setting the first token or removing a token
// needs a restart.
func (t tokens) replace(c *config.Config) (changed bool) {
	if t.all != nil && !c.Admin.Token.IsZero() {
		changed = t.all.Replace(c.Admin.Token)
	}
	if t.readOnly != nil && !c.Admin.ReadOnlyToken.IsZero() {
		changed = t.readOnly.Replace(c.Admin.ReadOnlyToken) || changed
	}
	return changed
}

// AdminFiles are the files of the server's certificate, named relative to the
// configuration file.
func AdminFiles(c *config.Config, path string) admin.Files {
	absolute := func(file string) string {
		if file == "" || filepath.IsAbs(file) {
			return file
		}
		return filepath.Join(filepath.Dir(path), file)
	}
	return admin.Files{Cert: absolute(c.Admin.TLS.CertFile), Key: absolute(c.Admin.TLS.KeyFile)}
}

// AdminAccess is the access to the admin server of the relay that the configuration describes. Without admin.listen its
// address is empty.
func AdminAccess(c *config.Config, path string) admin.Access {
	return admin.Access{Address: c.Admin.Listen, CertFile: AdminFiles(c, path).Cert, Token: c.Admin.Token}
}
