package daemon

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

	"github.com/notifyd/notifyd/cmd/internal/outboxes"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/systemd"
	"github.com/notifyd/notifyd/internal/admin"
	pace "github.com/notifyd/notifyd/internal/login"
	"github.com/notifyd/notifyd/internal/store"
)

// supervisor runs a member for each outbox. Only the goroutine of run starts and stops members. The admin server
// and the reports to the service manager may read at any time.
type supervisor struct {
	from  origin
	load  func() (*config.Config, error)
	out   io.Writer      // of logs
	first *config.Config // the configuration of the parts that outlive reloads
	spans *tracer
	sd    *systemd.Notifier
	state *reloadState

	// What differs between one outbox and many.
	many   bool                                            // members have names, which logs, metrics and errors state
	once   bool                                            // do not replace a relay that ends; the daemon ends when all have ended
	opener func(c *config.Config, log *slog.Logger) opener // many outboxes share the handlers of destinations

	metrics outboxMetrics
	console *webConsole // nil for none
	tokens  tokens

	// For the goroutine of run.
	config  *config.Config // in force
	log     *slog.Logger
	logins  pace.Gate        // of the query that is repeated; a reload is not held back
	sharing sharing          // the listening connections of outboxes of one database
	unclean map[string]error // errors of removed outboxes whose last delivery still runs

	alerting  sync.WaitGroup // alerters of relays that have ended
	ended     chan struct{}  // capacity 1: a member has ended
	ready     chan struct{}  // closed when the first relay delivers, or if no outbox exists
	readyOnce sync.Once

	mu      sync.Mutex // guards the fields below
	members map[string]*member
	known   bool  // which outboxes there are has been found out
	wrong   error // rows of the query that describe no outbox, or why it failed
}

const (
	// scrapesAtOnce bounds the connections that a scrape, or a reload, opens at the same time.
	scrapesAtOnce = 4
	// noteEvery is the time between two attempts to store the outcome of a reload.
	noteEvery = time.Second
)

func newSupervisor(
	c *config.Config, from origin, load func() (*config.Config, error), out io.Writer,
	spans *tracer, sd *systemd.Notifier, log *slog.Logger,
) *supervisor {
	s := &supervisor{
		from:    from,
		load:    load,
		out:     out,
		first:   c,
		spans:   spans,
		sd:      sd,
		state:   &reloadState{success: true, read: time.Now()},
		many:    c.Outboxes.Used(),
		once:    from.untilIdle || !c.Outboxes.Used(),
		opener:  ownHandlers,
		config:  c,
		log:     log,
		unclean: make(map[string]error),
		ended:   make(chan struct{}, 1),
		ready:   make(chan struct{}),
		members: make(map[string]*member),
		metrics: outboxMetrics{
			registry: newRegistry(from.version),
			many:     c.Outboxes.Used(),
			limit:    make(chan struct{}, scrapesAtOnce),
		},
	}

	if s.many {
		s.opener = newSharedHandlers().opener
		s.metrics.registry.MustRegister(outboxCollector{s})
	}

	s.metrics.registry.MustRegister(s.state.metrics()...)
	return s
}

// run delivers events until ctx ends. It then stops all members and returns their errors. If once is set, run also
// returns when every relay has ended, with the reasons of those that failed.
func (s *supervisor) run(ctx context.Context, reloads <-chan struct{}) error {
	ctx = pace.With(ctx, new(pace.Accounts))
	listed := s.listed(s.config)

	only, err := s.buildOnly(ctx, listed)
	if err != nil {
		return err
	}

	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx)) // it answers while the relays stop
	defer stopServing()
	s.metrics.ctx = serving //nolint:fatcontext // one for the life of the daemon

	closed, err := startAdmin(serving, s)
	if err != nil {
		return errors.Join(err, only.abandon())
	}
	defer func() {
		stopServing()
		closed()
	}()

	s.logStart(ctx, only)

	stopTelling := tellManager(ctx, s.sd, view{s}, s.log)
	defer stopTelling()
	defer s.endAll()

	s.apply(ctx, listed, map[string]*generation{"": only})
	if s.config.Outboxes.Query == "" {
		s.found(ctx, nil, nil)
	} else {
		s.look(ctx)
	}

	return s.watch(ctx, reloads)
}

