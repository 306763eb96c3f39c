package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/exactly"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/internal/wake"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Options are the parts of an [Engine]. All fields except Program, Bell and Starts are required.
type Options struct {
	// Limits bound the engine; Claims is the number of connections that read, Batch the largest
	// number of events of one read, and Bytes bounds the payloads of one read.
	Limits engine.Limits
	// Dispatcher has the lanes and routes.
	Dispatcher *dispatch.Dispatcher
	// Connector opens connections.
	Connector *store.Connector
	// Owner is the number of the relay, see store.NewOwner.
	Owner int64
	// Program is what the relay says of itself; nothing without a process.
	Program store.Program
	// Outbox is the name of the outbox; empty for none.
	Outbox string
	// Bell is nil where the relay polls.
	Bell wake.Bell
	// Starts are the starts of destinations that have no position yet, by name. The others begin as
	// engine.Start's zero value.
	Starts map[string]engine.Start
	Log    *slog.Logger
}

// Engine delivers the events of a stream: it owns a share of the units, one for each destination,
// and each reads the table in the order of ids by itself.
type Engine struct {
	Options
	limits    engine.Limits
	d         *dispatch.Dispatcher
	log       *slog.Logger
	keys      dispatch.Keys
	pool      *pool
	leases    *lease.Holder
	witnesses *tail.Witnesses
	missing   *engine.Missing
	wake      *wake.Machine
	lanes     map[place]dispatch.StreamLane
	wanted    []Wanted
	routes    []routes.Wanted // of these

	ready     chan struct{} // closed after the table has been read for the first time
	readyOnce sync.Once
	refused   chan error                  // capacity 1: why the table cannot be read
	abandoned chan struct{}               // closed when running deliveries are abandoned
	loading   atomic.Int64                // units that load their stored deliveries
	readers   atomic.Int64                // units of destinations
	last      atomic.Int64                // the highest assigned id at the last query
	used      atomic.Pointer[tail.Ranges] // the assigned ids at that query; nil before

	mu    sync.Mutex
	ctx   context.Context //nolint:containedctx // of Run, for the units that it begins
	units map[place]*running
}

// place is a shard of a destination; the router has the zero value.
type place struct {
	destination string
	part        int
}

// running is a working unit.
type running struct {
	stop context.CancelFunc
	over chan struct{} // closed when it has ended
	part part          // nil until its position is loaded; guarded by the engine's mutex
}

// part is a unit, or the router.
type part interface {
	run(ctx context.Context) error
	hinted(seek bool)
	stats() observe.PositionStats
}

// Wanted is a destination that a relay delivers.
type Wanted struct {
	// Its name, empty for the router, and the routes of its events. They are stored with a new position.
	routes.Wanted
	// Start is where it begins if it has no position yet.
	Start engine.Start
	// Shards is the number of its shards, at least 1.
	Shards int
}

// New returns an engine.
func New(o Options) *Engine {
	e := &Engine{
		Options: o, limits: o.Limits, d: o.Dispatcher, log: o.Log, keys: dispatch.NewKeys(),
		pool: newPool(o.Connector, o.Limits.Claims), witnesses: tail.NewWitnesses(), missing: engine.NewMissing(o.Log),
		lanes: make(map[place]dispatch.StreamLane), units: make(map[place]*running),
		ready: make(chan struct{}), abandoned: make(chan struct{}), refused: make(chan error, 1),
	}
	var patterns []string
	for _, l := range e.d.StreamLanes() {
		d := l.Destination()
		e.lanes[place{d.Name, d.Part}] = l
		if d.Part > 0 {
			continue
		}
		patterns = append(patterns, e.d.Patterns(d.Name)...)
		e.wanted = append(e.wanted, Wanted{
			Wanted: routes.Wanted{Destination: d.Name, Routes: routes.Routes{Patterns: e.d.Patterns(d.Name), Drops: e.d.Drops(d.Name)}},
			Start:  o.Starts[d.Name], Shards: max(1, d.Shards),
		})
	}
	slices.Sort(patterns)
	for i := range e.wanted {
		w := &e.wanted[i]
		w.Others = slices.DeleteFunc(slices.Compact(slices.Clone(patterns)), func(p string) bool { return slices.Contains(w.Patterns, p) })
		e.routes = append(e.routes, w.Wanted)
	}
	e.wake = wake.New(wake.Options{
		Poll: o.Limits.PollInterval, Bell: o.Bell, Settle: e.settle, Changed: func(wake.State) { e.wakeAll() }, Report: func(err error) { e.report("bell", err) },
	})
	leases := lease.Options{Owner: o.Owner, Program: o.Program, Create: e.create, Arrange: e.arrange, Use: e.own, Gained: e.gained, Lost: e.lost, Report: e.report, Layouts: make(map[string]string)}
	for _, w := range e.wanted {
		leases.Destinations = append(leases.Destinations, w.Destination)
		leases.Layouts[w.Destination] = w.layout()
	}
	e.leases = lease.NewHolder(o.Connector, leases, o.Log)
	return e
}

