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
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/modelock"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/routing"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/internal/wake"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Options are the parts of an [Engine]. All fields except Program, Trigger and Starts are required.
type Options struct {
	// Limits bound the engine. Claims is the number of connections that read, Batch the largest number of events of one
	// read, and Bytes bounds the payloads of one read.
	Limits engine.Limits
	// Dispatcher has the lanes and routes.
	Dispatcher *dispatch.Dispatcher
	// Connector opens connections.
	Connector *store.Connector
	// Owner is the number of the relay: see store.NewOwner.
	Owner int64
	// Program describes the relay's process; the zero value without a process.
	Program store.Program
	// Outbox is the name of the outbox, or empty.
	Outbox string
	// Trigger is nil if the relay polls.
	Trigger wake.Trigger
	// Starts are the starts of destinations without a position, by name. Other destinations begin at engine.Start's
	// zero value.
	Starts map[string]engine.Start
	Log    *slog.Logger
}

// Engine delivers the events of a stream. It leases a share of the shards, and each shard reads the table in the order
// of ids.
type Engine struct {
	Options
	limits  engine.Limits
	d       *dispatch.Dispatcher
	log     *slog.Logger
	keys    dispatch.Keys
	pool    *pool
	leases  *lease.Holder
	writers *tail.WriterScanner
	missing *engine.Missing
	wake    *wake.Machine
	lanes   map[shardKey]dispatch.StreamLane
	wanted  []Wanted
	routes  []routes.Wanted // of wanted

	ready     chan struct{} // closed after the table has been read for the first time
	readyOnce sync.Once
	refused   chan error                // capacity 1: why the table cannot be read
	abandoned chan struct{}             // closed when running deliveries are abandoned
	loading   atomic.Int64              // shards that load their stored deliveries
	readers   atomic.Int64              // shards of destinations
	last      atomic.Int64              // the highest assigned id at the last query
	used      atomic.Pointer[idset.Set] // the assigned ids at that query; nil before

	mu     sync.Mutex
	ctx    context.Context //nolint:containedctx // of Run, for the shards that it begins
	shards map[shardKey]*activeShard
}

// shardKey identifies a shard of a destination. The unrouted scanner has the zero value.
type shardKey struct {
	destination string
	shard       int
}

// activeShard is a working shard.
type activeShard struct {
	stop   context.CancelFunc
	over   chan struct{} // closed when it has ended
	runner runner        // nil until its position is loaded; guarded by the engine's mutex
}

// runner is a shard, or the unrouted scanner.
type runner interface {
	run(ctx context.Context) error
	wakeUp(seek bool)
	stats() observe.PositionStats
}

// Wanted is a destination that a relay delivers.
type Wanted struct {
	// The embedded value has the destination's name, empty for the unrouted scanner, and its routes, which are stored
	// with a new position.
	routes.Wanted
	// Start is where the destination begins if it has no position.
	Start engine.Start
	// Shards is the number of shards, at least 1.
	Shards int
}

// New returns an engine.
func New(o Options) *Engine {
	e := &Engine{
		Options: o, limits: o.Limits, d: o.Dispatcher, log: o.Log, keys: dispatch.NewKeys(),
		pool: newPool(o.Connector, o.Limits.Claims), writers: tail.NewWriterScanner(), missing: engine.NewMissing(o.Log),
		lanes: make(map[shardKey]dispatch.StreamLane), shards: make(map[shardKey]*activeShard),
		ready: make(chan struct{}), abandoned: make(chan struct{}), refused: make(chan error, 1),
	}

	var patterns []string
	for _, l := range e.d.StreamLanes() {
		d := l.Destination()
		e.lanes[shardKey{d.Name, d.Shard}] = l
		if d.Shard > 0 {
			continue
		}
		patterns = append(patterns, e.d.Patterns(d.Name)...)
		e.wanted = append(e.wanted, Wanted{
			Wanted: routes.Wanted{Destination: d.Name, Routes: routing.Routes{Patterns: e.d.Patterns(d.Name), Drops: e.d.Drops(d.Name)}},
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
		Poll:    o.Limits.PollInterval,
		Trigger: o.Trigger,
		Settle:  e.settle,
		Changed: func(wake.State) { e.wakeAll() },
		Report:  func(err error) { e.report("notify", err) },
	})

	leases := lease.Options{
		Owner:   o.Owner,
		Program: o.Program,
		Create:  e.create,
		Arrange: e.arrange,
		Use:     e.own,
		Gained:  e.gained,
		Lost:    e.lost,
		Report:  e.report,
		Layouts: make(map[string]string),
	}

	for _, w := range e.wanted {
		leases.Destinations = append(leases.Destinations, w.Destination)
		leases.Layouts[w.Destination] = w.layout()
	}

	e.leases = lease.NewHolder(o.Connector, leases, o.Log)
	return e
}

// accepted reports that the database accepts all statements of a part of the engine again, or that the part has ended.
func (e *Engine) accepted(part string) { e.d.ReportRefusal(observe.Refusal{Part: part}) }

// wantedOf returns the configuration of a destination.
func (e *Engine) wantedOf(name string) Wanted {
	return e.wanted[slices.IndexFunc(e.wanted, func(w Wanted) bool { return w.Destination == name })]
}

// create creates the positions of destinations without one.
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
	a := &layoutChange{e: e, w: &w, server: server}
	err := a.run(ctx)

	switch {
	case errors.Is(err, errConcurrentChange), errors.Is(err, position.ErrFenced):
		return nil
	case permanent(err):
		e.refuse(err)
		return err
	case err != nil:
		return fmt.Errorf("change the shards of %q: %w", destination, err)
	}

	e.log.InfoContext(ctx, "shards of a destination changed", "destination", destination, "shards", w.Shards, "head", a.head)
	return nil
}

