// Package notifyd delivers events from a PostgreSQL outbox table.
//
// An application inserts an event into outbox_events in the transaction of its business change,
// with package outbox or with plain SQL. After the commit, a [Relay] finds the event and calls the
// handler that is registered for its type. The event is done when the handler has returned nil, and
// is retried until then: every event is delivered at least once.
//
// Package delivery has what a handler gets and returns: [delivery.Event], [delivery.Handler], and the errors
// [delivery.Permanent], [delivery.RetryAfter], [delivery.Unavailable], [delivery.Unauthorized], [delivery.Throttled] and
// [delivery.Unclear]. Ready destinations are packages below handlers, such as handlers/email. Package observe has the figures
// of a relay, observe/admin serves them, and package sql has the tables and their migration ([outboxsql.MigratePool]).
package notifyd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/laneconf"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/queue"
	"github.com/notifyd/notifyd/internal/routing"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/listener"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ErrDestination is wrapped by errors about a destination that does not exist, or whose description
// is invalid.
var ErrDestination = dispatch.ErrDestination

// ErrShutdownIncomplete is wrapped by the error of Run if handlers were still running some
// time after their contexts had been cancelled.
var ErrShutdownIncomplete = dispatch.ErrShutdownIncomplete

// ErrRunTwice is wrapped by the error of the second call of Run.
var ErrRunTwice = errors.New("a relay can run once: make a new one")

// ErrNeedsStream is wrapped by the error of Run if a destination requires a feature of streams and the table is
// a queue: order, holding back the events after a dead letter, a start in the past, or shards.
var ErrNeedsStream = errors.New("only a stream has that: run `notifyd migrate --mode stream`, or do without")

// ErrPooler is wrapped by the error of Run if the pool leads through a pooler in transaction mode and
// Config.ListenConfig does not lead past it. Only a stream runs behind such a pooler.
var ErrPooler = store.ErrPooler

// ErrIDs is wrapped by the error of Run if the sequence of a stream gives out ids again that a position has passed: it was set
// back, or restarted with other values. The error has the statement that cures it.
var ErrIDs = position.ErrIDs

// ErrCopy is wrapped by the error of Run if the tables are a copy of an outbox, whose events may be delivered where it was made:
// see [outboxsql.ErrCopy]. A person adopts it with `notifyd adopt`, or a program with [ops.Client.Adopt].
var ErrCopy = outboxsql.ErrCopy

// session is a connection of the relay's own.
type session interface{ Close(ctx context.Context) }

// Relay delivers the events of one outbox table. Create it with [New], register handlers, then call
// Run.
type Relay struct {
	config     Config // with its defaults
	program    store.Program
	beat       time.Duration // between two readings of the check
	pool       *pgxpool.Pool
	ops        *ops.Client
	connector  *store.Connector
	listening  *store.Connector
	shared     atomic.Bool // the connections of a stream lead through a pooler, which is logged
	dispatcher *dispatch.Dispatcher
	sessions   []session // closed at the end
	session    *store.Session
	watch      *store.Watch
	hangCheck  *hangCheck
	limits     *store.Limits
	calls      *store.Calls
	listener   *listener.Listener // nil when polling only
	trigger    *listener.Trigger  // nil when polling only
	log        *slog.Logger

	middleware []delivery.Middleware
	needy      []string // what needs a stream, by destination
	starts     map[string]engine.Start
	owner      int64         // the number that identifies this relay
	listens    chan struct{} // closed after the first LISTEN, or when LISTEN cannot succeed
	canListen  func()        // closes listens
	ready      chan struct{}
	pauses     pauses
	refused    chan error                   // capacity 1: the error that ends Run
	engine     atomic.Pointer[eventEngine]  // nil before Run knows the mode of the table
	queue      atomic.Pointer[queue.Engine] // nil unless the table is a queue; asked for figures before it is there
	ran        atomic.Bool
	stopped    atomic.Pointer[error] // nil until Run has returned
	stream     bool                  // the table is a stream; set by prepare
}

