package queue

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/wake"
	"github.com/notifyd/notifyd/observe"
)

// Options are the parts of an [Engine]. Bell may be nil where writers always ring.
type Options struct {
	// Limits bound claims, leases and stopping.
	Limits engine.Limits
	// Dispatcher has the lanes and routes.
	Dispatcher *dispatch.Dispatcher
	// Outbox is the name of the outbox; empty for none.
	Outbox string
	// Claimers are Limits.Claims sessions. Run uses them; their creator closes them.
	Claimers []Claimer
	// Leases and House maintain deliveries that outlive their claim, and rows that no claim finds.
	Leases LeaseKeeper
	House  Housekeeper
	// Companions are the sessions that claim, of all relays.
	Companions Companions
	// Bell is nil where the relay polls.
	Bell wake.Bell
	Log  *slog.Logger
}

// Engine delivers the events of a queue: it claims rows that no other relay has locked, in any
// order, and marks each when its destinations have acknowledged it. Relays compete for rows.
type Engine struct {
	Options
	limits  engine.Limits
	d       *dispatch.Dispatcher
	sched   *scheduler
	leases  *leases
	relay   *wake.Machine
	missing *engine.Missing

	recording recording // one of each claimer

	companions []int32 // the sessions that claimed at the last round of housekeeping, nil before the first
	rerouted   int     // events that have gained a route, of which nothing was logged yet

	again sync.Once // ids that begin again were reported

	work context.Context //nolint:containedctx // ends all deliveries; made by Run
}

// New returns an engine. All destinations must have been added to the dispatcher before.
func New(o Options) *Engine {
	e := &Engine{Options: o, limits: o.Limits, d: o.Dispatcher, leases: newLeases(o.Leases, o.Limits.Lease, o.Log), recording: make(recording, len(o.Claimers)), missing: engine.NewMissing(o.Log)}
	e.relay = wake.New(wake.Options{Poll: o.Limits.PollInterval, Bell: o.Bell, Report: func(err error) { e.report("bell", err) }})
	e.sched = newScheduler(o.Limits, e.d.QueueLanes(), e.d, e.relay)
	e.leases.report, e.leases.retryIn, e.leases.standStill = e.report, e.sched.dueIn, e.sched.salvage
	for _, l := range e.d.QueueLanes() {
		l.Serve(e.sched.room)
	}
	return e
}

// report passes on what the statements of a part of the engine have come to.
func (e *Engine) report(part string, err error) { store.Report(e.d, part, err) }

// lastWrite bounds the writing of the last answers.
const lastWrite = 5 * time.Second

// Run claims and delivers until ctx ends, then stops in order: it claims nothing more; running
// deliveries may finish within the shutdown timeout; then they are cancelled and given back without
// counting an attempt. It returns nil, or [dispatch.ErrShutdownIncomplete]. Run can be called once.
func (e *Engine) Run(ctx context.Context) error {
	e.work = e.d.Begin(ctx)
	// Three circles, stopped from the outside in: claimers, deliveries, and the goroutines that
	// write late answers and renew leases.
	var claimers, keepers sync.WaitGroup
	for i, session := range e.Claimers {
		c := newClaimer(e, session, i)
		claimers.Go(func() { c.run(ctx) })
	}
	keepCtx, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	defer stopKeeping()
	keepers.Go(func() { e.leases.run(keepCtx, lastWrite) })
	keepers.Go(func() { e.relay.Run(keepCtx) })
	keepers.Go(func() { e.keepHouse(keepCtx) })

	<-ctx.Done()
	e.sched.stop()
	err := e.d.Drain(&claimers)
	stopKeeping()
	keepers.Wait()
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
		e.Log.Warn("no route matches this event type; its events wait for one", "event_type", w.Event.Type, "event_id", w.Event.ID)
	}
	return lanes
}

// Wake passes the id of an event that has just been committed. It never blocks.
func (e *Engine) Wake(id int64) { e.sched.hint(id) }

// Look requests a full sweep, where notifications may have been missed. It never blocks.
func (e *Engine) Look() { e.sched.look() }

// wordDeliveries is the notification that stored deliveries were changed, as by a replay of dead
// letters.
const wordDeliveries = "deliveries"

// Heard passes a notification that is no id, and reports whether it is known; if not, Look must be
// called. It never blocks.
func (e *Engine) Heard(word string) bool {
	if word != wordDeliveries {
		return false
	}
	e.sched.dueNow() // a replay says so many times a second: no sweep may come of it
	return true
}

