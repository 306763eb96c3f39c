// Package listener receives PostgreSQL's notifications of new events. One connection LISTENs, and another one keeps
// the trigger suppressed while the relay polls. Of events the package knows only ids.
//
// A notification is a hint. The rows are durable, and a lost or repeated hint costs only latency.
package listener

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgxlisten"
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
	// firstReconnect is short: most connections can be replaced at once.
	firstReconnect = 20 * time.Millisecond
	// longestReconnect bounds how long a database that is back goes unnoticed.
	longestReconnect = 5 * time.Second
	// steady is how long a connection must last before the pauses start over.
	steady = 5 * time.Second
)

// Listener maintains one listening connection while Run runs.
type Listener struct {
	connect Connect
	channel string
	hints   Hints
	pauses  *backoff.ExponentialBackOff

	proof *Proof // nil: LISTEN counts as proof
	conn  *connState

	// Used by the goroutine that listens only.
	connected time.Time // start of the connection, zero without one
	failed    bool      // the last attempt to connect failed
	waiting   int       // channels without an accepted LISTEN
	onListen  func()
}

// New returns a listener on the given channel. onListen, if not nil, is called after every successful LISTEN.
func New(connect Connect, channel string, hints Hints, log *slog.Logger, onListen func()) *Listener {
	return &Listener{
		connect: connect, channel: channel, hints: hints, onListen: onListen,
		conn:   &connState{log: log, channel: channel, poke: make(chan struct{}, 1)},
		pauses: reconnects(),
	}
}

// reconnects returns the pauses between attempts to connect, with jitter.
func reconnects() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstReconnect),
		backoff.WithMaxInterval(longestReconnect),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0), // never give up
	)
}

// OnChange sets a function that is called at the start of an incident, in which notifications are not known to
// arrive. It is called with nil at the end, some seconds after they arrive again. It must not block. Call OnChange
// before Run.
func (l *Listener) OnChange(f func(err error)) { l.conn.onChange = f }

// OnBlind sets a function that is called with true when notifications are not known to arrive, and with false when
// they arrive again. It must not block. Call OnBlind before Run.
func (l *Listener) OnBlind(f func(blind bool)) { l.conn.onBlind = f }

// Prove makes the listener prove that notifications arrive. Without Prove, an accepted LISTEN counts as proof, and a
// dead connection or a pooler goes unnoticed. Call Prove before Run. It fails if p is incomplete.
func (l *Listener) Prove(p Proof) error {
	if p.Channel == "" || p.Channel == l.channel || p.Every <= 0 || p.Notify == nil {
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
	p := &pgxlisten.Listener{
		Connect:        l.reconnect,
		LogError:       l.conn.ended,
		ReconnectDelay: time.Nanosecond, // reconnect has the pause, with backoff
	}
	p.Handle(l.channel, handler{l})
	if l.proof != nil {
		p.Handle(l.proof.Channel, canaries{l})
	}
	var watch sync.WaitGroup
	watch.Go(func() { l.conn.watch(ctx, l.proof) })
	_ = p.Listen(ctx) // ends only with ctx
	watch.Wait()
	return context.Cause(ctx)
}

// reconnect waits for a time that depends on the last connection's duration, and connects.
func (l *Listener) reconnect(ctx context.Context) (*pgx.Conn, error) {
	lost := !l.connected.IsZero()
	if lost && time.Since(l.connected) >= steady && !l.conn.isDeaf() {
		l.pauses.Reset()
	}
	l.connected = time.Time{} // its duration has been used
	if lost || l.failed {
		timer := time.NewTimer(l.pauses.NextBackOff())
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
		}
	}
	conn, err := l.connect(ctx)
	l.failed = err != nil
	if err == nil {
		l.connected = time.Now()
	}
	l.waiting = 1
	if l.proof != nil {
		l.waiting = 2
	}
	return conn, err
}

// accepted counts the channels for which LISTEN was accepted: a canary can arrive only once all are.
func (l *Listener) accepted(conn *pgx.Conn) {
	if l.waiting--; l.waiting == 0 {
		l.conn.listens(conn, l.proof != nil)
	}
}

// handler runs on the listening connection.
type handler struct{ l *Listener }

// HandleBacklog runs right after LISTEN. Notifications of earlier commits did not arrive, so the table must be swept
// after LISTEN, in this order.
func (h handler) HandleBacklog(_ context.Context, _ string, conn *pgx.Conn) error {
	h.l.hints.Rescan()
	if h.l.onListen != nil {
		h.l.onListen()
	}
	h.l.accepted(conn)
	return nil
}

// HandleNotification passes an id on. Any other payload, above all an empty one, means that there are more events
// than a notification can name.
func (h handler) HandleNotification(_ context.Context, n *pgconn.Notification, _ *pgx.Conn) error {
	if id, ok := ParsePayload(n.Payload); ok {
		h.l.hints.Wake(id)
	} else if w, ok := h.l.hints.(PayloadHints); !ok || !w.Payload(n.Payload, n.PID) {
		h.l.hints.Rescan()
	}
	return nil
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
