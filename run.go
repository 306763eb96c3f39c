package notifyd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/backoff"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/modelock"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/queue"
	sessions "github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/stream"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// prepare waits for the database, checks the schema and creates the engine.
func (r *Relay) prepare(ctx context.Context) error {
	const start = "start of the relay"
	pauses := backoff.Reconnects()

	for ctx.Err() == nil {
		t, err := r.checkSchema(ctx)
		if err == nil {
			err = r.createEngine(ctx, t)
		}
		if err == nil {
			err = r.missDestinations(ctx)
		}

		switch {
		case err == nil:
			store.Report(r.dispatcher, start, nil)
			return nil
		case errors.Is(err, outboxsql.ErrNotMigrated), errors.Is(err, outboxsql.ErrTooNew), modelock.EndsRelay(err),
			errors.Is(err, outboxsql.ErrStream), errors.Is(err, ErrNeedsStream):
			return fmt.Errorf("notifyd: %w", err)
		case errors.Is(err, store.ErrPooler):
			if err := r.avoidPooler(ctx, err); err != nil {
				return err
			}
			continue

		case ctx.Err() == nil:
			store.Report(r.dispatcher, start, err)
		}

		sleep.For(ctx, pauses.Next())
	}

	return nil
}

// avoidPooler makes all connections go past a pooler that would break every part of a relay of a queue, if a
// way past it is configured, and reports it once.
func (r *Relay) avoidPooler(ctx context.Context, err error) error {
	if r.config.ListenConfig == nil || r.connector.Redirected() {
		return fmt.Errorf("notifyd: database.url: %w; a direct database.listen_url would be used for all connections", err)
	}

	r.connector.Redirect(r.config.ListenConfig)
	r.log.WarnContext(ctx,
		"database.url leads through a pooler in transaction mode: all connections of the relay use database.listen_url instead",
		"host", r.config.ListenConfig.Host, "port", r.config.ListenConfig.Port)
	return nil
}

// sharePooler prepares a stream whose connections lead through a pooler, and reports that once. Where LISTEN has no direct way
// either, the trigger is never suppressed: no relay listens.
func (r *Relay) sharePooler(ctx context.Context) {
	if r.shared.CompareAndSwap(false, true) {
		r.log.InfoContext(ctx, "database.url leads through a pooler in transaction mode: only LISTEN needs a direct database.listen_url")
	}
	if r.trigger == nil {
		return
	}

	conn, err := r.connectTrigger(ctx)
	switch {
	case err == nil:
		store.Close(ctx, conn)
	case errors.Is(err, store.ErrPooler):
		r.trigger = nil
	}
}

// table is what a relay learns of its table before it creates an engine.
type table struct {
	isStream bool
	isShared bool // connections lead through a pooler
}

// checkSchema reads the table, and returns an error if this relay cannot work with it. It changes nothing.
func (r *Relay) checkSchema(ctx context.Context) (t table, err error) {
	conn, err := r.connector.Open(ctx, "check")
	if err != nil {
		return t, err
	}
	defer store.Close(ctx, conn.Conn)

	if err := outboxsql.Check(ctx, conn, r.config.Schema); err != nil {
		return t, err
	}

	state, err := outboxsql.ReadState(ctx, conn, r.config.Schema)
	if err != nil {
		return t, err
	}
	if err := state.Home.Check(r.config.Schema); err != nil {
		return t, err
	}

	t.isStream = state.Mode == outboxsql.ModeStream
	t.isShared = conn.IsShared()
	switch {
	case t.isStream:
		return t, pgschema.CheckIDs(ctx, conn, r.config.Schema)
	case len(r.needy) > 0:
		return t, fmt.Errorf("outbox_events of schema %q is a queue, and destinations want more (%s): %w",
			r.config.Schema, strings.Join(r.needy, ", "), ErrNeedsStream)
	case t.isShared:
		return t, store.ErrPooler
	default:
		return t, nil
	}
}

// createEngine creates the engine for the table. After an error it can be called again.
func (r *Relay) createEngine(ctx context.Context, t table) error {
	r.stream = t.isStream
	if !t.isStream {
		if r.queue.Load() == nil {
			r.claimQueue()
		}
		return r.session.Hold(ctx)
	}

	if r.session != nil { // of an attempt that has failed
		r.session.Close(ctx)
	}
	if t.isShared {
		r.sharePooler(ctx)
	}
	r.readStream()

	return nil
}

