package queue

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/wake"
	"github.com/notifyd/notifyd/observe"
)

// Options has the components of an [Engine].
type Options struct {
	// Limits bound claims, leases and stopping.
	Limits engine.Limits
	// Dispatcher has the lanes and routes.
	Dispatcher *dispatch.Dispatcher
	// Outbox is the name of the outbox; empty for none.
	Outbox string
	// Claimers are Limits.Claims sessions. Run uses them; their creator closes them.
	Claimers []Claimer
	// Leases and House maintain deliveries that outlive their claims, and rows that no claim finds.
	Leases LeaseStore
	House  Housekeeper
	// Companions lists the sessions of all relays that claim.
	Companions Companions
	// Trigger may be nil if writers always notify.
	Trigger wake.Trigger
	Log     *slog.Logger
}

// Engine delivers the events of a queue: it claims rows that no other relay has locked, in any order, and marks an
// event when its destinations have acknowledged it. Relays compete for rows.
type Engine struct {
	Options
	limits  engine.Limits
	d       *dispatch.Dispatcher
	sched   *scheduler
	leases  *leases
	relay   *wake.Machine
	missing *engine.Missing

	claiming atomic.Int32 // open claims
	settling settling     // by claimer
	withheld withheldRows
	judge    judge

	companions []int32 // the claiming sessions at the last round of housekeeping; nil before the first
	rerouted   int     // events with a new route that are not logged yet

	unparkAt time.Time // the next search for parked deliveries

	again sync.Once // reports once that ids begin again

	work context.Context //nolint:containedctx // ends all deliveries; made by Run
}

// New returns an engine. Add all destinations to the dispatcher before.
func New(o Options) *Engine {
	e := &Engine{
		Options:  o,
		limits:   o.Limits,
		d:        o.Dispatcher,
		leases:   newLeases(o.Leases, o.Limits.Lease, o.Log),
		settling: make(settling, len(o.Claimers)),
		missing:  engine.NewMissing(o.Log),
	}

	e.relay = wake.New(wake.Options{Poll: o.Limits.PollInterval, Trigger: o.Trigger, Report: func(err error) { e.report("notify", err) }})
	e.sched = newScheduler(o.Limits, e.d.QueueLanes(), e.d, e.relay)

	e.judge.d = o.Dispatcher
	e.judge.evaluating = make([]atomic.Pointer[[]unjudged], len(o.Claimers))
	e.withheld.log = o.Log
	e.withheld.report = e.report
	e.withheld.rows = make(map[deliveries.Ref]*withheldRow)
	e.leases.report = e.report
	e.leases.retryIn = e.sched.dueIn
	e.leases.pauseClaims = e.sched.pauseClaims
	e.leases.answerRow = e.withheld.answered

	for _, l := range e.d.QueueLanes() {
		l.Serve(e.sched.capacity)
	}
	return e
}

// report records the result of statements of a part of the engine.
func (e *Engine) report(part string, err error) { store.Report(e.d, part, err) }

// lastWrite bounds the time to write the last answers.
const lastWrite = 5 * time.Second

// Run claims and delivers until ctx ends, then stops in order. It claims nothing more. Running deliveries may finish
// within the shutdown timeout; then they are cancelled and released without a counted attempt. Run returns nil or
// [dispatch.ErrShutdownIncomplete]. Call it once.
func (e *Engine) Run(ctx context.Context) error {
	e.work = e.d.Begin(ctx)

	// Three groups stop in this order: claimers, deliveries, and the goroutines that write late answers and renew
	// leases.
	var claimers, maintainers sync.WaitGroup
	for i, one := range e.Claimers {
		c := newClaimer(e, one, i)
		claimers.Go(func() { c.run(ctx) })
	}

	maintainCtx, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	defer stopKeeping()
	maintainers.Go(func() { e.leases.run(maintainCtx, lastWrite) })
	maintainers.Go(func() { e.relay.Run(maintainCtx) })
	maintainers.Go(func() { e.maintain(maintainCtx) })

	<-ctx.Done()
	e.sched.stop()
	err := e.d.Drain(&claimers)
	stopKeeping()
	maintainers.Wait()
	return err
}

// lanesOf returns the lanes of a work, none if no route matches.
func (e *Engine) lanesOf(w *Work) []dispatch.QueueLane {
	if w.Destination != "" {
		if l, ok := e.d.QueueLane(w.Destination); ok {
			return []dispatch.QueueLane{l}
		}
		return nil
	}

	lanes, firstTime := e.d.LanesOf(w.Event.Type)
	if lanes == nil && firstTime {
		e.Log.Warn("no route matches this event type", "event_type", w.Event.Type, "event_id", w.Event.ID)
	}
	return lanes
}

// Wake passes the id of a newly committed event. It never blocks.
func (e *Engine) Wake(id int64) { e.sched.hint(id) }

// Rescan requests a full sweep after possibly missed notifications. The relay also settles again: before it began to
// listen, writers may have found no relay that listens, and their transactions may still be open. Rescan never blocks.
func (e *Engine) Rescan() {
	e.sched.sweepAll()
	e.relay.Poke()
}

