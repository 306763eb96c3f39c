package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/config"
	pace "github.com/notifyd/notifyd/internal/login"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/systemd"
)

// fleet runs a relay for each of many outboxes. One goroutine, that of run, finds out which there are, and
// starts and stops them; readers of figures may call the rest at any time.
type fleet struct {
	load    func() (*config.Config, error)
	from    origin
	out     io.Writer      // of logs
	first   *config.Config // the configuration of the parts that outlive reloads
	spans   *tracer
	sd      *systemd.Notifier
	state   *reloadState
	shared  *sharedHandlers
	scrapes chan struct{} // bounds the queries of a scrape
	// registry has the metrics of the outboxes, if they are served.
	registry outboxRegistry

	config *config.Config // in force
	log    *slog.Logger

	logins pace.Gate // of the query that is repeated; a reload is not held back

	ended     chan struct{} // capacity 1: a member has ended
	ready     chan struct{} // closed once an outbox is relayed, or there is none
	readyOnce sync.Once

	mu      sync.Mutex // guards the fields below
	members map[string]*member
	known   bool  // which outboxes there are has been found out
	wrong   error // rows of the query that describe no outbox, or that it failed
}

// scrapesAtOnce bounds the connections that a scrape opens at the same time.
const scrapesAtOnce = 4

func newFleet(c *config.Config, from origin, load func() (*config.Config, error), out io.Writer, spans *tracer, sd *systemd.Notifier, log *slog.Logger) *fleet {
	return &fleet{
		load: load, from: from, out: out, first: c, spans: spans, sd: sd, log: log, config: c,
		state: &reloadState{success: true, read: time.Now()}, shared: newSharedHandlers(), scrapes: make(chan struct{}, scrapesAtOnce),
		ended: make(chan struct{}, 1), ready: make(chan struct{}), members: make(map[string]*member),
	}
}

// serve runs the relays, and reports them to the admin server and to systemd meanwhile.
func (f *fleet) serve(ctx context.Context, reloads <-chan struct{}) error {
	stopAdmin, err := startAdmin(ctx, f.config, f.from.path, f.shown(), f.log)
	if err != nil {
		return err
	}
	defer stopAdmin()
	f.log.InfoContext(ctx, "notifyd starts", "version", readBuildInfo().Version, "config", f.from.path)
	logRoutes(ctx, f.config, f.log)
	stopTelling := tellManager(ctx, f.sd, f, f.log)
	defer stopTelling()
	return f.run(ctx, reloads)
}

// run relays all outboxes until ctx ends, and then stops them together. With untilIdle it returns once each has ended by
// itself, and returns why those did that were not idle.
func (f *fleet) run(ctx context.Context, reloads <-chan struct{}) error {
	defer f.endAll()
	f.look(ctx)
	timer := time.NewTimer(f.next())
	defer timer.Stop()
	for !f.idle() {
		select {
		case <-ctx.Done():
			return nil
		case <-f.ended:
		case <-reloads:
			f.reload(ctx)
		case <-timer.C:
			if f.config.Outboxes.Query != "" {
				f.look(ctx)
			}
		}
		timer.Reset(f.next())
	}
	var failed []error
	for _, m := range f.all() {
		if err := m.failure(); err != nil {
			failed = append(failed, fmt.Errorf("outbox %s: %w", m.name, err))
		}
	}
	return errors.Join(failed...)
}

// idle reports whether it is known which outboxes there are, and all of them have ended by themselves.
func (f *fleet) idle() bool {
	return f.from.untilIdle && f.isListed() && !slices.ContainsFunc(f.all(), func(m *member) bool {
		select {
		case <-m.over:
			return false
		default:
			return true
		}
	})
}

func (f *fleet) isListed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known
}

// next is how long it is until the next look. A query that failed is repeated sooner.
func (f *fleet) next() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.known {
		return min(firstRetry, f.config.Outboxes.Every)
	}
	return f.config.Outboxes.Every
}

// look finds out which outboxes there are, and starts and stops what has changed. Where that fails, those
// that are known go on.
func (f *fleet) look(ctx context.Context) {
	who := f.config.Database.URL.Reveal()
	err := f.logins.Refusal(who)
	var wanted map[string]*config.Config
	var wrong error
	if err == nil {
		wanted, wrong, err = f.find(ctx, f.config)
	}
	if ctx.Err() != nil {
		return
	}
	if store.IsLogin(err) {
		f.logins.Refused(who, err)
	}
	f.listed(ctx, wrong, err)
	if err != nil {
		if f.alreadyKnown() {
			return
		}
		wanted = configsOf(f.config, f.config.Outboxes.List)
	}
	f.apply(ctx, wanted)
}

