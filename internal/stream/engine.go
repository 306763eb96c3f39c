package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// Options say what an [Engine] works with. All fields but Bell and Starts are needed.
type Options struct {
	// Config has the limits; Claims is the number of connections that read, Batch the
	// largest number of events that one read returns, and Bytes bounds one read.
	Limits engine.Limits
	// Dispatcher has the lanes and routes.
	Dispatcher *dispatch.Dispatcher
	// Connector opens connections.
	Connector *store.Connector
	// Owner is the number of the relay, see store.NewOwner.
	Owner int64
	// Bell is nil where the relay polls.
	Bell engine.Bell
	// Starts say where destinations begin that have no position yet, by name. What is
	// not named begins as Start's zero value says.
	Starts map[string]Start
	// Log takes what there is to say.
	Log *slog.Logger
}

// Engine delivers the events of a stream: it owns a share of the units, one for each
// destination, and each reads the table in the order of ids for itself.
type Engine struct {
	Options
	limits    engine.Limits
	d         *dispatch.Dispatcher
	log       *slog.Logger
	keys      dispatch.Keys
	pool      *pool
	keeper    *Keeper
	witnesses *Witnesses
	vigil     *vigil
	lanes     map[string]dispatch.Lane
	wanted    []Wanted

	ready     chan struct{} // closed after the table has been read for the first time
	readyOnce sync.Once
	refused   chan error             // capacity 1: why the table cannot be read
	abandoned chan struct{}          // closed when nobody waits any more for what runs
	loading   atomic.Int64           // units that read what is stored of theirs
	last      atomic.Int64           // the highest id that was given out, when it was last asked for
	used      atomic.Pointer[Ranges] // the ids that were given out then; nil before

	mu       sync.Mutex
	sequence sequence
	ctx      context.Context //nolint:containedctx // of Run, for the units that it begins
	units    map[string]*running
}

// running is a unit at work.
type running struct {
	unit *unit // nil for the router
	stop context.CancelFunc
	over chan struct{} // closed when it has come to its end
	poke func(seek bool)
	stat func() observe.PositionStats
}

// New returns an engine.
func New(o Options) *Engine {
	e := &Engine{
		Options: o, limits: o.Limits, d: o.Dispatcher, log: o.Log, keys: dispatch.NewKeys(),
		pool: newPool(o.Connector, o.Limits.Claims+1), witnesses: NewWitnesses(),
		lanes: make(map[string]dispatch.Lane), units: make(map[string]*running),
		ready: make(chan struct{}), abandoned: make(chan struct{}), refused: make(chan error, 1),
	}
	var patterns []string
	for _, l := range e.d.Lanes() {
		e.lanes[l.Name()] = l
		patterns = append(patterns, e.d.Patterns(l.Name())...)
		e.wanted = append(e.wanted, Wanted{Destination: l.Name(), Start: o.Starts[l.Name()], Routes: Routes{Patterns: e.d.Patterns(l.Name())}})
	}
	slices.Sort(patterns)
	for i := range e.wanted {
		w := &e.wanted[i]
		w.Others = slices.DeleteFunc(slices.Compact(slices.Clone(patterns)), func(p string) bool { return slices.Contains(w.Patterns, p) })
	}
	e.vigil = newVigil(o.Limits.PollInterval, o.Bell)
	e.vigil.wakeAll, e.vigil.report, e.vigil.look, e.vigil.mark = e.wakeAll, e.report, e.lookAfter, e.witnesses.mark
	e.keeper = NewKeeper(o.Connector, KeeperOptions{
		Owner: o.Owner, Destinations: e.wanted, Gained: e.gained, Lost: e.lost,
	}, o.Log)
	return e
}

// wantedOf returns what is wanted of a destination.
func (e *Engine) wantedOf(name string) Wanted {
	return e.wanted[slices.IndexFunc(e.wanted, func(w Wanted) bool { return w.Destination == name })]
}