// Blind switches fast polling on or off: on while notifications are not heard, or not known to be
// heard. While it is on, the table is polled every 20 ms. Blind never blocks.
func (e *Engine) Blind(is bool) {
	if e.relay.Blind(is); is {
		e.sched.sweepNow()
	}
}

// Awake reports whether the relay sweeps without a break. Then nothing depends on notifications.
func (e *Engine) Awake() bool { return e.relay.State() == wake.Polling }

// Ready is closed after the first sweep of the table.
func (e *Engine) Ready() <-chan struct{} { return e.sched.ready }

// idsBeginAgain reports, once, that the search for events has begun anew.
func (e *Engine) idsBeginAgain(ctx context.Context, r *restart) {
	level := slog.LevelDebug
	e.again.Do(func() { level = slog.LevelWarn })
	e.Log.Log(ctx, level, "ids of events begin again, or an id was far above the sequence; the search for events begins anew",
		"highest_id", r.head, "sequence_at", r.last)
}

// SettledBelow returns an id below which hardly any event is still fresh. The exception is an event
// whose id was drawn long before its transaction wrote it.
func (e *Engine) SettledBelow() int64 { return e.sched.settledBelow() }

// Stats adds the figures of the queue.
func (e *Engine) Stats(s *observe.Stats) {
	s.Mode, s.Fenced, s.Leases = observe.ModeQueue, e.leases.fenced.Load(), e.leases.stats()
	e.sched.stats(s)
}

// houseEvery is the longest pause between two rounds of housekeeping, however seldom the table is
// polled: the deliveries of a dead relay must not wait for a poll.
const houseEvery = time.Second

// houseAgain is the pause between two rounds while there is more to do: it leaves the database to
// those who deliver.
const houseAgain = 100 * time.Millisecond

// keepHouse takes over leases of dead relays, and finds unrouted events that have gained a route.
func (e *Engine) keepHouse(ctx context.Context) {
	failing := store.NewPauses()
	for ctx.Err() == nil {
		more, err := e.houseRound(ctx)
		if ctx.Err() == nil {
			e.report("housekeeping", err)
		}
		pause := jittered(min(e.limits.PollInterval, houseEvery))
		if more {
			pause = min(pause, houseAgain)
		}
		if err != nil {
			pause = max(pause, failing.After(err))
		} else {
			failing.Reset()
		}
		sleep(ctx, pause)
	}
}

// houseRound is one round of housekeeping. It reports whether there is more to do at once.
func (e *Engine) houseRound(ctx context.Context) (more bool, err error) {
	n, err := e.House.TakeOver(ctx, e.leases.tokens.Now)
	if err != nil {
		return false, err
	}
	if n > 0 {
		e.leases.taken.Add(uint64(n))
		e.Log.WarnContext(ctx, "took over deliveries of a dead relay, or deliveries whose outcome the database lost", "deliveries", n)
		e.sched.dueNow()
	}
	if err := e.lookAfterOthers(ctx); err != nil {
		return false, err
	}
	n, more, err = e.House.Reroute(ctx, e.d.Routed)
	if n > 0 {
		e.sched.dueNow()
	}
	if e.rerouted += n; !more && e.rerouted > 0 {
		e.Log.InfoContext(ctx, "events without a route have gained one", "events", e.rerouted)
		e.rerouted = 0
	}
	return more, err
}

// lookAfterOthers has the table swept when a session that claimed has ended: the marks have passed
// what it had locked, and the next full sweep may be half a minute away while there is a backlog.
// The first list is followed by a sweep, too: a session may have ended since the first one.
func (e *Engine) lookAfterOthers(ctx context.Context) error {
	now, err := e.Companions.Claimers(ctx)
	if err != nil {
		return err
	}
	before := e.companions
	e.companions = now
	gone := slices.ContainsFunc(before, func(pid int32) bool { return !slices.Contains(now, pid) })
	if before == nil || gone {
		e.sched.look()
	}
	if gone {
		// A writer that was silent because of that relay may not have committed. This one settles anew, and waits for it.
		e.relay.Poke()
	}
	return nil
}

const (
	// firstReconnect is short: most connections can be replaced at once.
	firstReconnect = 20 * time.Millisecond
	// longestReconnect bounds how long the return of a database goes unnoticed.
	longestReconnect = 2 * time.Second
)

// reconnectPauses returns the pauses between attempts to reach the database. It never gives up.
// Only one goroutine may use it.
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
