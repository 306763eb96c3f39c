package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/notifyd/notifyd/internal/config"
)

// reload reads the file again. A file with mistakes changes nothing.
func (f *fleet) reload(ctx context.Context) {
	f.log.InfoContext(ctx, "reloading the configuration", "config", f.from.path)
	f.tell(ctx, func() error { return f.sd.Reloading(ctx, "reloading the configuration") })
	c, err := f.load()
	if err == nil && !c.Outboxes.Used() {
		err = errors.New("outboxes: from many outboxes to one, a reload does not lead: restart notifyd")
	}
	var wanted map[string]*config.Config
	var wrong error
	if err == nil {
		err = checkURLs(c, f.from.path)
	}
	if err == nil {
		if wanted, wrong, err = f.find(ctx, c); err == nil {
			err = f.check(ctx, wanted)
		}
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		f.state.failed(err)
		f.log.ErrorContext(ctx, "the configuration is wrong: the relays continue with the previous one", "config", f.from.path, "err", oneLine(err))
		f.tell(ctx, func() error {
			return f.sd.Ready(ctx, "delivering with the previous configuration, because the reload failed: see the log")
		})
		f.note(ctx, oneLine(err)) // last: it may take a while
		return
	}
	changed := config.Diff(f.config, c).Names()
	f.config, f.log = c, newLogger(f.out, c.Log)
	for _, w := range c.Warnings {
		f.log.WarnContext(ctx, "configuration", "warning", w.String())
	}
	f.listed(ctx, wrong, nil)
	f.apply(ctx, wanted)
	restart := needRestart(f.first, c)
	f.state.succeeded(restart)
	f.log.InfoContext(ctx, "the configuration was reloaded", "config", f.from.path, "changed", changed)
	if len(restart) > 0 {
		f.log.WarnContext(ctx, "settings have changed that a reload cannot apply: restart notifyd", "settings", restart)
	}
	f.tell(ctx, func() error { return f.sd.Ready(ctx, "delivering") })
	f.note(ctx, "")
}

// note writes down for "notifyd reload" why a file was refused, or with "" that it was taken.
func (f *fleet) note(ctx context.Context, why string) {
	f.each(func(m *member) {
		live := m.relay()
		if live == nil || live.Health().DatabaseDown {
			return
		}
		if err := live.Relay().ReloadRefused(ctx, why); err != nil {
			m.log.DebugContext(ctx, "the outcome of the reload cannot be written down", "err", err)
		}
	})
}

// each calls do for each member, for a few of them at the same time.
func (f *fleet) each(do func(m *member)) {
	var work sync.WaitGroup
	limit := make(chan struct{}, scrapesAtOnce)
	for _, m := range f.all() {
		limit <- struct{}{}
		work.Go(func() {
			defer func() { <-limit }()
			do(m)
		})
	}
	work.Wait()
}

// check asks the databases of outboxes that are relayed, and would be relayed otherwise, whether that could
// work. What does not answer is no mistake.
func (f *fleet) check(ctx context.Context, wanted map[string]*config.Config) error {
	var mu sync.Mutex
	var errs []error
	f.each(func(m *member) {
		c := wanted[m.name]
		if c == nil || config.SameWork(m.config, c) || m.health() != nil {
			return
		}
		if err := f.checkOne(ctx, c); err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, fmt.Errorf("outbox %s: %w", m.name, err))
		}
	})
	return errors.Join(errs...)
}

func (f *fleet) checkOne(ctx context.Context, c *config.Config) error {
	g, err := newGeneration(ctx, c, f.from, nil, newLogger(io.Discard, c.Log))
	if err != nil {
		return err
	}
	return errors.Join(g.check(ctx, true), g.close(), g.closeAlerts())
}