// watch handles reloads and repeats the query, until ctx ends or, if once is set, every relay has ended. It returns
// why relays failed or did not stop cleanly.
func (s *supervisor) watch(ctx context.Context, reloads <-chan struct{}) error {
	for ctx.Err() == nil && !s.over() {
		var due <-chan time.Time // of the query, if there is one
		if s.config.Outboxes.Query != "" {
			due = time.After(s.untilLook())
		}

		var again <-chan time.Time // while a database does not answer
		if slices.ContainsFunc(s.all(), func(m *member) bool { return m.outcome != nil }) {
			again = time.After(noteEvery)
		}

		select {
		case <-ctx.Done():
		case <-s.ended:
		case <-reloads:
			s.reload(ctx)
		case <-due:
			s.look(ctx)
		case <-again:
			s.note(ctx)
		}
	}

	s.endAll()
	errs := s.errors((*member).unstopped)
	if s.once { // a relay that failed has no successor
		errs = errors.Join(errs, s.errors((*member).failure))
	}
	return errs
}

// buildOnly builds the relay of the only outbox, or returns nil if there are many. A mistake in the file ends the
// daemon before anything has started.
func (s *supervisor) buildOnly(ctx context.Context, listed map[string]*config.Config) (*generation, error) {
	if s.many {
		return nil, nil //nolint:nilnil // many are built when they start
	}

	g, err := s.build(ctx, "", listed[""])
	if err != nil {
		return nil, err
	}

	s.member("").use(g.relay)
	return g, nil
}

// listed returns the configurations of the outboxes in the file, by name. The only outbox has the name "".
func (s *supervisor) listed(c *config.Config) map[string]*config.Config {
	if !s.many {
		return map[string]*config.Config{"": c}
	}
	return configsOf(c, c.Outboxes.List)
}

// find returns the configurations of all outboxes, by name. wrong describes rows of the query that are not valid.
func (s *supervisor) find(ctx context.Context, c *config.Config) (wanted map[string]*config.Config, wrong, err error) {
	if !s.many {
		return s.listed(c), nil, nil
	}

	all, wrong, err := outboxes.Find(ctx, c)
	return configsOf(c, all), wrong, err
}

func configsOf(c *config.Config, all []config.Outbox) map[string]*config.Config {
	wanted := make(map[string]*config.Config, len(all))
	for i := range all {
		wanted[all[i].Name] = c.For(&all[i])
	}
	return wanted
}

// look sends the query for outboxes, and starts and stops members accordingly. If the query fails, the members keep
// running.
func (s *supervisor) look(ctx context.Context) {
	who := s.config.Database.URL.Reveal()
	err := s.logins.Refusal(who)

	var wanted map[string]*config.Config
	var wrong error
	if err == nil {
		wanted, wrong, err = s.find(ctx, s.config)
	}

	if ctx.Err() != nil {
		return
	}

	if store.IsLogin(err) {
		s.logins.Refused(who, err)
	}

	s.found(ctx, wrong, err)
	if err == nil {
		s.apply(ctx, wanted, nil)
	}
}

// found records the result of the query. It logs a problem once, until the problem changes.
func (s *supervisor) found(ctx context.Context, wrong, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	before := s.wrong
	s.wrong = errors.Join(err, wrong)
	s.known = err == nil
	if s.wrong == nil || before != nil && before.Error() == s.wrong.Error() {
		return
	}

	if err != nil {
		s.log.WarnContext(ctx, "outboxes cannot be listed", "err", cli.OneLine(err))
		return
	}

	s.log.WarnContext(ctx, "outbox rows ignored", "err", cli.OneLine(wrong))
}