// exact wraps the position of a shard if its destination keeps a copy, and returns nil if not. use lends a connection.
func (e *Engine) exact(d *dispatch.Destination, p *position.Position, use func(context.Context, func(*session.Conn) error) error) *exactly.Position {
	if d.Position == nil {
		return nil
	}
	return exactly.New(exactly.Host{
		Store: d.Position, Position: p, Name: d.Name, Schema: e.Connector.Schema, LongestPause: d.LongestPause, Log: e.log, Use: use,
		Report: func(err error, changed bool) time.Duration {
			return e.d.ReportDestination(d.Name, d.Shard, err, changed)
		}, Observe: e.d.Observe,
	})
}

// own runs f, which writes the owner of a position, on a connection to the server in this life.
func (e *Engine) own(ctx context.Context, server string, f func(*session.Conn) error) error {
	return e.pool.own(ctx, &lease.Lease{Server: server}, f)
}

// Run delivers until ctx ends. Then running deliveries finish within the shutdown timeout, and Run releases its shards.
// It returns nil, [dispatch.ErrShutdownIncomplete], [position.ErrIDs], [outboxsql.ErrStream], or the reason why the
// table cannot be read as a stream. The caller closes the engine afterwards.
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
		leased = e.leases.Run(ctx) // it waits for the shards
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

// Close closes the connections of the engine, once they are unused. It can be called more than once.
func (e *Engine) Close(ctx context.Context) { e.pool.close(context.WithoutCancel(ctx)) }

// refuse ends Run.
func (e *Engine) refuse(err error) {
	select {
	case e.refused <- err:
	default: // another shard has already reported it
	}
}

// Wake reports an event that has just been committed. It never blocks.
func (e *Engine) Wake(int64) {
	e.wake.Notified()
	e.poke(false)
}

// Rescan requests a read of everything: notifications may have been missed, another relay suppresses the trigger, or a
// relay came or went. It never blocks.
func (e *Engine) Rescan() {
	e.wake.Poke()
	e.leases.Rebalance()
	e.poke(true)
}

// Payload passes a notification to the part that it concerns, and reports whether it is known. If not, the caller must
// call Rescan. It never blocks.
func (e *Engine) Payload(word string) bool {
	switch word {
	case pgschema.WordPolling:
		e.wake.Poke()
	case pgschema.WordShards:
		e.leases.Rebalance()
	case pgschema.WordDeliveries:
		e.poke(true) // a replay notifies many times a second: nothing more expensive may follow
	default:
		return false
	}
	return true
}

// Holders is implemented by a [wake.Trigger] that can report whether another relay suppresses notifications.
type Holders interface {
	Suppressed(ctx context.Context) (bool, error)
}

