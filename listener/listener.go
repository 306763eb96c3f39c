// Package listener receives PostgreSQL's notifications of new events. One connection LISTENs, and another one keeps
// the trigger suppressed while the relay polls. Of events the package knows only ids.
//
// A notification is a hint. The rows are durable, and a lost or repeated hint costs only latency.
package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgxlisten"

	"github.com/notifyd/notifyd/internal/backoff"
	"github.com/notifyd/notifyd/internal/sleep"
)

// Connect opens a connection for a [Listener] or [Trigger], which closes it.
type Connect func(ctx context.Context) (*pgx.Conn, error)

// Hints receives the notifications. Neither method may block: they run on the listening connection, and a blocked
// connection fills the server's queue.
type Hints interface {
	// Wake reports the id of a committed event.
	Wake(id int64)
	// Rescan reports that any number of unnamed events may exist.
	Rescan()
}

// PayloadHints is implemented by [Hints] that understand notifications without an id.
type PayloadHints interface {
	// Payload receives the payload, and the process id of the sending server process. It reports whether it has handled
	// the notification; if not, Rescan is called. It must not block.
	Payload(word string, from uint32) bool
}

const (
	// longestReconnect bounds how long a database that is back goes unnoticed.
	longestReconnect = 5 * time.Second
	// steady is how long a connection must last before the pauses start over.
	steady = 5 * time.Second
)

// Subscriber receives the notifications of one channel. No method and no function of it may block.
type Subscriber struct {
	// Channel is the name of the channel.
	Channel string
	// Hints receives the notifications.
	Hints Hints
	// OnListen, if not nil, is called after every successful LISTEN.
	OnListen func()
	// OnChange, if not nil, is called at the start of an incident, in which notifications are not known to arrive. It is
	// called with nil at the end, some seconds after they arrive again.
	OnChange func(err error)
	// OnBlind, if not nil, is called with true when notifications are not known to arrive, and with false when they arrive
	// again.
	OnBlind func(blind bool)
}

// Listener maintains one listening connection while Run runs. Any number of subscribers share the connection.
type Listener struct {
	connect Connect
	pauses  backoff.Pauses

	proof *Proof // nil: LISTEN counts as proof
	conn  *connState

	// Used by the goroutine that listens only.
	connected time.Time // start of the connection, zero without one
	failed    bool      // the last attempt to connect failed
	channels  int       // to listen on, with the channel of the canaries
	waiting   int       // channels without an accepted LISTEN
}

// New returns a listener for the subscribers. [Listener.Subscribe] adds more.
func New(connect Connect, log *slog.Logger, subscribers ...*Subscriber) *Listener {
	return &Listener{
		connect: connect, pauses: reconnects(),
		conn: &connState{log: log, subscribers: subscribers, poke: make(chan struct{}, 1), changed: make(chan struct{}, 1)},
	}
}

// Subscribe adds a subscriber, also while Run runs: the listener then connects anew and listens on all channels. Each
// subscriber sweeps its table after that, and misses nothing. Several subscribers may have one channel.
func (l *Listener) Subscribe(s *Subscriber) { l.conn.subscribe(s) }

// Unsubscribe removes a subscriber. A call of one of its functions may still be running when Unsubscribe returns.
func (l *Listener) Unsubscribe(s *Subscriber) { l.conn.unsubscribe(s) }

// reconnects returns the pauses between attempts to connect.
func reconnects() backoff.Pauses {
	return backoff.NewPauses(backoff.FirstReconnect, longestReconnect, 2)
}

// Prove makes the listener prove that notifications arrive. Without Prove, an accepted LISTEN counts as proof, and a
// dead connection or a pooler goes unnoticed. Call Prove before Run. It fails if p is incomplete.
func (l *Listener) Prove(p Proof) error {
	isComplete := p.Channel != "" && p.Every > 0 && p.Notify != nil
	if !isComplete || len(l.conn.subscribersOf(p.Channel)) > 0 {
		return errProof
	}

	l.proof = &p
	return nil
}

// Listening reports whether a connection listens; see [State].
func (l *Listener) Listening() bool { return l.conn.now().Listening }

// State returns the current state of the listener.
func (l *Listener) State() State { return l.conn.now() }

// Run listens until ctx ends, and reconnects whenever necessary. It returns the cause of ctx's end.
func (l *Listener) Run(ctx context.Context) error {
	var watch sync.WaitGroup
	watch.Go(func() { l.conn.watch(ctx, l.proof) })

	for ctx.Err() == nil {
		l.listen(ctx)
	}

	watch.Wait()
	return context.Cause(ctx)
}

// listen listens on the channels of the present subscribers, until ctx ends or the channels change.
func (l *Listener) listen(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var changes sync.WaitGroup
	changes.Go(func() {
		select {
		case <-l.conn.changed:
			cancel()
		case <-ctx.Done():
		}
	})

	p := &pgxlisten.Listener{
		Connect:        l.reconnect,
		LogError:       l.conn.ended,
		ReconnectDelay: time.Nanosecond, // reconnect has the pause, with backoff
	}

	names := l.conn.channels()
	for _, name := range names {
		p.Handle(name, handler{l, name})
	}

	l.channels = len(names)
	if l.proof != nil {
		p.Handle(l.proof.Channel, canaries{l})
		l.channels++
	}

	if len(names) > 0 {
		_ = p.Listen(ctx) // ends only with ctx
	}

	<-ctx.Done()
	cancel()
	changes.Wait()
	l.connected = time.Time{} // the next connection follows at once
}

