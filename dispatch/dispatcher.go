package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/guard"
	"github.com/notifyd/notifyd/internal/limit"
	"github.com/notifyd/notifyd/observe"
)

// Config bounds a [Dispatcher].
type Config struct {
	// Window is how much work may wait in the memory of a lane, in time; above 0. A lane
	// that takes a fifth of it for one event is slow, see [QueueLane.Slow].
	Window time.Duration
	// ShutdownTimeout is how long running deliveries may finish once Drain is called.
	ShutdownTimeout time.Duration
	// Reserve takes from the rate limits that all relays share; nil if no destination has one.
	Reserve limit.Reserve
}

// validate returns every mistake in c, joined.
func (c Config) validate() error {
	var errs []error
	if c.Window <= 0 {
		errs = append(errs, fmt.Errorf("window of %v is not above 0", c.Window))
	}
	if c.ShutdownTimeout < 0 {
		errs = append(errs, fmt.Errorf("shutdown timeout of %v is negative", c.ShutdownTimeout))
	}
	return errors.Join(errs...)
}

// Dispatcher delivers through lanes what an engine hands to them. Destinations and
// routes are added before the engine runs, from one goroutine.
type Dispatcher struct {
	cfg      Config
	log      *slog.Logger
	observer delivery.Observer
	lanes    []*lane            // by destination, in the order in which the destinations were added, and by shard
	byName   map[string][]*lane // the lanes of a destination, by shard
	router   *router
	database *database
	refusals *refusals
	clock    clock

	workCtx    context.Context //nolint:containedctx // ends all deliveries; made by Begin, cancelled by Drain
	cancelWork context.CancelCauseFunc
}

// New returns a dispatcher without destinations. The observer may be nil.
func New(cfg Config, observer delivery.Observer, log *slog.Logger) (*Dispatcher, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if observer == nil {
		observer = noObserver{}
	}
	observer = guarded{observer, log}
	return &Dispatcher{
		cfg: cfg, log: log, observer: observer, byName: make(map[string][]*lane), router: newRouter(),
		database: &database{log: log, observer: observer}, refusals: &refusals{log: log, observer: observer},
	}, nil
}

// ErrDestination is wrapped by errors about a destination's name.
var ErrDestination = errors.New("invalid destination")

// errNoReserve is a limit that nothing is there to hold.
var errNoReserve = errors.New("a rate limit, and nothing that all relays take from")

// Add adds a destination, with one lane for each of its shards. Its name is stored with every delivery that is retried, so
// it should stay the same from run to run.
func (d *Dispatcher) Add(name string, h delivery.Handler, cfg LaneConfig) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it has no name", ErrDestination)
	case h == nil:
		return fmt.Errorf("%w %q: it has no handler", ErrDestination, name)
	case d.byName[name] != nil:
		return fmt.Errorf("%w %q: the name is taken", ErrDestination, name)
	}
	err := cfg.validate()
	if err == nil && !cfg.RateLimit.IsZero() && d.cfg.Reserve == nil {
		err = errNoReserve
	}
	if err != nil {
		return fmt.Errorf("%w %q: %w", ErrDestination, name, err)
	}
	cfg.Lane = cfg.WithDefaults()
	var lanes []*lane
	if err := guard.Call("KeepsOrder", func() { lanes = newLanes(name, h, cfg, d.cfg.Window, d.log) }); err != nil {
		return fmt.Errorf("%w %q: %w", ErrDestination, name, err)
	}
	for _, l := range lanes {
		l.observer, l.dest.clock = d.observer, &d.clock
		if !cfg.RateLimit.IsZero() {
			// One per lane: package limit bounds the sum for any number of limiters that reserve under one name.
			l.limiter = limit.New(name, limit.Rate{Rate: cfg.RateLimit, Burst: cfg.RateBurst}, cfg.RateKey != nil, d.cfg.Reserve)
		}
	}
	d.lanes = append(d.lanes, lanes...)
	d.byName[name] = lanes
	return nil
}

