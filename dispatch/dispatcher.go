package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Config bounds a [Dispatcher]. DefaultConfig has the defaults; every field
// must be set.
type Config struct {
	// Claims is how many claims may be in flight, each with a session.
	Claims int
	// Batch is the largest number of events in one claim.
	Batch int
	// Bytes bounds the payloads of one claim together, so that Claims times
	// Bytes bounds what is in memory. A larger event is claimed alone.
	Bytes int
	// LockBudget is how long a claim's transaction may wait for handlers.
	LockBudget time.Duration
	// Lease is how long the lease of a slower delivery lasts without renewal.
	Lease time.Duration
	// PollInterval is how often the table is looked at without being told to.
	PollInterval time.Duration
	// ShutdownTimeout is how long running deliveries may finish after Run's
	// context has ended.
	ShutdownTimeout time.Duration
}

// DefaultConfig returns the limits of a relay that sets none.
func DefaultConfig() Config {
	return Config{
		Claims: 4, Batch: 1000, Bytes: 8 << 20, LockBudget: 100 * time.Millisecond, Lease: 30 * time.Second,
		PollInterval: time.Second, ShutdownTimeout: 20 * time.Second,
	}
}

// Validate returns every mistake in c, joined.
func (c Config) Validate() error {
	var errs []error
	if c.Claims < 1 {
		errs = append(errs, fmt.Errorf("claims in flight of %d are below 1", c.Claims))
	}
	if c.Batch < 1 {
		errs = append(errs, fmt.Errorf("batch of %d is below 1", c.Batch))
	}
	if c.Bytes < 1 {
		errs = append(errs, fmt.Errorf("batch bytes of %d are below 1", c.Bytes))
	}
	if c.LockBudget < time.Millisecond || c.LockBudget > maxLockBudget {
		errs = append(errs, fmt.Errorf("lock budget of %v is not between 1ms and %v", c.LockBudget, maxLockBudget))
	}
	if c.Lease < minLease || c.Lease <= c.LockBudget {
		errs = append(errs, fmt.Errorf("lease of %v is not above the lock budget of %v and at least %v", c.Lease, c.LockBudget, minLease))
	}
	if c.PollInterval < time.Millisecond {
		errs = append(errs, fmt.Errorf("poll interval of %v is below 1ms", c.PollInterval))
	}
	if c.ShutdownTimeout < 0 {
		errs = append(errs, fmt.Errorf("shutdown timeout of %v is negative", c.ShutdownTimeout))
	}
	return errors.Join(errs...)
}

const (
	// maxLockBudget stays below the server's limit on idle transactions.
	maxLockBudget = 2 * time.Second
	// minLease leaves time for three renewals.
	minLease = time.Second
	// cancelGrace is how long cancelled handlers may take to return.
	cancelGrace = 5 * time.Second
	// lastWrite bounds writing the last answers down.
	lastWrite = 5 * time.Second
)

// Parts are what a [Dispatcher] works with. Sessions has one session for each
// claim in flight; they are used by Run only, and closed by whoever made them.
// Housekeeper, LineReader, SlotKeeper, Bell and Observer may be nil; without a LineReader
// the table must not have deliveries that wait for others, and without a
// SlotKeeper the relay must be the only one of the table.
type Parts struct {
	Sessions    []Session
	LeaseKeeper LeaseKeeper
	Housekeeper Housekeeper
	LineReader  LineReader
	SlotKeeper  SlotKeeper
	Bell        Bell
	Observer    Observer
	Log         *slog.Logger
}

// Dispatcher claims events and delivers them through lanes. Destinations and
// routes are added before Run, from one goroutine.
type Dispatcher struct {
	cfg    Config
	parts  Parts
	log    *slog.Logger
	lanes  []*lane
	byName map[string][]*lane // one lane each
	router *router
	health *health
	sched  *scheduler
	leases *leases
	ringer *ringer

	stopping   chan struct{}   // closed when Run begins to stop
	workCtx    context.Context //nolint:containedctx // ends all deliveries; made by New, cancelled by Run
	cancelWork context.CancelCauseFunc
}

