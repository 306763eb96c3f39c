package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/laneconf"
	"github.com/notifyd/notifyd/internal/limit"
	"github.com/notifyd/notifyd/internal/routing"
	"github.com/notifyd/notifyd/internal/safecall"
	"github.com/notifyd/notifyd/observe"
)

// Config bounds a [Dispatcher].
type Config struct {
	// Window bounds the work in a lane's memory, as a duration above 0. A lane that needs more than a fifth of Window
	// for one event is slow: see [QueueLane.Slow].
	Window time.Duration
	// ShutdownTimeout is how long running deliveries may continue after the call of Drain.
	ShutdownTimeout time.Duration
	// Reserve takes from the rate limits that all relays share. Nil if no destination has a limit.
	Reserve limit.Reserve
	// Calls records the calls with large events. Nil if none are recorded.
	Calls Calls
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

// Dispatcher delivers events that an engine hands over, through one lane per destination and shard. Add destinations
// and routes before the engine runs, from one goroutine.
type Dispatcher struct {
	cfg      Config
	log      *slog.Logger
	observer delivery.Observer
	lanes    []*lane            // by destination, in the order of Add, and by shard
	byName   map[string][]*lane // by destination name, then by shard
	router   *router
	database *database
	refusals *refusals

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

	observer = safeObserver{observer, log}
	return &Dispatcher{
		cfg:      cfg,
		log:      log,
		observer: observer,
		byName:   make(map[string][]*lane),
		router:   newRouter(),
		database: &database{log: log, observer: observer},
		refusals: &refusals{log: log, observer: observer},
	}, nil
}

// ErrDestination is wrapped by errors about a destination's name or configuration.
var ErrDestination = errors.New("invalid destination")

// errNoReserve: a destination has a rate limit, but no function reserves from it.
var errNoReserve = errors.New("rate_limit needs a Reserve function")

// Add adds a destination, with one lane for each shard. Retried deliveries are stored under its name: keep the name
// stable between runs. The error wraps ErrDestination.
func (d *Dispatcher) Add(name string, h delivery.Handler, cfg LaneConfig) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it has no name: give it one that stays, stored deliveries refer to it", ErrDestination)
	case h == nil:
		return fmt.Errorf("%w %q: it has no handler: set Handler to what delivers its events", ErrDestination, name)
	case d.byName[name] != nil:
		return fmt.Errorf("%w %q: another destination has this name: add it once, and route other event types to it with Route",
			ErrDestination, name)
	}

	err := cfg.validate()
	if err == nil && !cfg.RateLimit.IsZero() && d.cfg.Reserve == nil {
		err = errNoReserve
	}
	if err != nil {
		return fmt.Errorf("%w %q: %w", ErrDestination, name, err)
	}

	cfg.Lane = laneconf.WithDefaults(cfg.Lane)

	var lanes []*lane
	if err := safecall.Call("KeepsOrder", func() { lanes = newLanes(name, h, cfg, d.cfg.Window, d.log) }); err != nil {
		return fmt.Errorf("%w %q: %w", ErrDestination, name, err)
	}

	for _, l := range lanes {
		l.observer = d.observer
		l.calls = d.cfg.Calls
		if !cfg.RateLimit.IsZero() {
			// Each lane has a limiter: package limit bounds the sum of all limiters that reserve under one name.
			l.limiter = limit.New(name, limit.Rate{Rate: cfg.RateLimit, Burst: cfg.RateBurst}, cfg.RateKey != nil, d.cfg.Reserve)
		}
	}

	d.lanes = append(d.lanes, lanes...)
	d.byName[name] = lanes

	return nil
}

// QueueLanes returns the lanes for an engine without order: one per destination, in the order of Add.
func (d *Dispatcher) QueueLanes() []QueueLane {
	firsts := d.firsts()
	all := make([]QueueLane, len(firsts))
	for i, l := range firsts {
		all[i] = l
	}
	return all
}

// StreamLanes returns the lanes for an engine with order: one per shard, by destination in the order of Add, then by
// shard.
func (d *Dispatcher) StreamLanes() []StreamLane {
	all := make([]StreamLane, len(d.lanes))
	for i, l := range d.lanes {
		all[i] = l
	}
	return all
}

// Patterns returns the patterns whose routes name the destination, sorted.
func (d *Dispatcher) Patterns(destination string) []string { return d.router.patterns(destination) }

// Drops returns the settings that let a lane finish an event without an acknowledgement of the destination:
// expires_after and when, in this order. Drops panics for an unknown name, as do ReportDestination, FilterOf and Filtered.
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