// QueueLanes returns the lanes for an engine that keeps no order, one for each destination, in the order in which the
// destinations were added.
func (d *Dispatcher) QueueLanes() []QueueLane {
	firsts := d.firsts()
	all := make([]QueueLane, len(firsts))
	for i, l := range firsts {
		all[i] = l
	}
	return all
}

// StreamLanes returns the lanes for an engine that keeps order, one for each shard: by destination, in the order in which
// the destinations were added, and by shard.
func (d *Dispatcher) StreamLanes() []StreamLane {
	all := make([]StreamLane, len(d.lanes))
	for i, l := range d.lanes {
		all[i] = l
	}
	return all
}

// Patterns returns the patterns that lead to a destination, sorted.
func (d *Dispatcher) Patterns(destination string) []string { return d.router.patterns(destination) }

// Drops returns the settings by which a lane may finish with an event that its destination has not acknowledged:
// expires_after and when, in this order. It panics for an unknown name, as do ReportDestination and FilterOf.
func (d *Dispatcher) Drops(destination string) (settings []string) {
	l := d.first(destination)
	if l.dest.ExpiresAfter > 0 {
		settings = append(settings, "expires_after")
	}
	if d.router.filters(l) {
		settings = append(settings, "when")
	}
	return settings
}

// Begin readies the lanes for an engine. All deliveries end with the returned context: when the
// relay gives up on them, which Drain may do, and not when ctx ends.
func (d *Dispatcher) Begin(ctx context.Context) context.Context {
	d.workCtx, d.cancelWork = context.WithCancelCause(context.WithoutCancel(ctx))
	for _, l := range d.lanes {
		l.ctx = d.workCtx //nolint:fatcontext // one context for all, not one inside the other
		if l.dest.Total {
			l.ctx = delivery.WithTotalOrder(d.workCtx)
		}
		if l.dest.Part > 0 {
			l.ctx = delivery.WithShard(l.ctx, l.dest.Part)
		}
	}
	return d.workCtx
}

// Drain ends the run that Begin started: no delivery begins any more, running ones may finish
// within the shutdown timeout, then they are cancelled and given back. The goroutines in engine may
// still hand over events that they have claimed; Drain waits for them as well. It returns nil, or
// [ErrShutdownIncomplete].
func (d *Dispatcher) Drain(engine *sync.WaitGroup) error {
	defer func() {
		d.cancelWork(ErrStopping)
		for _, l := range d.lanes {
			l.crew.stopPatrol()
		}
	}()
	defer d.database.settle(0) // no reason to wait for calm any more
	return d.drain(engine)
}

// End ends the last run: nothing is logged or reported to the observer by itself any more. It may be called before
// any Begin.
func (d *Dispatcher) End() { d.database.end() }

// LanesOf returns the lanes of an event type, none if no route matches, and whether this is the
// first event of the type.
func (d *Dispatcher) LanesOf(eventType string) (lanes []QueueLane, firstTime bool) {
	w, firstTime := d.router.wayOf(eventType)
	return w.views, firstTime
}

// TypesOf returns the event types seen so far for whose lanes f returns true.
func (d *Dispatcher) TypesOf(f func(lanes []QueueLane) bool) []string { return d.router.types(f) }

// QueueLane returns the lane of a destination, false if there is no destination with that name.
func (d *Dispatcher) QueueLane(destination string) (QueueLane, bool) {
	l := d.first(destination)
	if l == nil {
		return nil, false
	}
	return l, true
}

// Wanted reports whether the destination gets events of the type.
func (d *Dispatcher) Wanted(destination, eventType string) bool {
	w, _ := d.router.wayOf(eventType)
	return slices.ContainsFunc(w.lanes, func(l *lane) bool { return l.dest.Name == destination })
}

