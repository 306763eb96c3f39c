// Package console is the web console of a Go program's relays: give a [Config] to package admin.
//
// It shows the activity, the backlog and the failures of the relays, and offers the actions of docs/console.md: pause a
// destination, replay or discard dead letters, move a position. People log in with the token of admin.Config. Forms of other
// sites are refused, and no resource comes from elsewhere.
package console

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/handlers"
	guard "github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/console"
	"github.com/notifyd/notifyd/observe/admin"
)

// Config has the settings of a console. The zero Config shows everything and offers all actions.
type Config struct {
	// ReadOnly refuses every action.
	ReadOnly bool
	// ReadOnlyToken is a second token to log in with, of 16 characters or more: that login shows everything and changes nothing.
	// It opens no path but the console's.
	ReadOnlyToken handlers.Secret
	// HidePayloads hides the payloads of events.
	HidePayloads bool
	// ActorHeader is the request header in which a proxy names the person who acts, such as X-Forwarded-User: the name is the actor
	// in outbox_audit. It counts only in requests that come from TrustedProxies. Without one the actor is "console".
	ActorHeader    string
	TrustedProxies []netip.Prefix
}

// Open implements admin.Console. The console uses the pools of the relays, of each at most a connection per page that is being
// loaded; it queries every 15 s, and every 3 s while someone looks at a page.
func (c Config) Open(setup admin.Setup) (admin.OpenConsole, error) {
	if err := c.validate(setup.Token); err != nil {
		return nil, err
	}
	cfg := console.Config{
		Prefix: setup.Prefix, Many: len(setup.Relays) > 1, Token: guard.NewVerifier(setup.Token), ReadOnly: c.ReadOnly, HidePayloads: c.HidePayloads,
		Actor: console.ActorHeader{Name: c.ActorHeader, Proxies: c.TrustedProxies}, Version: setup.Version, Log: setup.Logger,
	}
	if !c.ReadOnlyToken.IsZero() {
		cfg.ReadOnlyToken = guard.NewVerifier(c.ReadOnlyToken)
	}
	pages, err := console.New(cfg)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the package
	}
	for _, r := range setup.Relays {
		if err := pages.Add(nameOf(r, cfg.Many), outboxOf(r, cfg.Many)); err != nil {
			return nil, err //nolint:wrapcheck // the same
		}
	}
	ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // it lives until Close
	running := &runs{Console: pages, stop: stop}
	running.work.Go(func() { pages.Run(ctx) })

	return running, nil
}

// validate returns every mistake in c, joined. A console without a token is a mistake, too.
func (c Config) validate(token handlers.Secret) error {
	errs := []error{guard.CheckToken("ReadOnlyToken", c.ReadOnlyToken)}
	switch {
	case token.IsZero():
		errs = append(errs, errors.New("without a Token it would admit every client: set the one of admin.Config"))
	case token.Reveal() == c.ReadOnlyToken.Reveal():
		errs = append(errs, errors.New("ReadOnlyToken: is the Token, whose logins may act: create another one"))
	}
	if c.ActorHeader != "" {
		errs = append(errs, guard.CheckActorHeader("ActorHeader", c.ActorHeader))
	}
	for _, network := range c.TrustedProxies {
		if err := guard.CheckProxy(network); err != nil {
			errs = append(errs, fmt.Errorf("TrustedProxies: %s %w", network, err))
		}
	}
	switch {
	case c.ActorHeader == "" && len(c.TrustedProxies) > 0:
		errs = append(errs, errors.New("TrustedProxies: has no effect without ActorHeader, such as X-Forwarded-User"))
	case c.ActorHeader != "" && len(c.TrustedProxies) == 0:
		errs = append(errs, errors.New("ActorHeader: needs TrustedProxies: any client may send the header"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("console: %w", err)
	}
	return nil
}

// nameOf returns the name of a relay's outbox in the console; empty for the only one.
func nameOf(r *notifyd.Relay, many bool) string {
	if !many {
		return ""
	}
	return r.Config().Outbox
}

// outboxOf returns the outbox of a relay for the console.
func outboxOf(r *notifyd.Relay, many bool) console.Outbox {
	cfg := r.Config()
	shown := console.Outbox{Relay: r, Pauser: r.Ops(), Router: r, Database: console.Database{
		Pool: r.Pool(), Schema: cfg.Schema, DeleteEvents: cfg.Retention.Keep == 0,
	}}
	if many {
		shown.Trouble = func() error { return guard.Works(r) }
	}
	return shown
}

// runs is a console that runs until Close.
type runs struct {
	*console.Console

	stop context.CancelFunc
	work sync.WaitGroup
}

// Close implements admin.OpenConsole.
func (r *runs) Close() {
	r.stop()
	r.work.Wait()
}