// New returns a dispatcher without destinations.
func New(cfg Config, parts Parts) (*Dispatcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(parts.Sessions) != cfg.Claims {
		return nil, fmt.Errorf("%d sessions for %d claims in flight", len(parts.Sessions), cfg.Claims)
	}
	if parts.Observer == nil {
		parts.Observer = nobody{}
	}
	d := &Dispatcher{
		cfg: cfg, parts: parts, log: parts.Log, byName: make(map[string][]*lane), router: newRouter(),
		health: &health{log: parts.Log, observer: parts.Observer}, stopping: make(chan struct{}),
	}
	d.ringer = &ringer{bell: parts.Bell, health: d.health, orders: make(chan bellOrder, 1), rates: make(chan float64, 1)}
	d.sched = newScheduler(cfg, nil, d.router, d.ringer)
	d.ringer.rang, d.ringer.queued = d.sched.rang, d.sched.queued
	d.leases = &leases{
		began:  time.Now(),
		keeper: parts.LeaseKeeper, length: cfg.Lease, log: parts.Log, health: d.health,
		retryIn: d.sched.dueIn, moved: d.sched.moved, wake: make(chan struct{}, 1), held: make(map[int64]lease),
	}
	d.leases.cond.L = &d.leases.mu
	d.leases.tokens.last = time.Now().UnixNano() // tokens of an earlier life do not come back
	return d, nil
}

// ErrDestination is wrapped by errors about a destination's name.
var ErrDestination = errors.New("invalid destination")

// Add adds a destination. Its name is stored with every delivery that has to
// be tried again, so it should stay the same from run to run.
func (d *Dispatcher) Add(name string, h Handler, cfg LaneConfig) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it has no name", ErrDestination)
	case h == nil:
		return fmt.Errorf("%w %q: it has no handler", ErrDestination, name)
	case d.byName[name] != nil:
		return fmt.Errorf("%w %q: the name is taken", ErrDestination, name)
	}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w %q: %w", ErrDestination, name, err)
	}
	l := newLane(name, h, cfg, d.cfg.LockBudget/2, d.log)
	l.onRoom, l.observer = d.sched.room, d.parts.Observer
	d.lanes = append(d.lanes, l)
	d.byName[name] = []*lane{l}
	d.sched.serve(d.lanes)
	return nil
}

// Route sends the event types that pattern matches to the named destinations.
// The most exact pattern wins: the type itself, then the longest prefix, then "*".
func (d *Dispatcher) Route(pattern string, names ...string) error {
	if err := CheckPattern(pattern); err != nil {
		return err
	}
	var lanes []*lane
	seen := make(map[string]bool)
	for _, name := range names {
		l := d.byName[name]
		if l == nil {
			return fmt.Errorf("route %q: %w %q: there is none of that name", pattern, ErrDestination, name)
		}
		if !seen[name] {
			lanes = append(lanes, l...)
		}
		seen[name] = true
	}
	if len(lanes) == 0 {
		return fmt.Errorf("route %q: %w: it names none", pattern, ErrDestination)
	}
	return d.router.add(pattern, lanes)
}

// Has reports whether there is a destination of that name.
func (d *Dispatcher) Has(name string) bool { return d.byName[name] != nil }

// Routed reports whether a route matches the event type.
func (d *Dispatcher) Routed(eventType string) bool { return d.router.find(eventType) != nil }

// DestinationsOf returns the names of the destinations of an event type, none if
// no route matches. It may be called while the dispatcher runs.
func (d *Dispatcher) DestinationsOf(eventType string) []string {
	lanes := d.router.find(eventType)
	names := make([]string, len(lanes))
	for i, l := range lanes {
		names[i] = l.name
	}
	return names
}

// ReportDatabase takes word of how whoever is about to call Run finds the
// database: nil if it answers. It is logged, told and counted like the rest.
func (d *Dispatcher) ReportDatabase(err error) { d.health.report(err) }

// SettledBelow returns an id below which hardly any event is still fresh: one
// whose id was drawn long before its transaction wrote is the exception.
func (d *Dispatcher) SettledBelow() int64 { return d.sched.settledBelow() }

// Wake takes the id of an event that has just been committed. It never blocks.
func (d *Dispatcher) Wake(id int64) { d.sched.hint(id) }

// Look takes word that notifications may have been missed. It never blocks.
func (d *Dispatcher) Look() { d.sched.look() }

// Ready is closed after the table has been looked at for the first time.
func (d *Dispatcher) Ready() <-chan struct{} { return d.sched.ready }