// accepted records that the database refuses a part of the engine nothing any more, or that the part
// has ended.
func (e *Engine) accepted(part string) { e.d.ReportRefusal(observe.Refusal{Part: part}) }

// wantedOf returns the configuration of a destination.
func (e *Engine) wantedOf(name string) Wanted {
	return e.wanted[slices.IndexFunc(e.wanted, func(w Wanted) bool { return w.Destination == name })]
}

// create creates the positions of destinations that have none.
func (e *Engine) create(ctx context.Context, conn *session.Conn, names []string) error {
	missing := make([]Wanted, len(names))
	for i, name := range names {
		if name != "" {
			missing[i] = e.wantedOf(name)
		}
	}
	return create(ctx, conn, e.routes, missing, e.log)
}

// arrange gives a destination the layout of this relay: see lease.Options.
func (e *Engine) arrange(ctx context.Context, server, destination string) error {
	w := e.wantedOf(destination)
	a := &arrangement{e: e, w: &w, server: server}
	err := a.run(ctx)
	switch {
	case errors.Is(err, errNotNow), errors.Is(err, position.ErrFenced):
		return nil
	case final(err):
		e.refuse(err)
		return err
	case err != nil:
		return fmt.Errorf("change the shards of %q: %w", destination, err)
	}
	e.log.InfoContext(ctx, "shards of a destination changed", "destination", destination, "shards", w.Shards, "head", a.head)
	return nil
}

// exact returns the position of a shard that its destination keeps, nil if it keeps none. use lends a connection.
func (e *Engine) exact(d *dispatch.Destination, p *position.Position, use func(context.Context, func(*session.Conn) error) error) *exactly.Position {
	if d.Position == nil {
		return nil
	}
	return exactly.New(exactly.Host{
		Keeper: d.Position, Position: p, Name: d.Name, Schema: e.Connector.Schema, LongestPause: d.LongestPause, Log: e.log, Use: use,
		Report: func(err error, news bool) time.Duration { return e.d.ReportDestination(d.Name, d.Part, err, news) }, Observe: e.d.Observe,
	})
}

// own runs f, which writes the owner of a position, on a connection to the server in this life.
func (e *Engine) own(ctx context.Context, server string, f func(*session.Conn) error) error {
	return e.pool.own(ctx, &lease.Lease{Server: server}, f)
}

// Run delivers until ctx ends, then lets running deliveries finish within the shutdown timeout, and
// gives its units away. It returns nil, [dispatch.ErrShutdownIncomplete], [position.ErrIDs], [outboxsql.ErrStream], or the reason
// why the table cannot be read as a stream. The caller closes the engine afterwards.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.d.Begin(ctx)
	e.mu.Lock()
	e.ctx = ctx
	e.mu.Unlock()
	var work sync.WaitGroup
	work.Go(func() { e.wake.Run(ctx) })
	work.Go(func() { e.watchLast(ctx) })
	var leased error
	work.Go(func() {
		leased = e.leases.Run(ctx) // it waits for the units
		cancel()
	})
	var refused error
	select {
	case <-ctx.Done():
	case refused = <-e.refused:
		cancel()
	}
	err := e.d.Drain(&sync.WaitGroup{})
	close(e.abandoned)
	work.Wait()
	return errors.Join(refused, leased, err)
}