// apply stops the outboxes that are gone or have changed, and then starts new and changed ones. next has the
// generations that prepare has built. All old handlers are closed before new relays start: an old producer could
// still send records after its successor. Members that have not changed keep running.
func (s *supervisor) apply(ctx context.Context, wanted map[string]*config.Config, next map[string]*generation) {
	var ending sync.WaitGroup
	var added, removed, changed []string
	paused := time.Now()

	for name, c := range wanted {
		switch m := s.member(name); {
		case m.config == nil:
			added = append(added, name)
		case next[name] != nil || !config.SameWork(m.config, c):
			changed = append(changed, name)
			ending.Go(m.end)
		}
	}
	for _, m := range s.all() {
		if wanted[m.name] == nil {
			removed = append(removed, m.name)
			ending.Go(m.end)
		}
	}

	ending.Wait()
	for _, name := range slices.Concat(removed, changed) {
		m := s.member(name)
		if err := m.unstopped(); err != nil {
			m.log.WarnContext(ctx, "previous relay did not end cleanly", "err", err)
		}
	}
	for _, name := range removed {
		s.forget(name)
	}

	for _, name := range slices.Concat(added, changed) {
		m := s.member(name)
		if ctx.Err() != nil || !s.many && m.failure() != nil { // the daemon ends
			_ = next[name].abandon()
			continue
		}

		since := paused
		if !slices.Contains(changed, name) {
			since = time.Time{}
		}
		m.start(ctx, wanted[name], next[name], since)
	}

	if ctx.Err() == nil {
		s.console.follow(ctx, wanted, s.member)
	}
	if s.many && len(added)+len(removed)+len(changed) > 0 {
		for _, names := range [][]string{added, removed, changed} {
			slices.Sort(names)
		}
		s.log.InfoContext(ctx, "outboxes", "all", len(wanted), "added", added, "removed", removed, "changed", changed)
	}

	if len(wanted) == 0 && s.isKnown() {
		s.delivers()
	}
}

// reload reads the file again and replaces the relays that it changes. The only outbox is always replaced, because
// files that the configuration names may differ. A file with mistakes changes nothing.
func (s *supervisor) reload(ctx context.Context) {
	s.log.InfoContext(ctx, "reloading the configuration", "config", s.from.path)
	s.tell(ctx, func() error { return s.sd.Reloading(ctx, "reloading the configuration") })

	r, err := s.prepare(ctx)
	if err != nil || ctx.Err() != nil {
		r.abandon()
		if ctx.Err() == nil {
			s.refuse(ctx, err)
		}
		return
	}

	changed := config.Diff(s.config, r.config).Names()
	s.config = r.config
	s.log = newLogger(s.out, r.config)
	for _, w := range r.config.Warnings {
		s.log.WarnContext(ctx, "configuration", "warning", w.String())
	}

	s.found(ctx, r.wrong, nil)
	s.apply(pace.With(ctx, new(pace.Accounts)), r.wanted, r.next) // a reload is not held back

	if ctx.Err() != nil {
		return
	}
	if s.tokens.replace(r.config) {
		s.console.logOut()
	}

	restart := NeedRestart(s.first, r.config)
	s.state.succeeded(restart)

	s.log.InfoContext(ctx, "configuration reloaded", "config", s.from.path, "changed", changed)
	if len(restart) > 0 {
		s.log.WarnContext(ctx, "changed settings need a restart", "settings", restart)
	}

	s.tell(ctx, func() error { return s.sd.Ready(ctx, "delivering") })
	for _, m := range s.all() {
		m.outcome = nil
		if r.next[m.name] == nil { // its relay is not new
			m.outcome = new(string)
		}
	}
	s.note(ctx)
}

// refuse reports that the reload failed. The previous configuration stays in force.
func (s *supervisor) refuse(ctx context.Context, err error) {
	s.state.failed(err)
	s.log.ErrorContext(ctx, "configuration refused: the previous one stays in force", "config", s.from.path, "err", cli.OneLine(err))
	s.tell(ctx, func() error {
		return s.sd.Ready(ctx, "delivering with the previous configuration, because the reload failed: see the log")
	})

	why := cli.OneLine(err)
	for _, m := range s.all() {
		m.outcome = &why
	}
	s.note(ctx) // last: it may take a while
}