// reconnect waits for a time that depends on the last connection's duration, and connects.
func (l *Listener) reconnect(ctx context.Context) (*pgx.Conn, error) {
	lost := !l.connected.IsZero()
	if lost && time.Since(l.connected) >= steady && !l.conn.isDeaf() {
		l.pauses.Reset()
	}

	l.connected = time.Time{} // its duration has been used
	if lost || l.failed {
		if !sleep.For(ctx, l.pauses.Next()) {
			return nil, context.Cause(ctx)
		}
	}

	conn, err := l.connect(ctx)
	l.failed = err != nil
	if err == nil {
		l.connected = time.Now()
	}

	l.waiting = l.channels
	return conn, err
}

// accepted counts the channels for which LISTEN was accepted: a canary can arrive only once all are.
func (l *Listener) accepted(conn *pgx.Conn) {
	if l.waiting--; l.waiting == 0 {
		l.conn.listens(conn, l.proof != nil)
	}
}

// handler runs on the listening connection, for the subscribers of a channel.
type handler struct {
	l       *Listener
	channel string
}

// HandleBacklog runs right after LISTEN. Notifications of earlier commits did not arrive, so the table must be swept
// after LISTEN, in this order. Writers notify from the moment at which the session has its lock, so the sweep, and the wait
// for writers that found no relay, come after that.
func (h handler) HandleBacklog(ctx context.Context, _ string, conn *pgx.Conn) error {
	if err := h.l.show(ctx, conn, h.channel); err != nil {
		h.l.conn.giveUp(ctx, conn, err)
		return nil // the next use of conn fails, and pgxlisten opens another connection
	}

	for _, s := range h.l.conn.subscribersOf(h.channel) {
		s.Hints.Rescan()
		if s.OnListen != nil {
			s.OnListen()
		}
	}

	h.l.accepted(conn)
	return nil
}

// HandleNotification passes an id on. Any other payload, above all an empty one, means that there are more events
// than a notification can name.
func (h handler) HandleNotification(ctx context.Context, n *pgconn.Notification, conn *pgx.Conn) error {
	subscribers := h.l.conn.subscribersOf(h.channel)
	if len(subscribers) == 0 {
		h.l.leave(ctx, conn, h.channel)
		return nil
	}

	id, ok := ParsePayload(n.Payload)
	for _, s := range subscribers {
		if ok {
			s.Hints.Wake(id)
		} else if w, ok := s.Hints.(PayloadHints); !ok || !w.Payload(n.Payload, n.PID) {
			s.Hints.Rescan()
		}
	}

	return nil
}

// listeningLock is the key of the lock, in SQL, that shows writers a listening relay. Each listening session holds it shared, so
// the end of one session changes nothing for the others. A hash of the channel, and not the oid of the table, which changes
// when a table takes the place of another: a relay would then listen unseen. If two channels have one hash, writers notify
// where no relay listens.
const listeningLock = `1853122163, hashtext($1)`

// listenTimeout bounds one statement on the listening connection.
const listenTimeout = 10 * time.Second

// show shows the writers of a channel that this session listens: the trigger notifies while the session has the lock. Writers
// take the lock exclusively for microseconds, so a long wait means that another session keeps it.
//
// With canaries, the server ends the session when it was idle for longer than the pause between two canaries: its relay is
// frozen, or a pooler has kept the session of a relay that has ended, and writers would notify no one.
func (l *Listener) show(ctx context.Context, conn *pgx.Conn, channel string) error {
	idle := time.Duration(0) // no limit
	if l.proof != nil {
		idle = 2*l.proof.Every + canaryTimeout
	}

	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()

	// lock_timeout applies to this statement only. The lock outlasts the statement, and so does the limit.
	_, err := conn.Exec(ctx, `SELECT CASE WHEN set_config('lock_timeout', $2, true) IS NOT NULL
		AND set_config('idle_session_timeout', $3, false) IS NOT NULL THEN pg_advisory_lock_shared(`+listeningLock+`)::text END`,
		channel, queueFor.String(), fmt.Sprint(idle.Milliseconds()))
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == lockNotAvailable {
		by, found, failed := holderOf(ctx, conn, `l.objsubid = 2 AND l.classid = 1853122163
			AND l.objid = (hashtext($1)::bigint & 4294967295)::oid`, channel)
		if failed != nil || !found {
			return cmp.Or(failed, wrap("show writers that a relay listens", err))
		}

		return fmt.Errorf("a session that is not a relay has the lock by which writers see that a relay listens: "+
			"pid %d, user %s, application %q: run notifyd doctor",
			by.pid, by.user, by.application)
	}

	return wrap("show writers that a relay listens", err)
}

// leave stops listening on a channel whose relays have left, so that its writers need not notify.
func (l *Listener) leave(ctx context.Context, conn *pgx.Conn, channel string) {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()

	_, err := conn.Exec(ctx, `UNLISTEN `+pgx.Identifier{channel}.Sanitize())
	if err == nil {
		_, err = conn.Exec(ctx, `SELECT pg_advisory_unlock_shared(`+listeningLock+`)`, channel)
	}
	if err != nil {
		l.conn.giveUp(ctx, conn, wrap("stop listening on a channel", err))
	}
}

// ParsePayload returns the id in a notification's payload, and false without one: then the table must be swept.
func ParsePayload(payload string) (id int64, ok bool) {
	id, err := strconv.ParseInt(payload, 10, 64)
	return id, err == nil && strconv.FormatInt(id, 10) == payload
}

var (
	_ pgxlisten.Handler        = handler{}
	_ pgxlisten.BacklogHandler = handler{}
)

// wrap adds the failed action to an error.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