// missDestinations reports once the destinations that this relay does not have and for which
// deliveries wait: most likely renamed ones, or those of another relay.
func (r *Relay) missDestinations(ctx context.Context) error {
	// Before anything is delivered. A role that may not read pauses yet finds none, for which no waiting would help.
	if _, err := r.pauses.honour(ctx); err != nil && !store.IsDenied(err) {
		return err
	}

	names, err := r.session.Destinations(ctx)
	if err != nil {
		return err
	}

	names = slices.DeleteFunc(names, r.dispatcher.Has)
	if len(names) > 0 {
		r.log.WarnContext(ctx, "deliveries wait for destinations that this relay does not have", "destinations", names)
	}

	return nil
}

// run runs the parts until ctx ends, or the relay is idle where that ends it, and stops them from the outside in: first
// those that hear of events, then those that deliver them, then those that keep their leases and suppress the trigger.
func (r *Relay) run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	inner, stopInner := context.WithCancel(context.WithoutCancel(ctx))
	defer stopInner()

	var outside, inside sync.WaitGroup
	switch {
	case r.listener == nil:
	case r.config.Shared != nil:
		outside.Go(func() { r.config.Shared.listen(ctx, r, r.subscriber()) })
	default:
		outside.Go(func() { _ = r.listener.Run(ctx) }) // returns only the cause of ctx
	}

	if r.trigger != nil {
		inside.Go(func() { _ = r.trigger.Run(inner) }) // the same
	}

	purger := newPurger(r)
	outside.Go(func() { purger.run(ctx) })
	if r.config.UntilIdle {
		outside.Go(func() {
			if r.awaitIdle(ctx, purger.once) {
				r.log.InfoContext(ctx, "relay idle")
				stop(nil)
			}
		})
	}

	outside.Go(func() { r.announce(ctx) })
	outside.Go(func() { r.watchdog(ctx) })
	outside.Go(func() { r.pauses.follow(ctx) })
	outside.Go(func() {
		select {
		case err := <-r.refused: // the table has become a stream, or is a copy that a new session leads to
			stop(err)
		case <-ctx.Done():
		}
	})

	mode := outboxsql.ModeQueue
	if r.stream {
		mode = outboxsql.ModeStream
	}

	r.log.InfoContext(ctx, "relay started", "schema", r.config.Schema, "mode", string(mode))

	err := r.deliver(ctx)
	stop(err) // the engine may have ended first: then the other parts must stop, too
	outside.Wait()
	stopInner()
	inside.Wait()

	if err == nil { // otherwise a handler may still be using a session
		for _, s := range r.sessions {
			s.Close(ctx)
		}
		r.limits.Close(ctx)
		r.calls.Close(ctx)
	}

	r.session.Close(ctx)

	if cause := context.Cause(ctx); modelock.EndsRelay(cause) && !modelock.EndsRelay(err) {
		err = errors.Join(cause, err)
	}

	r.log.InfoContext(ctx, "relay stopped", "err", err)
	if err != nil {
		return fmt.Errorf("notifyd: %w", err)
	}

	return nil
}

// announce closes ready when both parts are ready.
func (r *Relay) announce(ctx context.Context) {
	for _, half := range []<-chan struct{}{r.listens, (*r.engine.Load()).Ready()} {
		select {
		case <-half:
		case <-ctx.Done():
			return
		}
	}
	close(r.ready)
}

// eventEngine finds the events to deliver: package queue for a queue, package stream for a stream.
type eventEngine interface {
	runner
	hintReceiver
	Payload(word string) bool
}

// runner runs an engine.
type runner interface {
	Run(ctx context.Context) error
	Ready() <-chan struct{}
	Stats(s *observe.Stats)
}

// hintReceiver receives notifications.
type hintReceiver interface {
	Wake(id int64)
	Rescan()
	Blind(is bool)
}

// claimQueue creates the engine of a queue.
func (r *Relay) claimQueue() {
	o := r.queueSession()
	session := queue.NewMaintenance(r.connector, o)
	options := r.queueOptions()
	options.Leases = session
	options.House = session
	options.Companions = session
	for range r.config.Connections {
		session := queue.NewSession(r.connector, o)
		r.sessions = append(r.sessions, session)
		options.Claimers = append(options.Claimers, session)
	}

	if r.trigger != nil {
		options.Trigger = r.trigger
	}

	r.session = session.Session
	engine := queue.New(options)
	r.queue.Store(engine)
	r.use(engine)
}

// queueSession returns the options of the sessions of a queue.
func (r *Relay) queueSession() queue.SessionOptions {
	return queue.SessionOptions{
		Owner:      r.owner,
		Lease:      r.config.Lease,
		EventBytes: r.config.MaxEventBytes,
		Delete:     r.config.Retention.Keep == 0,
		Program:    r.program,
		Refused:    r.refuse,
	}
}