// note stores the outcome of the last reload with the relays that do not have it yet.
func (s *supervisor) note(ctx context.Context) {
	s.each(func(m *member) { m.note(ctx) })
}

// reloaded is the result of reading the file again: its outboxes, and the generations to start.
type reloaded struct {
	config *config.Config
	wanted map[string]*config.Config
	wrong  error // rows of the query that describe no outbox

	mu   sync.Mutex // guards next while generations are built
	next map[string]*generation
}

func (r *reloaded) abandon() {
	for _, g := range r.next {
		_ = g.abandon()
	}
}

// prepare reads the file. It builds and checks the next generation of each member that has a relay and must change.
// Other members build theirs when they start, so that an outbox that is down does not block a reload.
func (s *supervisor) prepare(ctx context.Context) (r *reloaded, err error) {
	r = &reloaded{next: make(map[string]*generation)}
	r.config, err = s.load()
	if err != nil {
		return r, err
	}

	if r.config.Outboxes.Used() != s.many {
		return r, errors.New("outboxes: a reload does not lead from one outbox to many, or back: restart notifyd")
	}
	if err := outboxes.CheckURLs(r.config); err != nil {
		return r, err
	}

	r.wanted, r.wrong, err = s.find(ctx, r.config)
	if err != nil {
		return r, err
	}

	var errs []error
	s.each(func(m *member) {
		c := r.wanted[m.name]
		if !s.mustReplace(m, c) {
			return
		}

		g, err := s.build(ctx, m.name, c)
		if err == nil {
			err = g.check(ctx, !config.Diff(m.config, c).Touches("database."))
		}

		r.mu.Lock()
		defer r.mu.Unlock()
		if g != nil {
			r.next[m.name] = g
		}
		if err != nil {
			errs = append(errs, s.of(m.name, err))
		}
	})

	return r, errors.Join(errs...)
}

// mustReplace reports whether a reload builds another relay for a member whose configuration is c, nil if the outbox is
// gone. A member whose relay does not work builds the next one when it starts. A relay that begins works.
func (s *supervisor) mustReplace(m *member, c *config.Config) bool {
	switch {
	case c == nil, m.failure() != nil:
		return false
	case !s.many:
		return true
	case config.SameWork(m.config, c):
		return false
	}

	err := m.health()
	begins := errors.Is(err, admin.ErrNotReady) && m.relay() != nil
	return err == nil || begins
}

// build builds the generation of an outbox.
func (s *supervisor) build(ctx context.Context, name string, c *config.Config) (*generation, error) {
	from := s.from
	from.outbox = name
	from.open = s.opener(c, newLogger(s.out, c))
	if s.many {
		from.shared = s.sharing.of(c, newLogger(s.out, c))
	}
	return newGeneration(ctx, c, from, s.spans, s.logOf(name, newLogger(s.out, c)))
}

// member returns the member with that name. It creates a missing one.
func (s *supervisor) member(name string) *member {
	s.mu.Lock()
	defer s.mu.Unlock()

	if m := s.members[name]; m != nil {
		return m
	}

	m := &member{
		name:     name,
		once:     s.once,
		log:      s.logOf(name, s.log),
		unclean:  s.unclean[name],
		alerting: &s.alerting,
		over:     make(chan struct{}),
		ready:    s.delivers,
		build:    func(ctx context.Context, c *config.Config) (*generation, error) { return s.build(ctx, name, c) },
		ended: func() {
			select {
			case s.ended <- struct{}{}:
			default: // run has not seen the one before yet
			}
		},
	}

	m.begun = func(relay *live) {
		if err := s.metrics.register(name, relay); err != nil {
			m.log.Error("bug: metrics of an outbox cannot be shown", "err", err)
		}
	}

	s.members[name] = m
	return m
}

// forget removes a member that has ended.
func (s *supervisor) forget(name string) {
	m := s.member(name)
	if err := m.stuck(); err != nil {
		s.unclean[name] = err // should it come back
	}

	s.mu.Lock()
	delete(s.members, name)
	s.mu.Unlock()

	s.metrics.unregister(name, m.relay())
}