// ReportDestination records whether a destination answers something else than a delivery for a shard; nil means that it
// does. Otherwise the lane of the shard pauses, as after a failed delivery, and probes. ReportDestination returns the rest of
// the pause. With news the outage is reported again, although the destination may be unavailable already for another reason.
func (d *Dispatcher) ReportDestination(name string, part int, err error, news bool) (pause time.Duration) {
	l := d.byName[name][part]
	if err == nil {
		l.answers()
		return 0
	}
	return l.fault(time.Now(), err, news)
}

// first returns the first lane of a destination, nil if no destination has that name. An engine that keeps no order uses
// no other lane.
func (d *Dispatcher) first(name string) *lane {
	if lanes := d.byName[name]; lanes != nil {
		return lanes[0]
	}
	return nil
}

// firsts returns the first lane of each destination, in the order in which the destinations were added.
func (d *Dispatcher) firsts() []*lane {
	return slices.DeleteFunc(slices.Clone(d.lanes), func(l *lane) bool { return l.dest.Part > 0 })
}

// Route sends the event types that pattern matches to the named destinations. The most specific
// pattern wins: the type itself, then the longest prefix, then "*".
func (d *Dispatcher) Route(pattern string, names ...string) error {
	return d.RouteWhen(pattern, nil, names...)
}

// RouteWhen is Route for those events for which the filter returns true; nil is none. A pattern may be
// routed several times with filters, to other destinations each time.
func (d *Dispatcher) RouteWhen(pattern string, filter delivery.Filter, names ...string) error {
	if err := delivery.CheckPattern(pattern); err != nil {
		return err
	}
	var lanes []*lane
	seen := make(map[string]bool)
	for _, name := range names {
		l := d.first(name)
		if l == nil {
			return fmt.Errorf("route %q: %w %q: there is no destination of that name", pattern, ErrDestination, name)
		}
		if !seen[name] {
			lanes = append(lanes, l)
		}
		seen[name] = true
	}
	if len(lanes) == 0 {
		return fmt.Errorf("route %q: %w: it names no destination", pattern, ErrDestination)
	}
	return d.router.add(pattern, lanes, filter)
}

// Has reports whether there is a destination with that name.
func (d *Dispatcher) Has(name string) bool { return d.byName[name] != nil }

// Destinations returns what never changes about the destinations, in the order in which they were added.
func (d *Dispatcher) Destinations() []*Destination {
	firsts := d.firsts()
	all := make([]*Destination, len(firsts))
	for i, l := range firsts {
		all[i] = &l.dest
	}
	return all
}

// Destination returns the destination with that name, nil if there is none.
func (d *Dispatcher) Destination(name string) *Destination {
	if l := d.first(name); l != nil {
		return &l.dest
	}
	return nil
}

// Blocked returns the number of blocked aggregates of a destination, in all lanes that an engine with order owns.
func (d *Dispatcher) Blocked(name string) (n int) {
	for _, l := range d.byName[name] {
		n += l.blocked()
	}
	return n
}

// Routed reports whether a route matches the event type.
func (d *Dispatcher) Routed(eventType string) bool { return d.router.find(eventType).lanes != nil }

// DestinationsOf returns the names of the destinations of an event type, none if
// no route matches. It may be called while the dispatcher runs.
func (d *Dispatcher) DestinationsOf(eventType string) []string {
	lanes := d.router.find(eventType).lanes
	names := make([]string, len(lanes))
	for i, l := range lanes {
		names[i] = l.dest.Name
	}
	return names
}

// FilterOf returns the filter for events of a type on their way to a destination, nil for none. It costs nothing where
// nothing is filtered. The filter counts the events that do not pass. If it cannot tell, its error is the reason why
// the event must not be delivered: see Delivery.Refused.
func (d *Dispatcher) FilterOf(destination, eventType string) delivery.Filter {
	if !d.router.filtered {
		return nil
	}
	w, _ := d.router.wayOf(eventType)
	for i, to := range w.lanes {
		if to.dest.Name == destination {
			return w.filters[i]
		}
	}
	l := d.first(destination)
	return l.counts(l.dest.Filter) // a stored delivery whose route has ended
}