// Run delivers until ctx ends, and then lets what runs come to its end within the
// shutdown timeout, and gives its units away. It returns nil,
// [dispatch.ErrShutdownIncomplete], [ErrIDs], or why the table cannot be read as a stream.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.d.Begin(ctx)
	e.mu.Lock()
	e.ctx = ctx
	e.mu.Unlock()
	var work sync.WaitGroup
	work.Go(func() { e.vigil.run(ctx) })
	work.Go(func() { e.watchLast(ctx) })
	var kept error
	work.Go(func() {
		kept = e.keeper.Run(ctx) // it waits for the units
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
	e.pool.close(context.WithoutCancel(ctx)) // whoever has not come to an end is a handler
	return errors.Join(refused, kept, err)
}

// refuse ends Run.
func (e *Engine) refuse(err error) {
	select {
	case e.refused <- err:
	default: // another unit has said so
	}
}

// Wake takes the id of an event that has just been committed. It never blocks.
func (e *Engine) Wake(int64) {
	e.vigil.heard.Add(1)
	e.poke(false)
}

// Look takes word that notifications may have been missed, that another relay keeps the
// bell silent, that stored deliveries were changed, or that a relay came or went. It
// never blocks.
func (e *Engine) Look() {
	e.vigil.wake()
	e.keeper.Look()
	e.poke(true)
}

// What is notified beside the ids of events.
const (
	wordAwake = "awake" // another relay keeps the bell silent
	wordUnits = "units" // a relay came or went, or gave a unit away
)

// Heard takes word of something that concerns a part of the engine, and reports whether
// it knows the word; if not, Look is what to call. It never blocks.
func (e *Engine) Heard(word string) bool {
	switch word {
	case wordAwake:
		e.vigil.wake()
	case wordUnits:
		e.keeper.Look()
	default:
		return false
	}
	return true
}

// Blind takes word that notifications are not heard, or not known to be, and that they
// are again. It never blocks.
func (e *Engine) Blind(is bool) {
	e.vigil.blind.Store(is)
	e.poke(false)
}

// Awake reports whether the relay reads without being told to: then nothing depends on
// notifications.
func (e *Engine) Awake() bool { return e.vigil.is() == awake }

// Ready is closed after the table has been read for the first time, or when other
// relays own all units.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Stats adds the figures of the stream.
func (e *Engine) Stats(s *observe.Stats) {
	s.Mode, s.Bell = observe.ModeStream, e.vigil.is().String()
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Positions = []observe.PositionStats{}
	for _, r := range e.units {
		p := r.stat()
		if p.Last = max(p.Head, e.last.Load()); p.Last > p.Head {
			p.Unread = e.possible(Ranges{{p.Head + 1, p.Last}})
		}
		s.Positions = append(s.Positions, p)
	}
	sortPositions(s.Positions)
}

// possible returns how many of the ids an event can have: a partition begins far behind the
// last id of the one before.
func (e *Engine) possible(ids Ranges) int64 {
	if used := e.used.Load(); used != nil {
		return ids.common(*used)
	}
	return ids.IDs()
}

func (e *Engine) poke(seek bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.units {
		r.poke(seek)
	}
}

func (e *Engine) wakeAll() { e.poke(false) }

func (e *Engine) report(err error) { e.d.ReportDatabase(err) }

// gained begins with a unit.
func (e *Engine) gained(p Position) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ctx, stop := context.WithCancel(e.ctx)
	r := &running{stop: stop, over: make(chan struct{})}
	var run func(context.Context) error
	if p.Destination == "" {
		router := newRouter(e, p)
		run, r.poke, r.stat = router.run, router.hinted, router.stats
	} else {
		u := newUnit(e, e.lanes[p.Destination], p)
		r.unit, run, r.poke, r.stat = u, u.run, u.hinted, u.stats
	}
	e.units[p.Destination] = r
	e.vigil.units.Store(int64(len(e.units)))
	go func() { // lost waits for it
		defer close(r.over)
		err := run(ctx)
		if errors.Is(err, ErrIDs) {
			e.refuse(err)
		}
		if err != nil {
			// It is no trouble of its own: a unit ends so that another owner goes on, or
			// routes have changed, or the session is lost, of which the keeper tells.
			e.log.InfoContext(ctx, "a unit is left to its next owner", "destination", unitName(p.Destination), "err", err)
			e.keeper.Look()
		}
		if errors.Is(err, errMoved) {
			e.keeper.Renew(p)
		}
	}()
}

// unitName is a destination as a log shows it: the router has no name.
func unitName(destination string) string {
	if destination == "" {
		return "(router)"
	}
	return destination
}

// lost ends a unit, and returns when nothing of it is under way.
func (e *Engine) lost(destination string, _ int) {
	e.mu.Lock()
	r := e.units[destination]
	e.mu.Unlock()
	if r == nil {
		return
	}
	r.stop()
	<-r.over
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.units, destination)
	e.vigil.units.Store(int64(len(e.units)))
}

// began takes word that a unit has read the table.
func (e *Engine) began() { e.readyOnce.Do(func() { close(e.ready) }) }

// memory is how much of events a unit may have in memory. All units together have
// twice what one read may return, and each has a little in any case.
func (e *Engine) memory() int {
	return max(memoryShare*e.limits.Bytes/int(max(1, e.vigil.units.Load())), leastMemory)
}

const (
	memoryShare = 2
	leastMemory = 256 << 10
)

// lookAfter looks who may have drawn ids, with a look that began after a mark; nil if it is not
// time for one yet.
func (e *Engine) lookAfter(ctx context.Context, mark uint64) (l *Look, err error) {
	err = e.pool.plain(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		l, err = e.witnesses.Look(ctx, conn)
		return err
	})
	if err != nil || l == nil || l.began < mark {
		return nil, err
	}
	return l, nil
}

// lastEvery is how often the highest id is asked for.
const lastEvery = time.Second

// watchLast asks for the highest id, which is what lag is reckoned by.
func (e *Engine) watchLast(ctx context.Context) {
	for ctx.Err() == nil {
		err := e.pool.plain(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			last, text, err := store.UsedIDs(ctx, conn, e.Connector.Schema)
			if err != nil {
				return err
			}
			used, err := ParseRanges(text)
			if err != nil {
				return fmt.Errorf("ask for the ids that were given out: %w", err)
			}
			used.Add(Range{last + 1, math.MaxInt64}) // what was given out since
			e.used.Store(&used)
			e.last.Store(last)
			return nil
		})
		if ctx.Err() == nil {
			e.report(err)
		}
		sleep(ctx, lastEvery)
	}
}

func reconnectPauses() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstReconnect),
		backoff.WithMaxInterval(longestReconnect), backoff.WithMultiplier(2), backoff.WithMaxElapsedTime(0))
}
