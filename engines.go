package notifyd

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/internal/queue"
	sessions "github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/stream"
	"github.com/notifyd/notifyd/listener"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// anEngine finds the events to deliver: package queue for a queue, package stream for a stream.
type anEngine interface {
	runner
	hearer
	Heard(word string) bool
}

// runner runs an engine.
type runner interface {
	Run(ctx context.Context) error
	Ready() <-chan struct{}
	Stats(s *observe.Stats)
}

// hearer receives notifications.
type hearer interface {
	Wake(id int64)
	Look()
	Blind(is bool)
	Awake() bool
}

// claimQueue creates the engine of a queue.
func (r *Relay) claimQueue() {
	o := queue.SessionOptions{
		Owner: r.owner, Lease: r.settings.limits.Lease, EventBytes: r.settings.limits.EventBytes, Delete: r.settings.keep == 0,
		Program: r.settings.program, Refused: r.refuse,
	}
	keeper := queue.NewKeeper(r.connector, o)
	options := queue.Options{
		Limits: r.settings.limits, Dispatcher: r.dispatcher, Outbox: r.settings.outbox, Leases: keeper, House: keeper, Companions: keeper, Log: r.log,
	}
	for range r.settings.limits.Claims {
		session := queue.NewSession(r.connector, o)
		r.sessions = append(r.sessions, session)
		options.Claimers = append(options.Claimers, session)
	}
	if r.bell != nil {
		options.Bell = r.bell
	}
	r.keeper = keeper.Keeper
	engine := queue.New(options)
	r.queue.Store(engine)
	r.use(engine)
}

// readStream creates the engine of a stream.
func (r *Relay) readStream() {
	o := stream.Options{
		Limits: r.settings.limits, Dispatcher: r.dispatcher, Connector: r.connector, Owner: r.owner, Program: r.settings.program, Outbox: r.settings.outbox, Starts: r.starts, Log: r.log,
	}
	if r.bell != nil {
		o.Bell = r.bell
		r.bell.Announce(outboxsql.Channel(r.settings.schema))
		r.bell.CloseIdle(bellIdle)
	}
	engine := stream.New(o)
	r.keeper = store.NewBorrower(engine, r.owner)
	r.use(engine)
}

// bellIdle is how long the bell of a stream that sleeps keeps its session. That of a queue sends the canaries.
const bellIdle = 10 * time.Second

// Notify sends a canary, from another session than the one that listens: in a stream from one that reads,
// which is there in any case.
func (h hints) Notify(ctx context.Context, channel, payload string) error {
	r := h.r
	if !r.stream {
		return r.bell.Notify(ctx, channel, payload) //nolint:wrapcheck // the listener says what failed
	}
	//nolint:wrapcheck // the same
	return r.keeper.Do(ctx, "send a notification", func(ctx context.Context, conn *sessions.Conn) error {
		return outboxsql.Notify(ctx, conn, channel, payload)
	})
}

func (r *Relay) use(e anEngine) { r.engine.Store(&e) }

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

// Look implements listener.Hints.
func (h hints) Look() {
	if e := h.r.engine.Load(); e != nil {
		(*e).Look()
	}
}

// Heard implements listener.Words. Notifications of this relay's own bell are ignored.
func (h hints) Heard(word string, from uint32) bool {
	e := h.r.engine.Load()
	if e == nil {
		return false
	}
	if word == listener.WordAwake && h.r.bell != nil && h.r.bell.Sent(from) {
		return true
	}
	return (*e).Heard(word)
}

// Blind is called with true when notifications are not heard, and with false when they are again.
func (h hints) Blind(is bool) {
	if e := h.r.engine.Load(); e != nil {
		(*e).Blind(is)
	}
}

// Awake reports whether nothing depends on notifications.
func (h hints) Awake() bool {
	e := h.r.engine.Load()
	return e != nil && (*e).Awake()
}