// Begin readies the lanes for an engine. The returned context ends all deliveries: Drain cancels it, and the end of
// ctx does not.
func (d *Dispatcher) Begin(ctx context.Context) context.Context {
	d.workCtx, d.cancelWork = context.WithCancelCause(context.WithoutCancel(ctx))
	for _, l := range d.lanes {
		l.ctx = d.workCtx //nolint:fatcontext // one context for all, not one inside the other
		isUnordered := l.isUnordered()
		call := delivery.Call{Shard: l.dest.Shard, TotalOrder: l.dest.Total && !isUnordered, Unordered: isUnordered}
		if call != (delivery.Call{}) {
			l.ctx = delivery.WithCall(d.workCtx, call)
		}
	}

	return d.workCtx
}

// Drain ends the run that Begin started. No new delivery begins; running ones may finish within the shutdown
// timeout, and are then cancelled and released. Goroutines in engine may still hand over claimed events, so Drain
// waits for them, too. It returns nil or [ErrShutdownIncomplete].
func (d *Dispatcher) Drain(engine *sync.WaitGroup) error {
	defer func() {
		d.cancelWork(ErrStopping)
		for _, l := range d.lanes {
			l.workers.stopWatchdog()
		}
	}()

	defer d.database.settle(0) // no need to wait for calm

	return d.drain(engine)
}

// End ends the last run: no timer logs or reports anything afterwards. It may be called without a Begin.
func (d *Dispatcher) End() { d.database.end() }

// LanesOf returns the lanes of an event type, and whether this is the first event of the type. No lanes: no route
// matches.
func (d *Dispatcher) LanesOf(eventType string) (lanes []QueueLane, firstTime bool) {
	w, firstTime := d.router.routeOf(eventType)
	return w.views, firstTime
}

// TypesOf returns the event types seen so far whose lanes satisfy f.
func (d *Dispatcher) TypesOf(f func(lanes []QueueLane) bool) []string { return d.router.types(f) }

// QueueLane returns the lane of a destination, and false for an unknown name.
func (d *Dispatcher) QueueLane(destination string) (QueueLane, bool) {
	l := d.first(destination)
	if l == nil {
		return nil, false
	}
	return l, true
}

// Wanted reports whether the destination gets events of the type.
func (d *Dispatcher) Wanted(destination, eventType string) bool {
	w, _ := d.router.routeOf(eventType)
	return slices.ContainsFunc(w.lanes, func(l *lane) bool { return l.dest.Name == destination })
}

// ReportDestination records whether a destination answers requests other than deliveries for a shard. A nil err: it
// does. Otherwise the shard's lane pauses, as after a failed delivery, and probes. ReportDestination returns the
// remaining pause. With news, the outage is reported again even if the destination is already unavailable for another
// reason.
func (d *Dispatcher) ReportDestination(name string, shard int, err error, repeat bool) (pause time.Duration) {
	l := d.byName[name][shard]
	if err == nil {
		l.answers()
		return 0
	}
	return l.fault(time.Now(), err, repeat)
}

// first returns the first lane of a destination, nil for an unknown name. An engine without order uses only first
// lanes.
func (d *Dispatcher) first(name string) *lane {
	if lanes := d.byName[name]; lanes != nil {
		return lanes[0]
	}
	return nil
}

// firsts returns the first lane of each destination, in the order of Add.
func (d *Dispatcher) firsts() []*lane {
	return slices.DeleteFunc(slices.Clone(d.lanes), func(l *lane) bool { return l.dest.Shard > 0 })
}

// Route sends the event types that pattern matches to the named destinations. The most specific pattern wins: the
// type itself, then the longest prefix, then "*". The error wraps ErrDestination or delivery.ErrPattern.
func (d *Dispatcher) Route(pattern string, names ...string) error {
	return d.RouteWhen(pattern, nil, names...)
}

// RouteWhen routes the events for which filter returns true; a nil filter passes all. A pattern may have several
// routes with filters, each to other destinations.
func (d *Dispatcher) RouteWhen(pattern string, filter delivery.Filter, names ...string) error {
	if err := routing.Check(pattern); err != nil {
		return err
	}

	var lanes []*lane
	seen := make(map[string]bool)
	for _, name := range names {
		l := d.first(name)
		if l == nil {
			return fmt.Errorf("route %q: %w %q: nothing has this name: add the destination first%s",
				pattern, ErrDestination, name, d.added())
		}
		if !seen[name] {
			lanes = append(lanes, l)
		}

		seen[name] = true
	}

	if len(lanes) == 0 {
		return fmt.Errorf("route %q: %w: none is named: name one or more", pattern, ErrDestination)
	}

	return d.router.add(pattern, lanes, filter)
}

// Has reports whether there is a destination with that name.
func (d *Dispatcher) Has(name string) bool { return d.byName[name] != nil }