func (f *fleet) alreadyKnown() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.members) > 0
}

// find returns the configurations of all outboxes, by name, and what is wrong with rows that describe none.
func (f *fleet) find(ctx context.Context, c *config.Config) (wanted map[string]*config.Config, wrong, err error) {
	all, wrong, err := findOutboxes(ctx, c, f.from.path)
	return configsOf(c, all), wrong, err
}

// listed records what came of the query of the configuration in force. It logs what it has not logged just before.
func (f *fleet) listed(ctx context.Context, wrong, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.wrong
	f.wrong, f.known = errors.Join(err, wrong), err == nil
	if f.wrong == nil || before != nil && before.Error() == f.wrong.Error() {
		return
	}
	if err != nil {
		f.log.WarnContext(ctx, "the outboxes cannot be listed: those that are known go on", "err", oneLine(err))
		return
	}
	f.log.WarnContext(ctx, "rows that describe no outbox", "err", oneLine(wrong))
}

func configsOf(c *config.Config, all []config.Outbox) map[string]*config.Config {
	wanted := make(map[string]*config.Config, len(all))
	for i := range all {
		wanted[all[i].Name] = c.For(&all[i])
	}
	return wanted
}

// apply stops the outboxes that are gone or have changed, and starts the new ones. Between the two all
// handlers are closed that are no longer used: a producer with records on their way must not be overtaken
// by its successor. What has not changed is not touched.
func (f *fleet) apply(ctx context.Context, wanted map[string]*config.Config) {
	f.mu.Lock()
	members := maps.Clone(f.members)
	f.mu.Unlock()
	var ending sync.WaitGroup
	var added, removed, changed []string
	for name, m := range members {
		c := wanted[name]
		switch {
		case c == nil:
			removed = append(removed, name)
		case !config.SameWork(m.config, c):
			changed = append(changed, name)
		default:
			continue
		}
		ending.Go(m.end)
	}
	ending.Wait()
	for name := range wanted {
		if members[name] == nil {
			added = append(added, name)
		}
	}
	for _, name := range removed {
		f.forget(name)
	}
	for _, name := range slices.Concat(added, changed) {
		m := members[name]
		if m == nil {
			m = f.member(name)
		}
		m.start(ctx, wanted[name])
	}
	if len(added)+len(removed)+len(changed) > 0 {
		for _, names := range [][]string{added, removed, changed} {
			slices.Sort(names)
		}
		f.log.InfoContext(ctx, "outboxes", "all", len(wanted), "added", added, "removed", removed, "changed", changed)
	}
	if len(wanted) == 0 {
		f.delivers()
	}
}

// member makes the member of a new outbox.
func (f *fleet) member(name string) *member {
	m := &member{name: name, log: f.log.With("outbox", name), once: f.from.untilIdle, ready: f.delivers, ended: func() {
		select {
		case f.ended <- struct{}{}:
		default: // run has not seen the one before yet
		}
	}}
	m.begun = func(relay *live) {
		if err := f.registry.register(name, relay); err != nil {
			m.log.Error("bug: the metrics of an outbox cannot be shown", "err", err)
		}
	}
	m.build = func(ctx context.Context, c *config.Config) (*generation, error) {
		log := newLogger(f.out, c.Log).With("outbox", name)
		from := f.from
		from.outbox, from.open = name, f.shared.opener(newLogger(f.out, c.Log))
		return newGeneration(ctx, c, from, f.spans, log)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members[name] = m
	return m
}

// forget removes a member that has ended.
func (f *fleet) forget(name string) {
	f.mu.Lock()
	m := f.members[name]
	delete(f.members, name)
	f.mu.Unlock()
	if m != nil {
		f.registry.unregister(name, m.relay())
	}
}

func (f *fleet) endAll() {
	var ending sync.WaitGroup
	for _, m := range f.all() {
		ending.Go(m.end)
	}
	ending.Wait()
}

// all returns the members, by name.
func (f *fleet) all() (all []*member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.members)) {
		all = append(all, f.members[name])
	}
	return all
}

// delivers records that the fleet does its work.
func (f *fleet) delivers() { f.readyOnce.Do(func() { close(f.ready) }) }

// tell notifies the service manager, unless the daemon is not ready yet.
func (f *fleet) tell(ctx context.Context, say func() error) {
	select {
	case <-f.ready:
		if err := say(); err != nil {
			f.log.DebugContext(ctx, "the service manager cannot be notified", "err", err)
		}
	default:
	}
}
