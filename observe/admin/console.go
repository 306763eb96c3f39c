package admin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/console"
)

// Console has the settings of the web console. The zero Console shows everything and offers all actions.
//
// It shows the activity, the backlog and the failures of the relays, and offers the actions of docs/console.md: pause a
// destination, replay or discard dead letters, move a position. People log in with Config.Token. Forms of other sites are
// refused, and no resource comes from elsewhere.
type Console struct {
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

// open returns the running console of a handler. It uses the pools of the relays, of each at most a connection per page that
// is being loaded; it queries every 15 s, and every 3 s while someone looks at a page.
func (c *Console) open(of *Config, version string, relays []*notifyd.Relay) (*runningConsole, error) {
	if err := c.validate(of.Token); err != nil {
		return nil, err
	}

	cfg := console.Config{
		Prefix:       of.Prefix,
		Many:         len(relays) > 1,
		Token:        admin.NewVerifier(of.Token),
		ReadOnly:     c.ReadOnly,
		HidePayloads: c.HidePayloads,
		Actor:        console.ActorHeader{Name: c.ActorHeader, Proxies: c.TrustedProxies},
		Version:      version,
		Log:          of.Logger,
	}
	if !c.ReadOnlyToken.IsZero() {
		cfg.ReadOnlyToken = admin.NewVerifier(c.ReadOnlyToken)
	}

	pages, err := console.New(cfg)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the package
	}
	for _, r := range relays {
		if err := pages.Add(nameOf(r, cfg.Many), outboxOf(r, cfg.Many)); err != nil {
			return nil, err //nolint:wrapcheck // the same
		}
	}

	ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // it lives until Close
	running := &runningConsole{Console: pages, stop: stop}
	running.work.Go(func() { pages.Run(ctx) })
	return running, nil
}

// validate returns every mistake in c, joined. A console without a token is a mistake, too.
func (c *Console) validate(token handlers.Secret) error {
	errs := []error{admin.CheckToken("ReadOnlyToken", c.ReadOnlyToken)}
	switch {
	case token.IsZero():
		errs = append(errs, errors.New("without a Token it would admit every client: set the one of Config"))
	case token.Reveal() == c.ReadOnlyToken.Reveal():
		errs = append(errs, errors.New("ReadOnlyToken: is the Token, whose logins may act: create another one"))
	}

	if c.ActorHeader != "" {
		errs = append(errs, admin.CheckActorHeader("ActorHeader", c.ActorHeader))
	}

	for _, network := range c.TrustedProxies {
		if err := admin.CheckProxy(network); err != nil {
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
	shown := console.Outbox{
		Relay:  r,
		Pauser: r.Ops(),
		Router: r,
		Database: console.Database{
			Pool:         r.Pool(),
			Schema:       cfg.Schema,
			DeleteEvents: cfg.Retention.Keep == 0,
		},
	}
	if many {
		shown.Trouble = func() error { return admin.Works(r) }
	}
	return shown
}

// runningConsole is a console that runs until close.
type runningConsole struct {
	*console.Console

	stop context.CancelFunc
	work sync.WaitGroup
}

// close ends the streams of all viewers, and replays that are under way.
func (r *runningConsole) close() {
	r.stop()
	r.work.Wait()
}