// Lend runs f on a connection that is not in use; f may take up to 15 s. After Close it fails.
func (e *Engine) Lend(ctx context.Context, f func(context.Context, *session.Conn) error) error {
	return e.pool.lend(ctx, f)
}

// Close closes the connections of an engine, for which it waits until they are no longer used. It can be called more than once.
func (e *Engine) Close(ctx context.Context) { e.pool.close(context.WithoutCancel(ctx)) }

// refuse ends Run.
func (e *Engine) refuse(err error) {
	select {
	case e.refused <- err:
	default: // another unit has already reported it
	}
}

// Wake reports an event that has just been committed. It never blocks.
func (e *Engine) Wake(int64) {
	e.wake.Heard()
	e.poke(false)
}

// Look requests a read of everything: notifications may have been missed, another relay keeps the
// bell silent, or a relay came or went. It never blocks.
func (e *Engine) Look() {
	e.wake.Poke()
	e.leases.Look()
	e.poke(true)
}

// Notifications other than the ids of events.
const (
	wordAwake      = "awake"      // another relay keeps the bell silent
	wordUnits      = "units"      // a relay came or went, or gave a unit away
	wordDeliveries = "deliveries" // stored deliveries were changed, as by a replay of dead letters
)

// Heard passes a notification to the part that it concerns, and reports whether it is known; if
// not, Look must be called. It never blocks.
func (e *Engine) Heard(word string) bool {
	switch word {
	case wordAwake:
		e.wake.Poke()
	case wordUnits:
		e.leases.Look()
	case wordDeliveries:
		e.poke(true) // a replay says so many times a second: nothing else may come of it
	default:
		return false
	}
	return true
}

// Holders is implemented by a [wake.Bell] that can tell whether another relay keeps it silent.
type Holders interface {
	Silenced(ctx context.Context) (bool, error)
}

// settle waits for silent writers. Each has drawn an id before, and holds the lock of the sequence until the end
// of its transaction. One that was silent because of another relay drew its id before that relay released the
// bell, so the first look that counts begins when all have. A relay that falls silent later notifies the others.
func (e *Engine) settle(uint64) func(context.Context) (wake.Writers, error) {
	holders, _ := e.Bell.(Holders)
	rings := false        // all relays have released the bell, at mark
	var mark uint64       // as looks count it
	var silent *tail.Look // possible silent writers
	silenced := func(ctx context.Context) bool {
		if holders == nil {
			return false
		}
		yes, err := holders.Silenced(ctx)
		return yes || err != nil
	}
	return func(ctx context.Context) (wake.Writers, error) {
		if !rings {
			if silenced(ctx) {
				return wake.Silenced, nil
			}
			rings, mark = true, e.witnesses.Mark()
		}
		now, err := e.lookAfter(ctx, mark)
		if err != nil || now == nil {
			return wake.Open, err
		}
		if silent == nil {
			silent = now
		}
		if now.Remain(silent) {
			return wake.Open, nil
		}
		if silenced(ctx) { // by a relay whose notification was not heard
			rings, silent = false, nil
			return wake.Silenced, nil
		}
		return wake.Ended, nil
	}
}

// lookAfter returns a look at the transactions that may have drawn ids, which began after a mark;
// nil if it is too early for one.
func (e *Engine) lookAfter(ctx context.Context, mark uint64) (l *tail.Look, err error) {
	err = e.pool.lend(ctx, func(ctx context.Context, conn *session.Conn) (err error) {
		l, err = e.witnesses.Look(ctx, conn)
		return err
	})
	if err != nil || l == nil || !l.Began(mark) {
		return nil, err
	}
	return l, nil
}