// queueOptions returns the options of the engine of a queue, without its sessions.
func (r *Relay) queueOptions() queue.Options {
	return queue.Options{Limits: r.config.limits(), Dispatcher: r.dispatcher, Outbox: r.config.Outbox, Log: r.log}
}

// streamOptions returns the options of the engine of a stream.
func (r *Relay) streamOptions() stream.Options {
	return stream.Options{
		Limits:     r.config.limits(),
		Dispatcher: r.dispatcher,
		Connector:  r.connector,
		Owner:      r.owner,
		Program:    r.program,
		Outbox:     r.config.Outbox,
		Starts:     r.starts,
		Log:        r.log,
	}
}

// readStream creates the engine of a stream.
func (r *Relay) readStream() {
	o := r.streamOptions()
	if r.trigger != nil {
		o.Trigger = r.trigger
		r.trigger.Announce(pgschema.Channel(r.config.Schema))
		r.trigger.CloseIdle(triggerIdle)
	}

	engine := stream.New(o)
	r.session = store.NewBorrower(engine, r.owner)
	r.use(engine)
}

// triggerIdle is how long the trigger session of an idle stream stays open. The one of a queue sends the canaries.
const triggerIdle = 10 * time.Second

// Notify sends a canary, from another session than the one that listens: in a stream from one that reads,
// which is there in any case.
func (h hints) Notify(ctx context.Context, channel, payload string) error {
	r := h.r
	if !r.stream {
		return r.trigger.Notify(ctx, channel, payload) //nolint:wrapcheck // the listener says what failed
	}

	//nolint:wrapcheck // the same
	return r.session.Do(ctx, "send a notification", func(ctx context.Context, conn *sessions.Conn) error {
		return pgschema.Notify(ctx, conn, channel, payload)
	})
}

func (r *Relay) use(e eventEngine) { r.engine.Store(&e) }

// refuse ends Run, because the table has another mode.
func (r *Relay) refuse(err error) {
	select {
	case r.refused <- err:
	default: // another session has already reported it
	}
}

// deliver runs the engine for the table's mode.
func (r *Relay) deliver(ctx context.Context) error {
	err := (*r.engine.Load()).Run(ctx)
	if err != nil && r.stream {
		return fmt.Errorf("read the stream: %w", err)
	}
	return err //nolint:wrapcheck // it is the relay's own
}

// settledBelow returns an id below which hardly any event of a queue is still fresh.
func (r *Relay) settledBelow() int64 {
	if q := r.queue.Load(); q != nil {
		return q.SettledBelow()
	}
	return 0
}

// hints passes notifications to the engine. Those before there is an engine are not missed: an
// engine begins with a sweep or a read of the table.
type hints struct{ r *Relay }

// Wake implements listener.Hints.
func (h hints) Wake(id int64) {
	if e := h.r.engine.Load(); e != nil {
		(*e).Wake(id)
	}
}

// Rescan implements listener.Hints.
func (h hints) Rescan() {
	if e := h.r.engine.Load(); e != nil {
		(*e).Rescan()
	}
}

// Payload implements listener.PayloadHints. Notifications of this relay's own trigger session are ignored.
func (h hints) Payload(word string, from uint32) bool {
	e := h.r.engine.Load()
	if e == nil {
		return false
	}
	if word == pgschema.WordPolling && h.r.trigger != nil && h.r.trigger.Sent(from) {
		return true
	}

	return (*e).Payload(word)
}

// Blind is called with true when notifications are not heard, and with false when they are again.
func (h hints) Blind(is bool) {
	if e := h.r.engine.Load(); e != nil {
		(*e).Blind(is)
	}
}

const (
	// idlePause separates the two checks that must both find nothing to do.
	idlePause = time.Second
	// dueSoon is how far away a stored delivery may be for an idle relay to wait for it.
	dueSoon = 5 * time.Second
)

// awaitIdle waits until the relay is idle; it returns false if ctx ends first. The relay is not idle before the first purge:
// relays that run for seconds would otherwise never purge.
func (r *Relay) awaitIdle(ctx context.Context, purged <-chan struct{}) bool {
	if !await(ctx, purged) {
		return false
	}

	var idle, failing bool
	var ended uint64
	for {
		now, busy := progress(r.dispatcher)
		if q := r.queue.Load(); q != nil && q.Claims() {
			busy = true
		}

		b, err := r.Backlog(ctx)
		isNew := err != nil && !failing
		if isNew && !store.IsDown(err) && ctx.Err() == nil {
			r.log.WarnContext(ctx, "backlog cannot be read", "err", err)
		}

		failing = err != nil
		is := !busy && err == nil && !leftover{relay: r, backlog: &b}.any()
		if is && idle && now == ended {
			return true
		}

		idle = is
		ended = now
		if !sleep.For(ctx, idlePause) {
			return false
		}
	}
}