// Payload passes a notification that is not an id, and reports whether it is known. If not, call Rescan. It never blocks.
func (e *Engine) Payload(word string) bool {
	if word != pgschema.WordDeliveries {
		return false
	}
	e.sched.dueNow() // a replay notifies many times a second: no sweep may follow
	return true
}

// Blind switches fast polling, every 20 ms, on or off. It is on while notifications are not known to arrive. Blind
// never blocks.
func (e *Engine) Blind(is bool) {
	if e.relay.Blind(is); is {
		e.sched.sweepNow()
	}
}

// Ready is closed after the first sweep of the table.
func (e *Engine) Ready() <-chan struct{} { return e.sched.ready }

// idsBeginAgain reports a restarted search for events: the first time as a warning.
func (e *Engine) idsBeginAgain(ctx context.Context, r *restart) {
	level := slog.LevelDebug
	e.again.Do(func() { level = slog.LevelWarn })
	e.Log.Log(ctx, level, "event ids begin again below the highest known id",
		"highest_id", r.head, "sequence_at", r.last)
}

// SettledBelow returns an id below which fresh events are rare: only an event whose id was drawn long before the
// transaction wrote it can be there.
func (e *Engine) SettledBelow() int64 { return e.sched.settledBelow() }

// Claims reports whether a claim is open: the watermarks may have passed its events.
func (e *Engine) Claims() bool { return e.claiming.Load() > 0 }

// Stats adds the figures of the queue.
func (e *Engine) Stats(s *observe.Stats) {
	s.Mode = observe.ModeQueue
	s.Fenced = e.leases.fenced.Load()
	s.Leases = e.leases.stats()
	e.sched.stats(s)
}

// houseEvery bounds the pause between two rounds of housekeeping, however rarely the relay polls: the deliveries of a
// dead relay must not wait for a poll.
const houseEvery = time.Second

// unparkEvery is the least pause between two searches for parked deliveries, and unparkShare bounds the share of time that
// searches take to 1/unparkShare.
const (
	unparkEvery = 10 * time.Second
	unparkShare = 20
)

// houseAgain is the pause between two rounds while work remains: it leaves the database to the deliveries.
const houseAgain = 100 * time.Millisecond

// maintain takes over leases of dead relays, and finds unrouted events with a new route.
func (e *Engine) maintain(ctx context.Context) {
	failing := store.NewPauses()
	for ctx.Err() == nil {
		if e.withheld.due() {
			e.sched.sweepAll()
		}

		began := time.Now()
		more, err := e.houseRound(ctx)
		if ctx.Err() == nil {
			e.report("housekeeping", err)
		}

		pause := sleep.Spread(min(e.limits.PollInterval, houseEvery), spread)
		if more {
			pause = min(pause, houseAgain)
		}

		switch {
		case err == nil:
			failing.Reset()
		case session.IsOfRow(err): // the leases of dead relays do not wait for it
			pause = max(pause, unparkShare*time.Since(began))
		default:
			pause = max(pause, failing.After(err))
		}

		sleep.For(ctx, pause)
	}
}

// houseRound runs one round of housekeeping. It reports whether work remains.
func (e *Engine) houseRound(ctx context.Context) (more bool, err error) {
	n, refused := e.House.TakeOver(ctx, e.leases.tokens.Now)
	if refused != nil && !session.IsOfRow(refused) {
		return false, refused
	}

	if n > 0 {
		e.leases.taken.Add(uint64(n))
		e.Log.WarnContext(ctx, "took over leased deliveries", "deliveries", n)
		e.sched.dueNow()
	}

	if err := e.sweepAfterEnded(ctx); err != nil {
		return false, err
	}

	if began := time.Now(); !began.Before(e.unparkAt) {
		n, err := e.House.Unpark(ctx)
		if n == 0 {
			e.unparkAt = time.Now().Add(max(unparkEvery, unparkShare*time.Since(began)))
		}
		if n > 0 {
			e.sched.dueNow()
		}
		if n > 0 || err != nil && !session.IsOfRow(err) {
			return true, err
		}
		refused = cmp.Or(refused, err)
	}

	n, more, err = e.House.Reroute(ctx, e.d.Routed)
	if n > 0 {
		e.sched.dueNow()
	}

	e.rerouted += n
	if !more && e.rerouted > 0 {
		e.Log.InfoContext(ctx, "unrouted events have a route now", "events", e.rerouted)
		e.rerouted = 0
	}

	return more, cmp.Or(err, refused)
}

// sweepAfterEnded requests a sweep when a claiming session has ended: the watermarks have passed the rows it had
// locked, and during a backlog the next full sweep may be half a minute away. The first list also causes a sweep,
// because a session may have ended before it.
func (e *Engine) sweepAfterEnded(ctx context.Context) error {
	now, err := e.Companions.Claimers(ctx)
	if err != nil {
		return err
	}

	before := e.companions
	e.companions = now
	gone := slices.ContainsFunc(before, func(pid int32) bool { return !slices.Contains(now, pid) })
	if before == nil || gone {
		e.sched.sweepAll()
	}

	if gone {
		// A writer that did not notify because of that relay may still be open. Settling again waits for it.
		e.relay.Poke()
	}
	return nil
}