// ReportDatabase records whether a connection has reached the database: nil means that it answers.
// An outage is logged and reported once, however many connections notice it.
func (d *Dispatcher) ReportDatabase(err error) { d.database.report(err) }

// ReportRefusal records that the database answers and refuses a part of the relay what it asks for,
// or, with a nil Err, that it refuses that part nothing any more. A refusal is logged when it begins,
// when its reason changes, and every minute while it lasts; of all parts together one incident is
// raised.
func (d *Dispatcher) ReportRefusal(r observe.Refusal) { d.refusals.report(r) }

// Refused reports whether the database refuses anything at present.
func (d *Dispatcher) Refused() bool { return len(d.refusals.now()) > 0 }

// Pause keeps this relay from claiming for a destination until Resume is called: running calls of
// the handler end as usual, waiting deliveries are given back, and the destination's events wait in
// the table without a counted attempt. It is not stored, and does not affect other relays. Pausing
// twice is pausing once. The error wraps ErrDestination if there is no destination with that name.
func (d *Dispatcher) Pause(name string) error {
	lanes, err := d.lanesNamed(name)
	if err == nil {
		d.setPaused(lanes, true)
	}
	return err
}

// Resume ends a pause. It does nothing if the destination is not paused. The error wraps
// ErrDestination if there is no destination with that name.
func (d *Dispatcher) Resume(name string) error {
	lanes, err := d.lanesNamed(name)
	if err == nil {
		d.setPaused(lanes, false)
	}
	return err
}

// SetPaused pauses these destinations, and resumes all others.
func (d *Dispatcher) SetPaused(names map[string]bool) {
	for _, l := range d.firsts() {
		d.setPaused(d.byName[l.dest.Name], names[l.dest.Name])
	}
}

// setPaused pauses or resumes the lanes of a destination, and logs one line if that changes anything.
func (d *Dispatcher) setPaused(lanes []*lane, paused bool) {
	set := (*lane).resume
	if paused {
		set = (*lane).pause
	}
	changed := false
	for _, l := range lanes {
		changed = set(l) || changed
	}
	switch {
	case changed && paused:
		d.log.Info("destination is paused; its events wait, no attempt is counted", "destination", lanes[0].dest.Name)
	case changed:
		d.log.Info("destination is resumed", "destination", lanes[0].dest.Name)
	}
}

func (d *Dispatcher) lanesNamed(name string) ([]*lane, error) {
	lanes := d.byName[name]
	if lanes == nil {
		return nil, fmt.Errorf("%w %q: there is no destination of that name", ErrDestination, name)
	}
	return lanes, nil
}

// drain waits for the end of the engine and of the lanes.
func (d *Dispatcher) drain(engine *sync.WaitGroup) error {
	for _, l := range d.lanes {
		l.drop()
	}
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		engine.Wait() // it may still hand out events that it has just claimed
		for _, l := range d.lanes {
			l.crew.busy.Wait()
		}
	}()
	patience := time.NewTimer(d.cfg.ShutdownTimeout)
	defer patience.Stop()
	select {
	case <-idle:
		return d.ended()
	case <-patience.C:
		d.log.Warn("deliveries did not finish within the shutdown timeout and are cancelled", "shutdown_timeout", d.cfg.ShutdownTimeout)
	}
	d.cancelWork(ErrStopping)
	grace := time.NewTimer(returnGrace)
	defer grace.Stop()
	select {
	case <-idle:
		return d.ended()
	case <-grace.C:
		return d.unfinished()
	}
}

// ended waits for the goroutines of workers that have done their work. A call that was given up has had its time: for it the
// relay does not wait once more.
func (d *Dispatcher) ended() error {
	if err := d.unfinished(); err != nil {
		return err
	}
	for _, l := range d.lanes {
		l.workers.Wait()
	}
	return nil
}