// New creates a relay for the database that pool connects to. Only [Relay.Ops], [Relay.ReloadRefused] and the console of
// package observe/admin use the pool, so a small pool suffices: the relay opens its own connections with the pool's
// configuration, because they hold locks and settings. With the defaults these are seven: four that claim, one that listens, one for the notify lock and one
// for leases. [Relay.OldestWaiting] and [Relay.Backlog] open another one for each call.
//
// New does not connect and does not close the pool: its creator closes the pool after Run has returned. New returns all
// mistakes in config together, with a nil relay.
func New(pool *pgxpool.Pool, config Config) (*Relay, error) {
	err := config.Validate()
	config = config.WithDefaults()
	if pool == nil {
		err = errors.Join(errors.New("the pool is nil: create it with pgxpool.New"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("notifyd: %w", err)
	}

	cfg := pool.Config()
	r := &Relay{
		config:  config,
		program: config.program(),
		beat:    time.Second,
		pool:    pool,
		log:     config.Logger,
		connector: &store.Connector{
			Config: cfg.ConnConfig,
			Before: cfg.BeforeConnect,
			Schema: config.Schema,
			Wants:  config.Connections + store.BesideClaims,
		},
		listens: make(chan struct{}),
		ready:   make(chan struct{}),
		refused: make(chan error, 1),
		owner:   store.NewOwner(),
		starts:  make(map[string]engine.Start),
	}

	r.pauses.relay = r
	r.hangCheck = newHangCheck(r)

	r.ops, err = ops.New(pool, ops.Config{
		Schema:       config.Schema,
		DeleteEvents: config.Retention.Keep == 0,
		ReportTo:     r.reportTo,
		Paused:       r.pauses.changed,
	})
	if err != nil {
		return nil, fmt.Errorf("notifyd: %w", err)
	}

	r.listening = r.connector
	if config.ListenConfig != nil {
		r.listening = &store.Connector{Config: config.ListenConfig, Schema: config.Schema}
	}
	if err := r.wire(); err != nil {
		return nil, err
	}

	return r, nil
}

// wire creates the parts and connects them to one another.
func (r *Relay) wire() error {
	r.watch = store.NewWatch(r.connector)
	if !r.config.PollingOnly {
		r.trigger = listener.NewTrigger(r.connectTrigger, r.log)
	}

	r.limits = store.NewLimits(r.connector, func(err error) { store.Report(r.dispatcher, "rate limits", err) })
	r.calls = store.NewCalls(r.connector, func(err error) { store.Report(r.dispatcher, "calls with large events", err) })

	d, err := dispatch.New(r.dispatchConfig(), r.config.Observer, r.log)
	if err != nil {
		return fmt.Errorf("notifyd: %w", err)
	}

	r.dispatcher = d
	if r.config.PollingOnly {
		close(r.listens)
		return nil
	}

	return r.wireListener()
}

func (r *Relay) dispatchConfig() dispatch.Config {
	return dispatch.Config{
		Window:          r.config.LockBudget / 2, // a claim waits for its deliveries
		ShutdownTimeout: r.config.ShutdownTimeout,
		Reserve:         r.limits.Reserve,
		Calls:           r.calls,
	}
}

// wireListener creates the part that listens.
func (r *Relay) wireListener() error {
	r.canListen = sync.OnceFunc(func() { close(r.listens) })

	if r.config.Shared != nil {
		r.listener = r.config.Shared.listener
		return nil
	}

	r.listener = listener.New(func(ctx context.Context) (*pgx.Conn, error) {
		conn, err := r.listening.Connect(ctx, "listen")
		if errors.Is(err, store.ErrPooler) {
			r.pooled(ctx, err)
		}
		return conn, err
	}, r.log, r.subscriber())

	if r.config.Canary == 0 {
		return nil
	}

	return r.listener.Prove(r.proof())
}

// proof returns how the listener proves that notifications arrive.
func (r *Relay) proof() listener.Proof {
	return listener.Proof{
		Channel: canaryChannel(r.owner),
		Every:   r.config.Canary,
		Notify:  hints{r}.Notify,
	}
}

// subscriber returns the relay's part in a listener.
func (r *Relay) subscriber() *listener.Subscriber {
	return &listener.Subscriber{
		Channel:  pgschema.Channel(r.config.Schema),
		Hints:    hints{r},
		OnListen: r.canListen,
		OnBlind:  hints{r}.Blind,
		OnChange: func(err error) {
			incident := delivery.Incident{Kind: delivery.IncidentListenerBack, Time: time.Now()}
			if err != nil {
				incident.Kind = delivery.IncidentListenerLost
				incident.Err = err
			}
			r.dispatcher.Observe(incident)
		},
	}
}

// pooled reports a pooler between LISTEN and the database, if the listener does not report it
// because it could not connect for another reason before. There will be no LISTEN, and polling works.
func (r *Relay) pooled(ctx context.Context, err error) {
	if trouble := r.listener.State().Trouble; trouble != nil && !errors.Is(trouble, store.ErrPooler) {
		r.log.WarnContext(ctx, "notifications will not arrive", "err", err)
	}
	r.canListen()
}

// connectTrigger connects for a lock of a session, which behind a pooler only the way of LISTEN has.
func (r *Relay) connectTrigger(ctx context.Context) (*pgx.Conn, error) {
	conn, err := r.connector.Connect(ctx, "notify")
	if errors.Is(err, store.ErrPooler) && r.listening != r.connector {
		return r.listening.Connect(ctx, "notify")
	}
	return conn, err
}

// Use wraps every handler that is registered after it in the given middleware;
// the first one is the outermost. A handler that would lose something by it, such as
// that it takes batches, is refused when it is registered: see [delivery.Chain].
func (r *Relay) Use(mw ...delivery.Middleware) { r.middleware = append(r.middleware, mw...) }

// Handle combines [Relay.Add] and [Relay.Route]: it adds a destination and routes the event types that match pattern to
// it. A pattern is an event type ("order.created"), a prefix ("order.*") or "*"; the most specific pattern wins. Your
// next release may change the pattern. It must keep the name of the destination, because stored deliveries refer to it.
// Handle returns the same errors as Add and Route.
func (r *Relay) Handle(pattern string, d Destination) error {
	if err := routing.Check(pattern); err != nil {
		return fmt.Errorf("notifyd: handle: %w", err)
	}
	if err := r.Add(d); err != nil {
		return err
	}
	return r.Route(pattern, d.Name)
}

// Add adds a destination that routes can name. The error wraps [ErrDestination], and also [delivery.ErrMiddleware] if
// middleware would take something away from the handler, or a [*handlers.FieldError] for each mistake in the lane.
func (r *Relay) Add(d Destination) error {
	invalid := func(err error) error { return fmt.Errorf("notifyd: %w %q: %w", ErrDestination, d.Name, err) }

	start, err := engine.ParseStart(d.Lane.StartFrom)
	if err != nil {
		return invalid(field.Errorf("start_from", "%q: %w", d.Lane.StartFrom, err))
	}

	h := d.Handler
	if h != nil {
		h, err = delivery.Chain(h, slices.Concat(r.middleware, d.Middleware)...)
		if err != nil {
			return invalid(err)
		}
	}

	needs := laneconf.NeedsStream(d.Lane)
	if positions, is := delivery.As[delivery.PositionStore](h); is && positions.StoresPosition() {
		if err := keepsPosition(d); err != nil {
			return invalid(err)
		}
		needs = append(needs, "exactly once")
	}

	lane := dispatch.LaneConfig{Lane: d.Lane, Filter: d.Filter, RateKey: d.RateKey, Type: typeOf(d.Handler)}
	if err := r.dispatcher.Add(d.Name, h, lane); err != nil {
		return fmt.Errorf("notifyd: %w", err)
	}
	for _, setting := range needs {
		r.needy = append(r.needy, d.Name+": "+setting)
	}
	if start.Kind != engine.StartDefault {
		r.starts[d.Name] = start
	}

	return nil
}

// typeOf returns the kind of a handler, for people: see [observe.DestinationStats].
func typeOf(h delivery.Handler) string {
	if h == nil { // which is refused
		return ""
	}
	of := reflect.TypeOf(h)
	name := strings.TrimPrefix(of.String(), "*")
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	module := reflect.TypeFor[Destination]().PkgPath()
	own, is := strings.CutPrefix(of.PkgPath(), module+"/handlers/")
	switch {
	case own == "file" && of.Name() == "Log": // two types share the package
		return "log"
	case is:
		return own
	}
	return name
}

// keepsPosition refuses what a destination that keeps its own position cannot have.
func keepsPosition(d Destination) error {
	switch lane := laneconf.WithDefaults(d.Lane); {
	case lane.Concurrency != 1 || lane.Order == delivery.OrderNone:
		return errors.New("it keeps its position, which needs a concurrency of 1, and order")
	case d.RateKey != nil:
		return errors.New("it keeps its position, which excludes a rate key")
	default:
		return nil
	}
}

// checkDeadLetters checks where dead letters lead: only Run knows all destinations and routes.
func (r *Relay) checkDeadLetters() error {
	var all []dispatch.Receiver
	for _, d := range r.dispatcher.Destinations() {
		all = append(all, dispatch.Receiver{
			Name:   d.Name,
			Lane:   d.Lane,
			Routed: len(r.dispatcher.Patterns(d.Name)) > 0,
			Exact:  d.Position != nil,
		})
	}

	if err := dispatch.CheckDeadLetters(all); err != nil {
		return fmt.Errorf("notifyd: %w: %w", ErrDestination, err)
	}

	return nil
}

// Route sends the event types that match pattern to the named destinations. Each of them has its
// own copy of the event, its own retries and its own dead letters. The error wraps [delivery.ErrPattern] for a
// pattern that is invalid or has such a route already, and [ErrDestination] for a name that no destination has, or for no
// name.
func (r *Relay) Route(pattern string, destinations ...string) error {
	if err := r.dispatcher.Route(pattern, destinations...); err != nil {
		return fmt.Errorf("notifyd: %w", err)
	}
	return nil
}

// RouteWhen is Route for those events for which the filter returns true; see [delivery.Filter]. A
// pattern may have several such routes, to other destinations each time, and one without a filter.
func (r *Relay) RouteWhen(pattern string, when delivery.Filter, destinations ...string) error {
	if err := r.dispatcher.RouteWhen(pattern, when, destinations...); err != nil {
		return fmt.Errorf("notifyd: %w", err)
	}
	return nil
}

// Ready returns a channel that is closed once the relay listens and has started to read the table. After that, the relay
// delivers each event as soon as it is committed. Behind a pooler in transaction mode, where LISTEN receives nothing, the
// channel is closed as well, and the relay finds events by polling.
func (r *Relay) Ready() <-chan struct{} { return r.ready }

// Stats returns the current figures: counters since the start, and the state of every destination.
// It makes no query and is cheap.
func (r *Relay) Stats() observe.Stats {
	s := r.dispatcher.Stats()
	if e := r.engine.Load(); e != nil {
		(*e).Stats(&s)
	}

	if r.listener != nil {
		l := observe.ListenerStats(r.listener.State())
		s.Listener = &l
	}

	s.Connections = r.connections()
	s.Hangs = r.hangCheck.hangs()
	return s
}

// Config returns the settings of the relay, with their defaults.
func (r *Relay) Config() Config { return r.config }

// Pool returns the pool that was given to [New].
func (r *Relay) Pool() *pgxpool.Pool { return r.pool }

// connections returns the figures of the relay's own connections, and of the pool.
func (r *Relay) connections() (all []observe.ConnectionStats) {
	for _, c := range r.connector.Conns() {
		all = append(all, observe.ConnectionStats(c))
	}

	if r.listening != r.connector {
		for _, c := range r.listening.Conns() {
			all = append(all, observe.ConnectionStats(c))
		}
	}

	pool := r.pool.Stat()
	return append(all, observe.ConnectionStats{
		Role:   "pool",
		Open:   int(pool.TotalConns()),
		Opened: uint64(pool.NewConnsCount()), //nolint:gosec // a count
	})
}

// DestinationsOf returns the names of the destinations of an event type, none if no
// route matches.
func (r *Relay) DestinationsOf(eventType string) []string {
	return r.dispatcher.DestinationsOf(eventType)
}

// Listening reports whether notifications are heard, as far as known now; never if the relay only
// polls.
func (r *Relay) Listening() bool { return r.listener != nil && r.listener.Listening() }

// OldestWaiting returns the age of the event that has waited longest, 0 if no event waits. The age counts from the time
// the event was written or became available. Dead letters and events without a route do not count. OldestWaiting queries
// the database by index, on its own connection, and disturbs no delivery.
func (r *Relay) OldestWaiting(ctx context.Context) (time.Duration, error) {
	return r.watch.Oldest(ctx, r.backlogOptions())
}

// Ops returns the client that lists, replays, discards and edits the dead letters of the relay's tables, and shows and moves
// events and positions, and pauses destinations: this relay honours a pause at once, others within a second. It uses the pool
// that was given to [New], works whether or not the relay runs, and covers the deliveries of all relays.
func (r *Relay) Ops() *ops.Client { return r.ops }

// reportTo returns the destination that receives a report of each dead letter of a destination, empty for none.
func (r *Relay) reportTo(destination string) string {
	d := r.dispatcher.Destination(destination)
	if d == nil {
		return ""
	}
	return d.OnDead.To
}

// Backlog returns the backlog: events by type and destination, deliveries by state, errors and dead letters. Each query
// reads at most 10,000 rows, and the result marks counts that exceed the limit. Like OldestWaiting, Backlog queries the
// database by index, on its own connection.
func (r *Relay) Backlog(ctx context.Context) (observe.Backlog, error) {
	return r.watch.Backlog(ctx, r.backlogOptions())
}

// Waiting is Backlog without errors, groups of dead letters and types without a route: cheap enough
// to be called every few seconds.
func (r *Relay) Waiting(ctx context.Context) (observe.Backlog, error) {
	o := r.backlogOptions()
	o.CountsOnly = true
	return r.watch.Backlog(ctx, o)
}

func (r *Relay) backlogOptions() store.BacklogOptions {
	return store.BacklogOptions{After: r.settledBelow(), Route: r.dispatcher.DestinationsOf}
}

// Run delivers events until ctx ends, or with Config.UntilIdle until nothing is left to do. It waits for a
// database that is down. It ends earlier with an error that wraps
//
//   - [outboxsql.ErrNotMigrated] or [outboxsql.ErrTooNew] if the schema is not the one that it needs;
//   - [outboxsql.ErrStream] if the table is a stream that cannot be read as one;
//   - [ErrCopy] if the tables are a copy, or a new connection leads to one while the relay runs;
//   - [outboxsql.ErrMode] if the table gets another mode while the relay runs;
//   - [ErrNeedsStream] if a destination needs a stream and the table is a queue;
//   - [ErrPooler] if the table is a queue, and the pool leads through a pooler in transaction mode past which
//     Config.ListenConfig does not lead;
//   - [ErrIDs] if the sequence of a stream was set back;
//   - [ErrDestination] if dead letters of a destination cannot go to its Lane.OnDead.To;
//   - [ErrRunTwice] if Run was called before.
//
// When ctx ends it stops in order: it claims nothing more; running deliveries may finish within the
// shutdown timeout; then their contexts are cancelled and their events are released without counting
// an attempt. Run returns nil after a clean stop, and [ErrShutdownIncomplete] if a handler did not
// return though its context had ended. Run does not close handlers: their creator does, after Run
// has returned.
func (r *Relay) Run(ctx context.Context) error {
	if !r.ran.CompareAndSwap(false, true) {
		return fmt.Errorf("notifyd: %w", ErrRunTwice)
	}
	err := r.runOnce(ctx)
	why := errors.New("the relay has stopped")
	if err != nil {
		why = fmt.Errorf("the relay has stopped: %w", err)
	}
	r.stopped.Store(&why)

	return err
}

// runOnce is Run, of a relay that has not run yet.
func (r *Relay) runOnce(ctx context.Context) error {
	defer r.dispatcher.End()

	if err := r.checkDeadLetters(); err != nil {
		return err
	}
	if len(r.dispatcher.Destinations()) == 0 {
		r.log.WarnContext(ctx, "relay has no destinations: events wait until it has some")
	}

	if err := r.prepare(ctx); err != nil || ctx.Err() != nil {
		if r.session != nil {
			r.session.Close(ctx)
		}
		return err
	}

	return r.run(ctx)
}

// ReloadRefused records that the program continues with this relay because it refused a new configuration: `notifyd
// status` and `notifyd reload` show the reason why. An empty why records that the program accepted the configuration,
// which changes nothing for this relay. ReloadRefused uses the pool that was passed to [New].
func (r *Relay) ReloadRefused(ctx context.Context, why string) error {
	ctx, cancel := answeredSoon(ctx)
	defer cancel()

	if why == "" {
		if err := store.NoteReload(ctx, r.pool, r.config.Schema, r.owner); err != nil {
			return fmt.Errorf("notifyd: %w", err)
		}
		return nil
	}

	if err := store.NoteRefusal(ctx, r.pool, r.config.Schema, r.owner, why); err != nil {
		return fmt.Errorf("notifyd: %w", err)
	}

	return nil
}

// answeredSoon bounds a statement through the pool, which itself waits for as long as ctx lasts: for a
// connection, and for a server that has vanished.
func answeredSoon(ctx context.Context) (context.Context, context.CancelFunc) {
	late := fmt.Errorf("the database did not answer within %v", store.RoundTripTimeout)
	return context.WithTimeoutCause(ctx, store.RoundTripTimeout, late)
}

// pausePoll is how often relays look for pauses: it bounds how late a pause of another relay, or of a person, is honoured.
const pausePoll = time.Second

// pauses honours the stored pauses of destinations, and stores that it does, with the states of all destinations.
type pauses struct {
	relay    *Relay
	mu       sync.Mutex                // held while pauses are read and honoured
	reported []store.DestinationReport // as stored last
}

// changed applies a pause that was just stored, or its end. A concurrent follow has already applied its own reading when
// changed gets the lock, and the next reading finds the change.
func (p *pauses) changed(destination string, is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	change := p.relay.dispatcher.Resume
	if is {
		change = p.relay.dispatcher.Pause
	}

	_ = change(destination) // it may be a destination of another relay
}

// honour applies the stored pauses, once, and returns a reading of the database's clock.
func (p *pauses) honour(ctx context.Context) (now store.ClockReading, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	paused, confirmed, now, err := p.relay.session.Paused(ctx)
	if err != nil {
		return now, err
	}

	p.relay.dispatcher.SetPaused(paused)

	reports := p.relay.reports()
	if confirmed && slices.Equal(reports, p.reported) {
		return now, nil
	}
	if err := p.relay.session.Confirm(ctx, paused, reports); err != nil {
		return now, err
	}
	p.reported = reports

	return now, nil
}

// reports are the states of the relay's destinations, for people who ask another process.
func (r *Relay) reports() []store.DestinationReport {
	stats := r.dispatcher.Figures()
	all := make([]store.DestinationReport, 0, len(stats))
	for i := range stats {
		all = append(all, store.ReportOf(&stats[i]))
	}
	return all
}

// follow applies the stored pauses until ctx ends, and watches the clock of the database. While the database does not
// answer, the last reading applies.
func (p *pauses) follow(ctx context.Context) {
	failing := false
	clock := clockWatch{relay: p.relay}
	for sleep.For(ctx, pausePoll) {
		now, err := p.honour(ctx)
		if err == nil {
			err = clock.look(ctx, now)
		}

		switch {
		case err == nil, ctx.Err() != nil:
		case store.IsDown(err): // reported once for all sessions
			p.relay.dispatcher.ReportDatabase(err)
		case !failing:
			p.relay.log.WarnContext(ctx, "pauses cannot be read", "err", err)
		}

		failing = err != nil
	}
}

// clockWatch notices that the clock of the database was set back, and corrects the stored deliveries, which would otherwise
// wait until the clock has caught up. One goroutine uses it.
type clockWatch struct {
	relay *Relay
	last  store.ClockReading
	next  time.Time // when deliveries are corrected again
}

const (
	// correctEvery is the least time between two corrections without a step. They find deliveries that were written while the
	// clock was ahead for less than the time between two readings, or committed after the last correction.
	correctEvery = 10 * time.Second
	// correctShare bounds the share of time that corrections take to 1/correctShare.
	correctShare = 100
)

// look takes a reading of the clock. The first look corrects what a step has left while no relay ran. After an error the
// next look tries again.
func (w *clockWatch) look(ctx context.Context, now store.ClockReading) error {
	isStep := !w.last.To.IsZero() && now.SteppedBack(w.last)
	w.last = now
	if isStep {
		w.relay.log.WarnContext(ctx, "clock of the database was set back")
		w.next = now.To
	}

	if now.To.Before(w.next) {
		return nil
	}

	began := time.Now()
	n, err := store.CorrectAhead(ctx, w.relay.session)
	if err == nil {
		w.next = time.Now().Add(max(correctEvery, correctShare*time.Since(began)))
	}
	if n > 0 {
		w.relay.log.WarnContext(ctx, "deliveries waited for the clock of the database", "deliveries", n)
	}
	if n > 0 || isStep {
		(*w.relay.engine.Load()).Payload(pgschema.WordDeliveries)
	}

	return err
}

// Shared is a listening connection that relays of several outboxes of one database share: set it in the Config of each of
// them. A notification of an outbox wakes its relay only, and the server wakes one session for it, not one per relay. The
// relays have their own sessions for everything but LISTEN.
//
// The pools and ListenConfigs of all these relays must lead to the same database, as the same user. A Shared has
// a connection only while one of its relays runs. It is safe for concurrent use.
type Shared struct {
	listener *listener.Listener

	changing sync.Mutex // held while relays come and go
	stop     func()     // ends the connection; nil without one

	mu     sync.Mutex
	relays []*Relay // those that listen; replaced as a whole, never changed
}

// NewShared returns a Shared without relays. canary is how often it sends itself a notification, to prove that its relays
// hear theirs; 0 is never. log may be nil.
func NewShared(canary time.Duration, log *slog.Logger) *Shared {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}

	s := &Shared{}
	s.listener = listener.New(s.connect, log)
	if canary > 0 {
		// It has a channel, an interval and a function, so it is not refused.
		_ = s.listener.Prove(listener.Proof{Channel: canaryChannel(store.NewOwner()), Every: canary, Notify: s.notify})
	}

	return s
}

// canaryChannel returns the channel of a listener's canaries. The number distinguishes processes.
func canaryChannel(owner int64) string { return fmt.Sprintf("notifyd_canary_%x", uint64(owner)) } //nolint:gosec // a name

// listen has r hear its notifications until ctx ends.
func (s *Shared) listen(ctx context.Context, r *Relay, sub *listener.Subscriber) {
	s.join(ctx, r, sub)
	<-ctx.Done()
	s.leave(r, sub)
}

func (s *Shared) join(ctx context.Context, r *Relay, sub *listener.Subscriber) {
	s.changing.Lock()
	defer s.changing.Unlock()

	s.setRelays(append(slices.Clone(s.present()), r))
	s.listener.Subscribe(sub)
	if s.stop != nil {
		return
	}

	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives the first relay
	ended := make(chan struct{})
	go func() { // stop waits for it
		defer close(ended)
		_ = s.listener.Run(ctx) // returns only the cause of ctx
	}()

	s.stop = func() {
		cancel()
		<-ended
	}
}

func (s *Shared) leave(r *Relay, sub *listener.Subscriber) {
	s.changing.Lock()
	defer s.changing.Unlock()

	s.listener.Unsubscribe(sub)
	left := slices.DeleteFunc(slices.Clone(s.present()), func(other *Relay) bool { return other == r })
	s.setRelays(left)
	if len(left) == 0 {
		s.stop()
		s.stop = nil
	}
}

func (s *Shared) setRelays(relays []*Relay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relays = relays
}

// present returns the relays that listen.
func (s *Shared) present() []*Relay {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.relays
}

// errNoRelay ends a use of a Shared whose last relay has just stopped.
var errNoRelay = errors.New("no relay uses the shared connection any more")

// connect opens the listening connection as one of the relays does.
func (s *Shared) connect(ctx context.Context) (*pgx.Conn, error) {
	relays := s.present()
	if len(relays) == 0 {
		return nil, errNoRelay
	}

	conn, err := relays[0].listening.Connect(ctx, "listen")
	if errors.Is(err, store.ErrPooler) {
		for _, r := range relays {
			r.pooled(ctx, err)
		}
	}

	return conn, err
}

// notify sends a canary as the first relay that can.
func (s *Shared) notify(ctx context.Context, channel, payload string) error {
	err := errNoRelay
	for _, r := range s.present() {
		err = (hints{r}).Notify(ctx, channel, payload)
		if err == nil || store.IsDown(err) || ctx.Err() != nil {
			break
		}
	}

	return err
}
