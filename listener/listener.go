// Package listener hears the bell of PostgreSQL: one connection that LISTENs,
// and one that keeps the bell silent while the relay is awake anyway. It knows
// ids and nothing else of events.
//
// A notification is a hint. The rows are durable, and a hint that is lost, or
// that comes twice, costs latency and nothing else.
package listener

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgxlisten"
)

// Connect opens a connection for the exclusive use of a [Listener] or [Bell],
// which closes it.
type Connect func(ctx context.Context) (*pgx.Conn, error)

// Hints takes what the listener hears. Neither method may block: they run on
// the connection that listens, and what blocks it fills the server's queue.
type Hints interface {
	// Wake names an event that has been committed.
	Wake(id int64)
	// Look says that any number of events may be there, unnamed.
	Look()
}

const (
	// firstReconnect is short: most broken connections come back at once.
	firstReconnect = 20 * time.Millisecond
	// longestReconnect bounds how long a database that is back goes unnoticed.
	longestReconnect = 5 * time.Second
	// steady is how long a connection must last to be taken as a good one: the
	// pauses begin anew only after it.
	steady = 5 * time.Second
)

// Listener keeps one connection listening, for as long as Run runs.
type Listener struct {
	connect Connect
	channel string
	hints   Hints
	log     *slog.Logger
	pauses  *backoff.ExponentialBackOff

	// Used by the goroutine of Run only.
	connected time.Time // when the connection was made, zero while there is none
	down      bool      // the loss of the connection has been reported
	onListen  func()
	onChange  func(err error)

	listening atomic.Bool
}

// New returns a listener on the given channel. onListen, if not nil, is called
// after every successful LISTEN.
func New(connect Connect, channel string, hints Hints, log *slog.Logger, onListen func()) *Listener {
	return &Listener{
		connect: connect, channel: channel, hints: hints, log: log, onListen: onListen,
		pauses: backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(firstReconnect),
			backoff.WithMaxInterval(longestReconnect),
			backoff.WithMultiplier(2),
			backoff.WithMaxElapsedTime(0), // never give up
		),
	}
}

// OnChange sets a function that is told of the loss of the connection, and with
// nil of its return. It must not block. Call it before Run.
func (l *Listener) OnChange(f func(err error)) { l.onChange = f }

// Listening reports whether the connection is there and listens.
func (l *Listener) Listening() bool { return l.listening.Load() }

// changed reports whether the connection is there.
func (l *Listener) changed(err error) {
	l.down = err != nil
	if l.onChange != nil {
		l.onChange(err)
	}
}

// Run listens until ctx ends, and reconnects whenever it has to. It returns
// the cause of ctx's end.
func (l *Listener) Run(ctx context.Context) error {
	p := &pgxlisten.Listener{
		Connect:        l.reconnect,
		LogError:       l.lost,
		ReconnectDelay: time.Nanosecond, // the pause, with its backoff, is in reconnect
	}
	p.Handle(l.channel, handler{l})
	_ = p.Listen(ctx) // it ends with ctx and tells nothing else
	return context.Cause(ctx)
}

// reconnect waits as long as the last connection deserves, and connects.
func (l *Listener) reconnect(ctx context.Context) (*pgx.Conn, error) {
	lost := !l.connected.IsZero()
	if lost && time.Since(l.connected) >= steady {
		l.pauses.Reset()
	}
	l.connected = time.Time{} // it has been given credit for
	if lost || l.down {
		timer := time.NewTimer(l.pauses.NextBackOff())
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
		}
	}
	conn, err := l.connect(ctx)
	if err == nil {
		l.connected = time.Now()
	}
	return conn, err
}

// lost reports the loss of the connection, once until it is back.
func (l *Listener) lost(ctx context.Context, err error) {
	l.listening.Store(false)
	if ctx.Err() != nil || l.down {
		return
	}
	l.changed(err)
	l.log.WarnContext(ctx, "not listening; events are found by polling until the connection is back", "channel", l.channel, "err", err)
}

// handler runs on the listening connection.
type handler struct{ l *Listener }

// HandleBacklog runs right after LISTEN: what was committed before it was not
// heard, so the table has to be looked at, in this order and no other.
func (h handler) HandleBacklog(context.Context, string, *pgx.Conn) error {
	if h.l.down {
		h.l.changed(nil)
		h.l.log.Info("listening again", "channel", h.l.channel)
	}
	h.l.listening.Store(true)
	h.l.hints.Look()
	if h.l.onListen != nil {
		h.l.onListen()
	}
	return nil
}

// HandleNotification passes an id on. Anything else, an empty payload above
// all, means that there is more than could be named.
func (h handler) HandleNotification(_ context.Context, n *pgconn.Notification, _ *pgx.Conn) error {
	if id, ok := ParsePayload(n.Payload); ok {
		h.l.hints.Wake(id)
	} else {
		h.l.hints.Look()
	}
	return nil
}

// ParsePayload returns the id that a notification names, and false if it
// names none: then the table is to be looked at.
func ParsePayload(payload string) (id int64, ok bool) {
	id, err := strconv.ParseInt(payload, 10, 64)
	return id, err == nil && strconv.FormatInt(id, 10) == payload
}

var (
	_ pgxlisten.Handler        = handler{}
	_ pgxlisten.BacklogHandler = handler{}
)

// wrap adds what was being done to an error.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