// settle waits for silent writers. A silent writer has already drawn an id, and holds the lock of the sequence until
// the end of its transaction. If another relay suppressed it, it drew its id before that relay released the trigger. So the
// first scan that counts begins after all relays have released the trigger. A relay that suppresses the trigger later notifies the
// others.
func (e *Engine) settle(uint64) func(context.Context) (wake.Writers, error) {
	holders, _ := e.Trigger.(Holders)
	released := false           // all relays have released the trigger, at tick
	var tick uint64             // the count of scans at that moment
	var silent *tail.WriterScan // possible silent writers
	suppressed := func(ctx context.Context) (bool, error) {
		if holders == nil {
			return false, nil
		}
		return holders.Suppressed(ctx)
	}

	return func(ctx context.Context) (wake.Writers, error) {
		if !released {
			if yes, err := suppressed(ctx); yes || err != nil {
				return wake.Suppressed, err
			}
			released = true
			tick = e.writers.Tick()
		}

		now, err := e.scanAfter(ctx, tick)
		if err != nil || now == nil {
			return wake.Open, err
		}

		if silent == nil {
			silent = now
		}

		if now.HasAny(silent) {
			return wake.Open, nil
		}

		if yes, err := suppressed(ctx); yes || err != nil { // by a relay whose notification was not received
			released = false
			silent = nil
			return wake.Suppressed, err
		}

		return wake.Ended, nil
	}
}

// scanAfter scans the transactions that may have drawn ids. It returns nil if it is too early for a scan that begins
// after the tick.
func (e *Engine) scanAfter(ctx context.Context, tick uint64) (l *tail.WriterScan, err error) {
	err = e.pool.lend(ctx, func(ctx context.Context, conn *session.Conn) (err error) {
		l, err = e.writers.Scan(ctx, conn, "")
		return err
	})
	if err != nil || l == nil || !l.BeganAfter(tick) {
		return nil, err
	}
	return l, nil
}

// Blind records whether notifications may be lost. It never blocks.
func (e *Engine) Blind(is bool) {
	e.wake.Blind(is)
	e.poke(false)
}

// Polling reports whether the relay polls.
func (e *Engine) Polling() bool { return e.wake.State() == wake.Polling }

// Ready is closed after the table has been read for the first time, or when other relays lease all shards.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Stats adds the figures of the stream.
func (e *Engine) Stats(s *observe.Stats) {
	s.Mode = observe.ModeStream
	s.WakeState = e.wake.State().String()

	e.mu.Lock()
	defer e.mu.Unlock()

	s.Positions = []observe.PositionStats{}
	for at, r := range e.shards {
		p := observe.PositionStats{Destination: at.destination, Shard: at.shard, Loading: true}
		if r.runner != nil {
			p = r.runner.stats()
		}

		p.Last = max(p.Head, e.last.Load())
		if p.Last > p.Head && r.runner != nil {
			p.Unread = e.possible(idset.Set{{From: p.Head + 1, To: p.Last}})
		}
		s.Positions = append(s.Positions, p)
	}

	sortPositions(s.Positions)
}

// possible returns how many of the ids can belong to events: a partition begins far above the last id of the previous
// one.
func (e *Engine) possible(ids idset.Set) int64 {
	if used := e.used.Load(); used != nil {
		return ids.And(*used).IDs()
	}
	return ids.IDs()
}

func (e *Engine) poke(seek bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.shards {
		if r.runner != nil {
			r.runner.wakeUp(seek)
		}
	}
}

// channel returns the channel on which relays of the table listen.
func (e *Engine) channel() string { return pgschema.Channel(e.Connector.Schema) }

// announce makes all relays of the table check their shards, routes and stored deliveries.
func (e *Engine) announce(ctx context.Context, conn *session.Conn) error {
	if _, err := conn.Exec(ctx, sqlAnnounce, e.channel()); err != nil {
		return fmt.Errorf("notify other relays: %w", err)
	}
	e.poke(true)
	return nil
}

func (e *Engine) wakeAll() { e.poke(false) }

// report reports the result of the statements of a part of the engine; nil if they succeed.
func (e *Engine) report(part string, err error) { store.Report(e.d, part, err) }

// gained starts a shard.
func (e *Engine) gained(l lease.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()

	ctx, stop := context.WithCancel(e.ctx)
	r := &activeShard{stop: stop, over: make(chan struct{})}
	e.shards[shardKey{l.Destination, l.Shard}] = r
	e.countShardsLocked()

	go func() { // lost waits for it
		defer close(r.over)
		err := e.serveAgain(ctx, r, l)
		if permanent(err) {
			e.refuse(err)
		}
		if err != nil {
			// No incident: a shard ends because another owner continues, because routes have changed, or because the
			// server is another one.
			e.log.InfoContext(ctx, "shard ended", "destination", observe.PositionName(l.Destination), "shard", l.Shard, "err", err)
			e.leases.Rebalance()
		}

		if errors.Is(err, lease.ErrMoved) {
			e.leases.Reconnect(&l)
		}
	}()
}