// progress returns how many deliveries have ended, and whether any is under way. A call that was given up and has not
// returned is: the relay would have to wait for the call when it stops.
func progress(d *dispatch.Dispatcher) (ended uint64, busy bool) {
	for _, s := range d.Stats().Destinations {
		ended += s.Delivered + s.Failed + s.Dead + s.Released
		busy = busy || s.Running+s.Queued+s.Stuck > 0
	}
	return ended, busy
}

// leftover decides which part of a backlog this relay still has to deliver. It leaves out events that an operator must
// release: events of paused destinations, events without a route, and events behind dead letters.
type leftover struct {
	relay   *Relay
	backlog *observe.Backlog
}

// any reports whether there is anything to do.
func (l leftover) any() bool {
	all := l.relay.dispatcher.Destinations()
	own := slices.DeleteFunc(all, func(d *dispatch.Destination) bool { return !l.mine(d.Name) })
	for _, d := range own {
		if of := l.backlog.Destination(d.Name); of.Running.N > 0 || l.soon(of.NextDue) || l.reads(d.Name) {
			return true
		}
	}

	if l.reads("") {
		return true
	}
	if len(own) == 0 && len(all) > 0 || l.elsewhere("") { // no one routes, or another relay does
		return false
	}

	// An event without a route is fresh until it is stored.
	isFresh := func(t observe.TypeBacklog) bool {
		to := l.relay.DestinationsOf(t.EventType)
		return len(to) == 0 || slices.ContainsFunc(to, l.mine)
	}
	hasGainedRoute := func(t observe.TypeBacklog) bool {
		return slices.ContainsFunc(l.relay.DestinationsOf(t.EventType), l.mine)
	}

	return l.soon(l.backlog.NextDelayed) ||
		slices.ContainsFunc(l.backlog.Types, isFresh) ||
		slices.ContainsFunc(l.backlog.Unrouted, hasGainedRoute)
}

// soon reports whether a stored delivery is due now, or within dueSoon.
func (l leftover) soon(due *time.Time) bool { return due != nil && due.Sub(l.backlog.At) <= dueSoon }

// mine reports whether this relay delivers to the destination: it has the destination, no one has paused it, and no
// other relay reads the stream for it.
func (l leftover) mine(destination string) bool {
	of := l.backlog.Destination(destination)
	return l.relay.dispatcher.Has(destination) && of.Pause == nil && !l.elsewhere(destination)
}

// positions returns the positions of a destination, one per shard. It returns nil in a queue, and before the first relay
// of a stream.
func (l leftover) positions(destination string) (all []*observe.Position) {
	for i := range l.backlog.Positions {
		if p := &l.backlog.Positions[i]; p.Destination == destination {
			all = append(all, p)
		}
	}
	return all
}

// others reports whether another relay owns a position.
func (l leftover) others(p *observe.Position) bool {
	return p.Session != nil && (p.Owner == nil || *p.Owner != l.relay.owner)
}

// elsewhere reports whether other relays own all positions of a destination.
func (l leftover) elsewhere(destination string) bool {
	all := l.positions(destination)
	return len(all) > 0 && !slices.ContainsFunc(all, func(p *observe.Position) bool { return !l.others(p) })
}

// reads reports whether this relay has to read the stream for a destination, or "" for the search for events without a route:
// events wait there, a replay runs, or no relay owns a position. Ids of open transactions count for the lag of a
// position, but no event waits at them. In a total order nothing is read behind a stored delivery.
func (l leftover) reads(destination string) bool {
	if l.backlog.Mode != observe.ModeStream {
		return false
	}

	all := l.positions(destination)
	return len(all) == 0 || slices.ContainsFunc(all, func(p *observe.Position) bool {
		d := l.relay.dispatcher.Destination(destination)
		switch {
		case l.others(p):
			return false
		case p.Session == nil, p.Replay != nil:
			return true
		case d != nil && d.Total && l.relay.dispatcher.Blocked(destination) > 0:
			return false
		}

		return p.Oldest != nil || p.Lag > store.OldestLooked
	})
}