// Destinations returns the constant properties of the destinations, in the order of Add.
func (d *Dispatcher) Destinations() []*Destination {
	firsts := d.firsts()
	all := make([]*Destination, len(firsts))
	for i, l := range firsts {
		all[i] = &l.dest
	}
	return all
}

// Destination returns the destination with that name, nil for an unknown name.
func (d *Dispatcher) Destination(name string) *Destination {
	if l := d.first(name); l != nil {
		return &l.dest
	}
	return nil
}

// Blocked returns the number of blocked aggregates of a destination, over all its lanes that an ordered engine owns.
func (d *Dispatcher) Blocked(name string) (n int) {
	for _, l := range d.byName[name] {
		n += l.blocked()
	}
	return n
}

// Routed reports whether a route matches the event type.
func (d *Dispatcher) Routed(eventType string) bool { return d.router.find(eventType).lanes != nil }

// DestinationsOf returns the names of an event type's destinations, none if no route matches. It may be called while
// the dispatcher runs.
func (d *Dispatcher) DestinationsOf(eventType string) []string {
	lanes := d.router.find(eventType).lanes
	names := make([]string, len(lanes))
	for i, l := range lanes {
		names[i] = l.dest.Name
	}
	return names
}

// FilterOf returns the filter of a route from an event type to a destination; nil for none. The call is cheap while
// no route has a filter. Call Filtered for an event that does not pass. If the filter fails, its error says why the event
// must not be delivered: see Delivery.Refused.
func (d *Dispatcher) FilterOf(destination, eventType string) delivery.Filter {
	if !d.router.filtered {
		return nil
	}

	w, _ := d.router.routeOf(eventType)
	for i, to := range w.lanes {
		if to.dest.Name == destination {
			return w.filters[i]
		}
	}

	l := d.first(destination)
	return l.guarded(l.dest.Filter, "") // a stored delivery whose route has ended
}

// Filtered counts an event that is finished for a destination because it does not pass the filter.
func (d *Dispatcher) Filtered(destination string) {
	d.first(destination).figures.skipped.filtered.Add(1)
}

// ReportDatabase records whether a connection has reached the database; nil means it answers. An outage is logged and
// reported once, however many connections notice it.
func (d *Dispatcher) ReportDatabase(err error) { d.database.report(err) }

// ReportRefusal records that the database answers but refuses a statement of a part of the relay. A nil Err means
// that the database accepts all statements of that part again. A refusal is logged when it begins, when its reason
// changes, and every minute while it lasts. All parts together raise one incident.
func (d *Dispatcher) ReportRefusal(r observe.Refusal) { d.refusals.report(r) }

// Refused reports whether the database refuses any statement now.
func (d *Dispatcher) Refused() bool { return len(d.refusals.now()) > 0 }

// Pause stops this relay from claiming for a destination until Resume. Running calls end as usual, waiting deliveries
// are released, and the events wait in the table without a counted attempt. The pause is not stored and does not
// affect other relays. A second Pause has no effect. The error wraps ErrDestination for an unknown name.
func (d *Dispatcher) Pause(name string) error {
	lanes, err := d.lanesNamed(name)
	if err == nil {
		d.setPaused(lanes, true)
	}
	return err
}

// Resume ends a pause, if there is one. The error wraps ErrDestination for an unknown name.
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

// setPaused pauses or resumes the lanes of a destination, and logs one line for a change.
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
		d.log.Info("destination paused", "destination", lanes[0].dest.Name)
	case changed:
		d.log.Info("destination resumed", "destination", lanes[0].dest.Name)
	}
}

// added lists the names of the destinations, for an error.
func (d *Dispatcher) added() string {
	if len(d.byName) == 0 {
		return ""
	}
	return " (there are " + strings.Join(slices.Sorted(maps.Keys(d.byName)), ", ") + ")"
}

func (d *Dispatcher) lanesNamed(name string) ([]*lane, error) {
	lanes := d.byName[name]
	if lanes == nil {
		return nil, fmt.Errorf("%w %q: nothing has this name%s", ErrDestination, name, d.added())
	}
	return lanes, nil
}