// Blind records whether notifications are not heard, or not known to be heard. It never blocks.
func (e *Engine) Blind(is bool) {
	e.wake.Blind(is)
	e.poke(false)
}

// Awake reports whether the relay reads without notifications: then nothing depends on them.
func (e *Engine) Awake() bool { return e.wake.State() == wake.Polling }

// Ready is closed after the table has been read for the first time, or when other
// relays own all units.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Stats adds the figures of the stream.
func (e *Engine) Stats(s *observe.Stats) {
	s.Mode, s.Bell = observe.ModeStream, e.wake.State().String()
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Positions = []observe.PositionStats{}
	for at, r := range e.units {
		p := observe.PositionStats{Destination: at.destination, Part: at.part, Loading: true}
		if r.part != nil {
			p = r.part.stats()
		}
		if p.Last = max(p.Head, e.last.Load()); p.Last > p.Head && r.part != nil {
			p.Unread = e.possible(tail.Ranges{{From: p.Head + 1, To: p.Last}})
		}
		s.Positions = append(s.Positions, p)
	}
	sortPositions(s.Positions)
}

// possible returns how many of the ids an event can have: a partition begins far above the last id
// of the previous one.
func (e *Engine) possible(ids tail.Ranges) int64 {
	if used := e.used.Load(); used != nil {
		return ids.And(*used).IDs()
	}
	return ids.IDs()
}

func (e *Engine) poke(seek bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.units {
		if r.part != nil {
			r.part.hinted(seek)
		}
	}
}

// announce makes all relays of the table check their units, routes and stored deliveries.
func (e *Engine) announce(ctx context.Context, conn *session.Conn) error {
	if _, err := conn.Exec(ctx, `SELECT pg_notify($1, 'deliveries') WHERE `+outboxsql.MayNotify, outboxsql.Channel(e.Connector.Schema)); err != nil {
		return fmt.Errorf("announce to other relays: %w", err)
	}
	e.poke(true)
	return nil
}

func (e *Engine) wakeAll() { e.poke(false) }

// report passes on what the statements of a part of the engine have come to.
func (e *Engine) report(part string, err error) { store.Report(e.d, part, err) }

// gained starts a unit.
func (e *Engine) gained(l lease.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ctx, stop := context.WithCancel(e.ctx)
	r := &running{stop: stop, over: make(chan struct{})}
	e.units[place{l.Destination, l.Part}] = r
	e.countUnitsLocked()
	go func() { // lost waits for it
		defer close(r.over)
		err := e.serve(ctx, r, l)
		if final(err) {
			e.refuse(err)
		}
		if err != nil {
			// Not an incident of its own: a unit ends because another owner continues, because
			// routes have changed, or because the server is another one.
			e.log.InfoContext(ctx, "left a unit to its next owner", "destination", unitName(l.Destination), "part", l.Part, "err", err)
			e.leases.Look()
		}
		if errors.Is(err, lease.ErrMoved) {
			e.leases.Doubt(&l)
		}
	}()
}

// serve loads the position of a unit, and works until ctx ends. It returns an error if the unit is lost.
func (e *Engine) serve(ctx context.Context, r *running, l lease.Lease) error {
	p, err := e.load(ctx, l)
	if err != nil || p == nil {
		return err
	}
	var part part
	if l.Destination == "" {
		part = newRouter(e, *p)
	} else {
		lane := e.lanes[place{l.Destination, l.Part}]
		if lane == nil || p.Shards != max(1, lane.Destination().Shards) {
			return errLayout
		}
		part = newUnit(e, lane, *p)
	}
	e.mu.Lock()
	r.part = part
	e.mu.Unlock()
	return part.run(ctx)
}