// serveAgain serves a shard, and begins again after a panic.
func (e *Engine) serveAgain(ctx context.Context, r *activeShard, l lease.Lease) error {
	pauses := store.NewPauses()
	for {
		err := engine.Protected("a shard", func() error { return e.serve(ctx, r, l) })
		if !errors.Is(err, engine.ErrPanicked) || ctx.Err() != nil {
			return err
		}

		e.report(reportName(shardKey{l.Destination, l.Shard}), err)
		sleep.For(ctx, pauses.After(err))
	}
}

// serve loads the position of a shard, and works until ctx ends. It returns an error if the shard is lost.
func (e *Engine) serve(ctx context.Context, r *activeShard, l lease.Lease) error {
	p, err := e.load(ctx, l)
	if err != nil || p == nil {
		return err
	}

	var runner runner
	if l.Destination == "" {
		runner = newUnroutedScanner(e, *p)
	} else {
		lane := e.lanes[shardKey{l.Destination, l.Shard}]
		if lane == nil || p.Shards != max(1, lane.Destination().Shards) {
			return errLayout
		}
		runner = newShard(e, lane, *p)
	}

	e.mu.Lock()
	r.runner = runner
	e.mu.Unlock()
	return runner.run(ctx)
}

// load reads the position of a shard. It returns nil if ctx ends first.
func (e *Engine) load(ctx context.Context, l lease.Lease) (*position.Position, error) {
	name := reportName(shardKey{l.Destination, l.Shard})
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
			sleep.For(ctx, pauses.After(err))
		}
	}
	return nil, nil //nolint:nilnil // the shard is released before it has begun
}

// errLayout means that a destination has another number of shards, or other routes, than this relay's configuration.
var errLayout = errors.New("the destination has another number of shards, or other routes")

// reportName returns the name of a shard in reports.
func reportName(at shardKey) string {
	switch {
	case at.destination == "":
		return reportScanner
	case at.shard > 0:
		return fmt.Sprintf("destination %s, shard %d", at.destination, at.shard)
	}
	return "destination " + at.destination
}

// lost ends a shard, and returns when none of its deliveries is running.
func (e *Engine) lost(destination string, shard int) {
	at := shardKey{destination, shard}
	e.mu.Lock()
	r := e.shards[at]
	e.mu.Unlock()

	if r == nil {
		return
	}

	r.stop()
	<-r.over

	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.shards, at)
	e.countShardsLocked()
}

// seen returns the ids that shards of destinations have read from one server, in one of its lives. After a failover
// that lost events, a shard that still ends its calls has read events that no longer exist.
func (e *Engine) seen(server string) (all []*seen) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.shards {
		if sh, is := r.runner.(*shard); is && sh.pos.Server == server {
			if s := sh.seen.Load(); s != nil {
				all = append(all, s)
			}
		}
	}
	return all
}

// countShardsLocked records for how many shards of destinations the relay reads. The unrouted scanner does not report
// its events to wake.
func (e *Engine) countShardsLocked() {
	n := len(e.shards)
	if e.shards[shardKey{}] != nil {
		n--
	}

	e.readers.Store(int64(n))
	e.wake.Readers(n)
}

// began records that a shard has read the table.
func (e *Engine) began() { e.readyOnce.Do(func() { close(e.ready) }) }

// memory returns how many bytes of events a shard may have in memory. All shards share twice the bound of one read, and
// each has a minimum.
func (e *Engine) memory() int {
	return max(memoryShare*e.limits.Bytes/int(max(1, e.readers.Load())), minMemory)
}

const (
	memoryShare = 2
	minMemory   = 256 << 10
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

			used, err := idset.Parse(text)
			if err != nil {
				return fmt.Errorf("read the assigned ids: %w", err)
			}

			used.Add(idset.Range{From: last + 1, To: math.MaxInt64}) // ids assigned since then
			e.used.Store(&used)
			e.last.Store(last)
			return pgschema.CheckIDs(ctx, conn, e.Connector.Schema)
		})

		if permanent(err) || modelock.EndsRelay(err) {
			e.refuse(err)
		} else if ctx.Err() == nil {
			e.report("highest id", err)
		}

		sleep.For(ctx, lastEvery)
	}
}

// permanent reports whether an error stops all relays until a person acts.
func permanent(err error) bool {
	return errors.Is(err, position.ErrIDs) || errors.Is(err, outboxsql.ErrStream)
}

func sortPositions(all []observe.PositionStats) {
	slices.SortFunc(all, func(a, b observe.PositionStats) int {
		return cmp.Or(cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Shard, b.Shard))
	})
}