// Run claims and delivers until ctx ends, then stops in order: nothing more is
// claimed, what runs may finish within the shutdown timeout, then it is
// cancelled and given back without counting an attempt. It returns nil, or
// [ErrShutdownIncomplete]. Run can be called once.
func (d *Dispatcher) Run(ctx context.Context) error {
	d.workCtx, d.cancelWork = context.WithCancelCause(context.WithoutCancel(ctx))
	defer d.cancelWork(errStopping)
	defer d.health.settle(0) // nobody waits for calm any more
	for _, l := range d.lanes {
		l.ctx = d.workCtx //nolint:fatcontext // one context for all, not one inside the other
	}
	// Three circles, stopped from the outside in: who claims, who delivers,
	// who writes late answers and keeps leases.
	var claimers, keepers sync.WaitGroup
	slots := &slotHolder{d: d, keeper: d.parts.SlotKeeper}
	if slots.keeper != nil {
		slots.begin(ctx)
	}
	d.loadLines(ctx)
	for i, session := range d.parts.Sessions {
		c := &claimer{d: d, session: session, log: d.log.With("claimer", i)}
		claimers.Go(func() { c.run(ctx) })
	}
	keepCtx, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	defer stopKeeping()
	keepers.Go(func() { d.leases.run(keepCtx, lastWrite) })
	keepers.Go(func() { d.ringer.run(keepCtx) })
	keepers.Go(func() { d.keepHouse(keepCtx) })
	if slots.keeper != nil {
		keepers.Go(func() { slots.run(ctx) })
	}

	<-ctx.Done()
	close(d.stopping)
	d.sched.stop()
	err := d.drain(&claimers)
	stopKeeping()
	keepers.Wait()
	return err
}

// drain lets claimers and lanes come to their end.
func (d *Dispatcher) drain(claimers *sync.WaitGroup) error {
	for _, l := range d.lanes {
		answerAll(l.drop())
	}
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		claimers.Wait() // they may still hand out what they had just claimed
		for _, l := range d.lanes {
			l.workers.Wait()
		}
	}()
	patience := time.NewTimer(d.cfg.ShutdownTimeout)
	defer patience.Stop()
	select {
	case <-idle:
		return nil
	case <-patience.C:
		d.log.Warn("deliveries did not finish within the shutdown timeout and are cancelled", "shutdown_timeout", d.cfg.ShutdownTimeout)
	}
	d.cancelWork(errStopping)
	grace := time.NewTimer(cancelGrace)
	defer grace.Stop()
	select {
	case <-idle:
		return nil
	case <-grace.C:
		var names []string
		for _, l := range d.lanes {
			if l.busy() {
				names = append(names, l.name)
			}
		}
		return shutdownError(names)
	}
}

// waitStopped waits for d, or until the relay stops.
func (d *Dispatcher) waitStopped(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-d.stopping:
	case <-timer.C:
	}
}

// waitWork waits for d, or until deliveries are cancelled.
func (d *Dispatcher) waitWork(pause time.Duration) { sleep(d.workCtx, pause) }

// houseEvery is the longest time between two looks, however seldom the table is
// polled: what a dead relay had in hand is not to wait for that.
const houseEvery = time.Second

// keepHouse looks after leases of relays that are gone, and after events that
// had no route when they came.
func (d *Dispatcher) keepHouse(ctx context.Context) {
	if d.parts.Housekeeper == nil {
		return
	}
	failing := reconnectPauses()
	read := time.Now()
	for ctx.Err() == nil {
		if time.Since(read) >= readLinesEvery {
			if err := d.readLines(ctx, d.sched.shares()); ctx.Err() == nil {
				d.health.report(err)
			}
			read = time.Now()
		}
		n, err := d.parts.Housekeeper.TakeOver(ctx, d.leases.tokens.now)
		if err == nil && n > 0 {
			d.leases.taken.Add(uint64(n))
			d.log.WarnContext(ctx, "took over deliveries of a relay that is gone, or whose answers the database has lost", "deliveries", n)
			d.sched.due()
		}
		if err == nil {
			n, err = d.parts.Housekeeper.Reroute(ctx, d.Routed)
			if err == nil && n > 0 {
				d.log.InfoContext(ctx, "event types that had no route have one now", "event_types", n)
				d.sched.due()
			}
		}
		if ctx.Err() == nil {
			d.health.report(err)
		}
		pause := jittered(min(d.cfg.PollInterval, houseEvery))
		if err != nil {
			pause = max(pause, failing.NextBackOff())
		} else {
			failing.Reset()
		}
		sleep(ctx, pause)
	}
}