// load reads the position of a unit. It returns nil if ctx ends before.
func (e *Engine) load(ctx context.Context, l lease.Lease) (*position.Position, error) {
	name := partOf(place{l.Destination, l.Part})
	pauses := store.NewPauses()
	defer e.accepted(name)
	for ctx.Err() == nil {
		var p position.Position
		err := e.pool.use(ctx, &l, func(conn *session.Conn) (err error) {
			p, err = position.Load(ctx, conn, l)
			return err
		})
		switch {
		case err == nil:
			return &p, nil
		case errors.Is(err, position.ErrFenced), errors.Is(err, lease.ErrMoved):
			return nil, err
		case ctx.Err() == nil:
			e.report(name, err)
			sleep(ctx, pauses.After(err))
		}
	}
	return nil, nil //nolint:nilnil // the unit must be given away before it has begun
}

// errLayout means that a destination has another number of shards than this relay is configured with, or other routes.
var errLayout = errors.New("the destination has another number of shards, or other routes")

// partOf is the name of a unit in reports.
func partOf(at place) string {
	switch {
	case at.destination == "":
		return partRouter
	case at.part > 0:
		return fmt.Sprintf("destination %s, part %d", at.destination, at.part)
	}
	return "destination " + at.destination
}

// unitName is the name of a destination in a log: the router has no name.
func unitName(destination string) string {
	if destination == "" {
		return "(router)"
	}
	return destination
}

// lost ends a unit, and returns when none of its deliveries is running.
func (e *Engine) lost(destination string, part int) {
	at := place{destination, part}
	e.mu.Lock()
	r := e.units[at]
	e.mu.Unlock()
	if r == nil {
		return
	}
	r.stop()
	<-r.over
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.units, at)
	e.countUnitsLocked()
}

// seen returns what the units of destinations have read from one server, in one of its lives. After a failover that has lost events, a
// unit that still ends its calls has read events that no longer exist.
func (e *Engine) seen(server string) (all []*seen) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.units {
		if u, is := r.part.(*unit); is && u.pos.Server == server {
			if s := u.seen.Load(); s != nil {
				all = append(all, s)
			}
		}
	}
	return all
}

// countUnitsLocked records for how many destinations the relay reads. The router reports nothing that it finds.
func (e *Engine) countUnitsLocked() {
	n := len(e.units)
	if e.units[place{}] != nil {
		n--
	}
	e.readers.Store(int64(n))
	e.wake.Readers(n)
}

// began records that a unit has read the table.
func (e *Engine) began() { e.readyOnce.Do(func() { close(e.ready) }) }

// memory is how many bytes of events a unit may have in memory. All units share twice the bound of
// one read, and each has a minimum.
func (e *Engine) memory() int {
	return max(memoryShare*e.limits.Bytes/int(max(1, e.readers.Load())), leastMemory)
}

const (
	memoryShare = 2
	leastMemory = 256 << 10
)

// lastEvery is how often the highest id is queried, and the ids are checked.
const lastEvery = time.Second

// watchLast queries the highest id, from which lag is calculated, and checks the ids.
func (e *Engine) watchLast(ctx context.Context) {
	for ctx.Err() == nil {
		err := e.pool.lend(ctx, func(ctx context.Context, conn *session.Conn) error {
			last, text, err := store.UsedIDs(ctx, conn, e.Connector.Schema)
			if err != nil {
				return err
			}
			used, err := tail.ParseRanges(text)
			if err != nil {
				return fmt.Errorf("read the assigned ids: %w", err)
			}
			used.Add(tail.Range{From: last + 1, To: math.MaxInt64}) // ids assigned since then
			e.used.Store(&used)
			e.last.Store(last)
			return outboxsql.CheckIDs(ctx, conn, e.Connector.Schema)
		})
		if final(err) || errors.Is(err, outboxsql.ErrMode) {
			e.refuse(err)
		} else if ctx.Err() == nil {
			e.report("highest id", err)
		}
		sleep(ctx, lastEvery)
	}
}

// final reports whether no relay may go on until a person has acted.
func final(err error) bool {
	return errors.Is(err, position.ErrIDs) || errors.Is(err, outboxsql.ErrStream)
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func sortPositions(all []observe.PositionStats) {
	slices.SortFunc(all, func(a, b observe.PositionStats) int {
		return cmp.Or(cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Part, b.Part))
	})
}