// unfinished names the destinations with a call that has not returned.
func (d *Dispatcher) unfinished() error {
	var names []string
	for _, l := range d.lanes {
		if l.busy() {
			names = append(names, l.dest.Name)
		}
	}
	if names == nil {
		return nil
	}
	return shutdownError(slices.Compact(names)) // the lanes of a destination are next to each other
}

// ErrShutdownIncomplete is returned by Drain if handlers were still running some
// time after their contexts had been cancelled.
var ErrShutdownIncomplete = errors.New("handlers did not return after their contexts were cancelled")

func shutdownError(names []string) error {
	return fmt.Errorf("%w: %v", ErrShutdownIncomplete, names)
}

// Observe tells the observer of an incident. One that panics, or ends its goroutine, does no harm.
func (d *Dispatcher) Observe(incident delivery.Incident) { d.observer.Observe(incident) }

// DatabaseDown reports whether the database does not answer, as far as its connections have reported. It takes no
// lock.
func (d *Dispatcher) DatabaseDown() bool { return d.database.down() }

// DatabaseReports counts how often connections have reported that the database answers, or does not. It takes no lock.
func (d *Dispatcher) DatabaseReports() uint64 { return d.database.reports.Load() }

// DatabaseCure returns what a person can do where the database refuses the relay's sessions; empty where
// it does not. It takes no lock.
func (d *Dispatcher) DatabaseCure() string { return d.database.refusal() }

// SetClock records what the database's clock says at a moment of this relay's.
func (d *Dispatcher) SetClock(database, here time.Time) { d.clock.read.Store(&reading{database, here}) }

// guarded is an observer whose panics are logged. It runs in a goroutine of its own, which it may end: those of the relay have
// other work.
type guarded struct {
	to  delivery.Observer
	log *slog.Logger
}

func (g guarded) Observe(incident delivery.Incident) {
	err, over := errExited, make(chan struct{})
	go func() {
		defer close(over)
		err = guard.Call("the observer", func() { g.to.Observe(incident) })
	}()
	<-over
	if err != nil {
		g.log.Error("the observer of incidents has failed", "incident", incident.Kind.String(), "destination", incident.Destination, "err", err)
	}
}

// noObserver is the observer of a relay that has none.
type noObserver struct{}

func (noObserver) Observe(delivery.Incident) {}

// Stats returns the current figures, without those of the engine. It is cheap and queries no
// server.
func (d *Dispatcher) Stats() observe.Stats {
	s := observe.Stats{DatabaseDown: d.database.down(), DatabaseCure: d.database.refusal(), Refusals: d.refusals.now()}
	for _, l := range d.firsts() {
		all := l.stats()
		for _, other := range d.byName[l.dest.Name][1:] {
			one := other.stats()
			merge(&all, &one)
		}
		s.Destinations = append(s.Destinations, all)
	}
	return s
}

// Progress shows whether the lanes of a destination make progress.
type Progress struct {
	Name string // of the destination
	// Answers counts the deliveries that have got a verdict, of any kind, begun or not.
	Answers uint64
	// Well says that only a lack of work or capacity can keep a lane from beginning deliveries: no lane that an engine owns
	// waits for the end of a pause, a limit, an outage or a throttle. One such lane is enough to make Well false,
	// because due work is known by destination, not by shard: the due work may be that of the lane that waits.
	Well bool
	// Within bounds the calls that are under way, from their beginning until they are given up; 0 if there is none.
	Within time.Duration
}

// Progress shows which destinations make progress, in the order in which they were added.
func (d *Dispatcher) Progress() []Progress {
	firsts := d.firsts()
	all := make([]Progress, len(firsts))
	for i, l := range firsts {
		all[i] = progressOf(d.byName[l.dest.Name])
	}
	return all
}
