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
)

// Dispatcher delivers through lanes what an engine hands to them. Destinations and
// routes are added before the engine runs, from one goroutine.
type Dispatcher struct {
	cfg      Config
	log      *slog.Logger
	observer Observer
	lanes    []*lane
	byName   map[string]*lane
	router   *router
	health   *health

	workCtx    context.Context //nolint:containedctx // ends all deliveries; made by Begin, cancelled by Drain
	cancelWork context.CancelCauseFunc
}

// New returns a dispatcher without destinations. The observer may be nil.
func New(cfg Config, observer Observer, log *slog.Logger) (*Dispatcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if observer == nil {
		observer = nobody{}
	}
	return &Dispatcher{
		cfg: cfg, log: log, observer: observer, byName: make(map[string]*lane), router: newRouter(),
		health: &health{log: log, observer: observer},
	}, nil
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
	l.observer = d.observer
	d.lanes = append(d.lanes, l)
	d.byName[name] = l
	return nil
}

// Route sends the event types that pattern matches to the named destinations.
// The most exact pattern wins: the type itself, then the longest prefix, then "*".
func (d *Dispatcher) Route(pattern string, names ...string) error {
	if err := CheckPattern(pattern); err != nil {
		return err
	}
	var lanes []Lane
	seen := make(map[string]bool)
	for _, name := range names {
		l := d.byName[name]
		if l == nil {
			return fmt.Errorf("route %q: %w %q: there is none of that name", pattern, ErrDestination, name)
		}
		if !seen[name] {
			lanes = append(lanes, Lane{l})
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
		names[i] = l.Name()
	}
	return names
}

// ReportDatabase takes how a connection has found the database: nil if it answers. An
// outage is logged and reported once, however many connections find out.
func (d *Dispatcher) ReportDatabase(err error) { d.health.report(err) }

// drain lets the engine and the lanes come to their end.
func (d *Dispatcher) drain(engine *sync.WaitGroup) error {
	for _, l := range d.lanes {
		l.drop()
	}
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		engine.Wait() // they may still hand out what they had just claimed
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
	d.cancelWork(ErrStopping)
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

// ErrShutdownIncomplete is returned by Drain if handlers were still running some
// time after their contexts had been cancelled.
var ErrShutdownIncomplete = errors.New("handlers did not return after their contexts were cancelled")

func shutdownError(names []string) error {
	return fmt.Errorf("%w: %v", ErrShutdownIncomplete, names)
}