// drain waits for the end of the engine and of the lanes.
func (d *Dispatcher) drain(engine *sync.WaitGroup) error {
	for _, l := range d.lanes {
		l.drop()
	}
	defer func() {
		for _, l := range d.lanes {
			l.repeats.end(l.log)
		}
	}()

	idle := make(chan struct{})
	go func() {
		defer close(idle)
		engine.Wait() // the engine may still hand over events that it has just claimed
		for _, l := range d.lanes {
			l.workers.busy.Wait()
		}
	}()

	patience := time.NewTimer(d.cfg.ShutdownTimeout)
	defer patience.Stop()

	select {
	case <-idle:
		return d.ended()
	case <-patience.C:
		d.log.Warn("deliveries cancelled after the shutdown timeout", "shutdown_timeout", d.cfg.ShutdownTimeout)
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

// ended waits for the goroutines of workers that have done their work. It does not wait for stuck calls: they have
// used up their time.
func (d *Dispatcher) ended() error {
	if err := d.unfinished(); err != nil {
		return err
	}
	for _, l := range d.lanes {
		l.goroutines.Wait()
	}
	return nil
}

// unfinished returns an error that names the destinations with a running call.
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

	return shutdownError(slices.Compact(names)) // lanes of one destination are adjacent
}

// ErrShutdownIncomplete is returned by Drain if handlers did not return some time after their contexts were
// cancelled.
var ErrShutdownIncomplete = errors.New("handlers did not return after their contexts were cancelled")

func shutdownError(names []string) error {
	return fmt.Errorf("%w: %v", ErrShutdownIncomplete, names)
}

// Observe passes an incident to the observer, and survives an observer that panics or ends its goroutine.
func (d *Dispatcher) Observe(incident delivery.Incident) { d.observer.Observe(incident) }

// DatabaseDown reports whether the database is down, according to its connections. It takes no lock.
func (d *Dispatcher) DatabaseDown() bool { return d.database.down() }

// DatabaseReports counts the reports of connections about the database, good or bad. It takes no lock.
func (d *Dispatcher) DatabaseReports() uint64 { return d.database.reports.Load() }

// DatabaseDownSince returns when the outage of the database began; zero while it answers. It takes no lock.
func (d *Dispatcher) DatabaseDownSince() time.Time { return d.database.downSince() }

// DatabaseCure returns the cure while the database refuses the relay's sessions; empty otherwise. It takes no lock.
func (d *Dispatcher) DatabaseCure() string { return d.database.refusal() }

// safeObserver logs the panics of an observer. Each call has its own goroutine, which the observer may end without
// harm to a relay's goroutine.
type safeObserver struct {
	to  delivery.Observer
	log *slog.Logger
}

func (g safeObserver) Observe(incident delivery.Incident) {
	err := errExited
	over := make(chan struct{})
	go func() {
		defer close(over)
		err = safecall.Call("the observer", func() { g.to.Observe(incident) })
	}()

	<-over

	if err != nil {
		g.log.Error("incident observer failed", "incident", incident.Kind.String(), "destination", incident.Destination, "err", err)
	}
}

// noObserver ignores incidents.
type noObserver struct{}

func (noObserver) Observe(delivery.Incident) {}

// Stats returns the current figures, without those of the engine. It is cheap and queries no server.
func (d *Dispatcher) Stats() observe.Stats {
	s := observe.Stats{
		DatabaseDown:      d.database.down(),
		DatabaseDownSince: d.database.downSince(),
		DatabaseCure:      d.database.refusal(),
		Refusals:          d.refusals.now(),
	}
	s.Destinations = d.destinationStats((*lane).stats)
	return s
}

// Figures returns the current figures of the destinations. It calls no handler, which may not return: [observe.DestinationStats]
// have no reports of handlers here.
func (d *Dispatcher) Figures() []observe.DestinationStats {
	return d.destinationStats((*lane).figuresNow)
}

// destinationStats returns the figures of the destinations, merged from those of their lanes.
func (d *Dispatcher) destinationStats(of func(*lane) observe.DestinationStats) (stats []observe.DestinationStats) {
	for _, l := range d.firsts() {
		all := of(l)
		for _, other := range d.byName[l.dest.Name][1:] {
			one := of(other)
			merge(&all, &one)
		}
		stats = append(stats, all)
	}

	return stats
}

// Progress shows whether the lanes of a destination progress.
type Progress struct {
	Name string // of the destination
	// Answers counts the deliveries with a verdict of any kind, begun or not.
	Answers uint64
	// Well means that only a lack of work or capacity can stop a lane from beginning deliveries. It is false if one
	// lane that an engine owns waits for a pause, a limit, an outage or a throttle. Due work is known by destination,
	// not by shard, so that lane may be the one with the due work.
	Well bool
	// Within bounds the running calls, from their start until they count as stuck; 0 without calls.
	Within time.Duration
}

// Progress returns the progress of each destination, in the order of Add.
func (d *Dispatcher) Progress() []Progress {
	firsts := d.firsts()
	all := make([]Progress, len(firsts))
	for i, l := range firsts {
		all[i] = progressOf(d.byName[l.dest.Name])
	}
	return all
}
