package queue

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/observe"
)

// Options say what an [Engine] works with. Bell may be nil where writers always ring.
type Options struct {
	// Config has the limits.
	Limits engine.Limits
	// Dispatcher has the lanes and routes.
	Dispatcher *dispatch.Dispatcher
	// Claimers are Limits.Claims sessions. Run uses them; whoever made them closes them.
	Claimers []Claimer
	// Leases and House look after what outlives its claim, and what no claim finds.
	Leases LeaseKeeper
	House  Housekeeper
	// Bell is nil where the relay polls.
	Bell engine.Bell
	// Log takes what there is to say.
	Log *slog.Logger
}

// Engine delivers the events of a queue: it claims rows that nobody else has locked, in
// any order, and marks each when its destinations have acknowledged it. Relays compete for them.
type Engine struct {
	Options
	limits engine.Limits
	d      *dispatch.Dispatcher
	sched  *scheduler
	leases *leases
	ringer *ringer

	work context.Context //nolint:containedctx // ends all deliveries; made by Run
}

// New returns an engine. The destinations have been added to the dispatcher.
func New(o Options) *Engine {
	e := &Engine{Options: o, limits: o.Limits, d: o.Dispatcher, leases: newLeases(o.Leases, o.Limits.Lease, o.Log)}
	e.ringer = &ringer{bell: o.Bell, report: e.report, orders: make(chan bellOrder, 1), rates: make(chan float64, 1)}
	e.sched = newScheduler(o.Limits, e.d.Lanes(), e.d, e.ringer)
	e.ringer.rang, e.ringer.queued = e.sched.rang, e.sched.queued
	e.leases.report, e.leases.retryIn = e.report, e.sched.dueIn
	for _, l := range e.d.Lanes() {
		l.Serve(e.sched.room)
	}
	return e
}

func (e *Engine) report(err error) { e.d.ReportDatabase(err) }

// lastWrite bounds writing the last answers down.
const lastWrite = 5 * time.Second

// Run claims and delivers until ctx ends, then stops in order: nothing more is
// claimed, what runs may finish within the shutdown timeout, then it is
// cancelled and given back without counting an attempt. It returns nil, or
// [dispatch.ErrShutdownIncomplete]. Run can be called once.
func (e *Engine) Run(ctx context.Context) error {
	e.work = e.d.Begin(ctx)
	// Three circles, stopped from the outside in: who claims, who delivers,
	// who writes late answers and keeps leases.
	var claimers, keepers sync.WaitGroup
	for i, session := range e.Claimers {
		c := &claimer{e: e, session: session, log: e.Log.With("claimer", i), parts: make(map[dispatch.Lane]*part)}
		claimers.Go(func() { c.run(ctx) })
	}
	keepCtx, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	defer stopKeeping()
	keepers.Go(func() { e.leases.run(keepCtx, lastWrite) })
	keepers.Go(func() { e.ringer.run(keepCtx) })
	keepers.Go(func() { e.keepHouse(keepCtx) })

	<-ctx.Done()
	e.sched.stop()
	err := e.d.Drain(&claimers)
	stopKeeping()
	keepers.Wait()
	return err
}

// lanesOf returns where a work goes, nothing if no route matches.
func (e *Engine) lanesOf(w *Work) []dispatch.Lane {
	if w.Destination != "" {
		if l, ok := e.d.LaneOf(w.Destination); ok {
			return []dispatch.Lane{l}
		}
		return nil
	}
	lanes, firstTime := e.d.LanesOf(w.Event.Type)
	if lanes == nil && firstTime {
		e.Log.Warn("no route matches this event type; its events wait for one", "event_type", w.Event.Type, "event_id", w.Event.ID)
	}
	return lanes
}

// Wake takes the id of an event that has just been committed. It never blocks.
func (e *Engine) Wake(id int64) { e.sched.hint(id) }

// Look is called where notifications may have been missed. It never blocks.
func (e *Engine) Look() { e.sched.look() }

// Blind is called when notifications are not heard, or not known to be, and when
// they are again. While it is so, the table is looked at every 20 ms. It
// never blocks.
func (e *Engine) Blind(is bool) { e.sched.blind(is) }

// Awake reports whether the relay sweeps without a break: then nothing depends
// on notifications.
func (e *Engine) Awake() bool { return e.sched.awake() }

// Ready is closed after the table has been looked at for the first time.
func (e *Engine) Ready() <-chan struct{} { return e.sched.ready }

// SettledBelow returns an id below which hardly any event is still fresh: one
// whose id was drawn long before its transaction wrote is the exception.
func (e *Engine) SettledBelow() int64 { return e.sched.settledBelow() }

// Stats adds the figures of the queue.
func (e *Engine) Stats(s *observe.Stats) {
	s.Mode, s.Fenced, s.Leases = observe.ModeQueue, e.leases.fenced.Load(), e.leases.stats()
	e.sched.stats(s)
}

// houseEvery is the longest time between two looks, however seldom the table is
// polled: what a dead relay had in hand is not to wait for that.
const houseEvery = time.Second

// keepHouse looks after leases of relays that are gone, and after events that
// had no route when they came.
func (e *Engine) keepHouse(ctx context.Context) {
	failing := reconnectPauses()
	for ctx.Err() == nil {
		err := e.lookAfter(ctx)
		if ctx.Err() == nil {
			e.report(err)
		}
		pause := jittered(min(e.limits.PollInterval, houseEvery))
		if err != nil {
			pause = max(pause, failing.NextBackOff())
		} else {
			failing.Reset()
		}
		sleep(ctx, pause)
	}
}

func (e *Engine) lookAfter(ctx context.Context) error {
	n, err := e.House.TakeOver(ctx, e.leases.tokens.now)
	if err != nil {
		return err
	}
	if n > 0 {
		e.leases.taken.Add(uint64(n))
		e.Log.WarnContext(ctx, "took over deliveries of a relay that is gone, or whose answers the database has lost", "deliveries", n)
		e.sched.dueNow()
	}
	n, err = e.House.Reroute(ctx, e.d.Routed)
	if err == nil && n > 0 {
		e.Log.InfoContext(ctx, "event types that had no route have one now", "event_types", n)
		e.sched.dueNow()
	}
	return err
}

const (
	// firstReconnect is short: most broken connections come back at once.
	firstReconnect = 20 * time.Millisecond
	// longestReconnect bounds how long a database that is back goes unnoticed.
	longestReconnect = 2 * time.Second
)

// reconnectPauses returns the pauses between attempts to reach the database.
// It never gives up. One goroutine uses it.
func reconnectPauses() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstReconnect),
		backoff.WithMaxInterval(longestReconnect), backoff.WithMultiplier(2), backoff.WithMaxElapsedTime(0))
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