func (s *supervisor) endAll() {
	var ending sync.WaitGroup
	for _, m := range s.all() {
		ending.Go(m.end)
	}
	ending.Wait()
	s.alerting.Wait()
}

// all returns the members, by name.
func (s *supervisor) all() (all []*member) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		all = append(all, s.members[name])
	}
	return all
}

// each calls do for each member, for a few of them at the same time.
func (s *supervisor) each(do func(m *member)) {
	var work sync.WaitGroup
	limit := make(chan struct{}, scrapesAtOnce)
	for _, m := range s.all() {
		limit <- struct{}{}
		work.Go(func() {
			defer func() { <-limit }()
			do(m)
		})
	}
	work.Wait()
}

// errors joins what read returns for each member.
func (s *supervisor) errors(read func(*member) error) error {
	var errs []error
	for _, m := range s.all() {
		if err := read(m); err != nil {
			errs = append(errs, s.of(m.name, err))
		}
	}
	return errors.Join(errs...)
}

// of adds the name of the outbox to an error, if there are many.
func (s *supervisor) of(name string, err error) error {
	if !s.many {
		return err
	}
	return fmt.Errorf("outbox %s: %w", name, err)
}

// logOf returns the logger of an outbox.
func (s *supervisor) logOf(name string, log *slog.Logger) *slog.Logger {
	if !s.many {
		return log
	}
	return log.With("outbox", name)
}

// over reports whether the daemon has nothing left to run.
func (s *supervisor) over() bool {
	return s.once && s.isKnown() && !slices.ContainsFunc(s.all(), func(m *member) bool {
		select {
		case <-m.over:
			return false
		default:
			return true
		}
	})
}

func (s *supervisor) isKnown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

// listing returns why the outboxes could not be listed, or not all of them; nil if they could.
func (s *supervisor) listing() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.wrong == nil && !s.known {
		return errUnlisted
	}
	return s.wrong
}

// only returns the relay of the only outbox; nil if there are many.
func (s *supervisor) only() *live {
	s.mu.Lock()
	m := s.members[""]
	s.mu.Unlock()

	if m == nil {
		return nil
	}
	return m.relay()
}

// untilLook returns the time until the next query. After a failed query it is shorter.
func (s *supervisor) untilLook() time.Duration {
	if !s.isKnown() {
		return min(firstRetry, s.config.Outboxes.Every)
	}
	return s.config.Outboxes.Every
}

// delivers marks the daemon as ready.
func (s *supervisor) delivers() { s.readyOnce.Do(func() { close(s.ready) }) }

// tell notifies the service manager, unless the daemon is not ready: then READY=1 is still to come, and must
// not be sent for the reload.
func (s *supervisor) tell(ctx context.Context, say func() error) {
	select {
	case <-s.ready:
		if err := say(); err != nil {
			s.log.DebugContext(ctx, "service manager not notified", "err", err)
		}
	default:
	}
}

// logStart logs the configuration, one fact per line. only is the relay of the only outbox, or nil.
func (s *supervisor) logStart(ctx context.Context, only *generation) {
	s.log.InfoContext(ctx, "notifyd starting", "version", s.from.version, "config", s.from.path)

	if only != nil {
		db := only.pool.Config().ConnConfig
		s.log.InfoContext(ctx, "database", "host", db.Host, "port", db.Port, "database", db.Database,
			"user", db.User, "schema", s.config.Database.Schema)
	}

	for _, d := range s.config.Destinations {
		s.log.InfoContext(ctx, "destination", "name", d.Name, "type", d.Type,
			"concurrency", d.Concurrency, "max_attempts", d.MaxAttempts)
	}

	for _, r := range s.config.Routes {
		args := []any{"match", r.Match, "to", r.To}
		if f := r.Filter(); f != nil {
			args = append(args, "when", f.String())
		}
		s.log.InfoContext(ctx, "route", args...)
	}
}
