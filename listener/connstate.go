package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// canaryTimeout is how long a canary may take. A healthy one takes milliseconds, but a busy
	// machine must not cost the connection.
	canaryTimeout = 5 * time.Second
	// calm is how long notifications must have been heard without a break before an incident is
	// over: a server that restarts again and again is one incident.
	calm = 5 * time.Second
)

// Proof configures how a [Listener] proves that it hears the bell: by canaries, notifications of
// its own that are sent from another connection.
type Proof struct {
	// Channel is the channel of the canaries. No other relay may use it.
	Channel string
	// Every is the interval of canaries; above 0.
	Every time.Duration
	// Notify sends a canary, from another connection than the listening one.
	Notify func(ctx context.Context, channel, payload string) error
	// Missed reports whether the relay depends on notifications now. While it returns false, no
	// canary is sent. nil means always.
	Missed func() bool
}

// State is the state of a [Listener] at one moment.
type State struct {
	// Listening reports that there is a connection, that LISTEN was accepted, and that no evidence
	// speaks against notifications being heard.
	Listening bool
	// Proven is when the last canary was heard, zero before the first.
	Proven time.Time
	// RoundTrip is how long that canary took from being sent to being heard.
	RoundTrip time.Duration
	// Sent counts canaries, Unheard those that were not heard in time, and Unsent those that could
	// not be sent.
	Sent, Unheard, Unsent uint64
	// Lost counts connections that were lost or given up.
	Lost uint64
	// Trouble is the reason why notifications are not heard, nil while they are.
	Trouble error
}

// errDead is the reason to give up a connection that has heard canaries, but does not any more.
var errDead = fmt.Errorf("a notification was sent from another connection and not heard within %v: the connection is dead", canaryTimeout)

// ErrDeaf is the error of a connection on which no canary was ever heard, though LISTEN was
// accepted.
var ErrDeaf = fmt.Errorf("LISTEN was accepted, and a notification from another connection was not heard within %v: the connection leads "+
	"through a pooler in transaction mode, or to another database than the others; let listen_url lead to the database directly", canaryTimeout)

// life is the state of the listening connection. The goroutine that listens and the one that sends
// canaries share it.
type life struct {
	log      *slog.Logger
	channel  string
	onChange func(err error)
	onBlind  func(blind bool)
	poke     chan struct{} // capacity 1: LISTEN has just been accepted

	mu     sync.Mutex
	conn   *pgx.Conn // the listening connection, nil while there is none
	heard  chan uint64
	proven bool  // conn has heard a canary
	reason error // why conn was given up
	deaf   bool  // the last connection never heard a canary
	blind  bool
	state  State

	since        time.Time // start of the incident, zero while there is none
	healthySince time.Time // since when notifications are heard again, zero while they are not
	lost         uint64    // connections lost in this incident
	tries        uint64    // failed attempts in this incident
}

// listens records that LISTEN was accepted on conn. Without a proof, that counts as hearing.
func (l *life) listens(conn *pgx.Conn, prove bool) {
	l.mu.Lock()
	l.conn, l.proven, l.state.Listening = conn, false, true
	l.mu.Unlock()
	if !prove {
		l.healthy(conn)
	}
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// ended records that the connection is gone, or could not be opened.
func (l *life) ended(ctx context.Context, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Listening = false
	if ctx.Err() != nil {
		l.conn = nil
		return
	}
	if l.reason != nil {
		err = l.reason
	}
	if l.conn != nil {
		l.lost++
		l.state.Lost++
	} else {
		l.tries++
	}
	l.conn, l.proven, l.reason = nil, false, nil
	l.troubleLocked(ctx, err)
}

// troubleLocked begins an incident, or continues the current one.
func (l *life) troubleLocked(ctx context.Context, err error) {
	l.state.Trouble, l.healthySince = err, time.Time{}
	l.setBlindLocked(true)
	if !l.since.IsZero() {
		return
	}
	l.since = time.Now()
	if l.onChange != nil {
		l.onChange(err)
	}
	l.log.WarnContext(ctx, "not listening; events are found by polling until notifications are heard again", "channel", l.channel, "err", err)
}

// setBlindLocked reports whether the relay is blind, if that has changed.
func (l *life) setBlindLocked(blind bool) {
	if l.blind != blind {
		l.blind = blind
		if l.onBlind != nil {
			l.onBlind(blind)
		}
	}
}

// healthy records that notifications are heard on conn, which may be gone again.
func (l *life) healthy(conn *pgx.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != conn {
		return
	}
	l.state.Trouble, l.proven, l.deaf = nil, true, false
	l.setBlindLocked(false)
	if l.healthySince.IsZero() {
		l.healthySince = time.Now()
	}
}

// settle ends the incident if notifications have been heard for long enough. It returns the time
// left until then, 0 if there is no incident to end.
func (l *life) settle() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() || l.healthySince.IsZero() {
		return 0
	}
	if left := calm - time.Since(l.healthySince); left > 0 {
		return left
	}
	l.log.Info("listening again", "channel", l.channel, "after", l.healthySince.Sub(l.since).Round(time.Millisecond),
		"connections_lost", l.lost, "failed_attempts", l.tries)
	l.since, l.lost, l.tries = time.Time{}, 0, 0
	if l.onChange != nil {
		l.onChange(nil)
	}
	return 0
}

// giveUp closes the connection under the goroutine that waits on it, which then opens a new one. It
// does nothing to a connection that is already gone.
func (l *life) giveUp(conn *pgx.Conn) {
	if l.condemn(conn) {
		_ = conn.PgConn().Conn().Close() // the connection is broken anyway
	}
}

// condemn records that no canary was heard on conn. It returns false if conn is not the
// listening connection.
func (l *life) condemn(conn *pgx.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Unheard++
	if l.conn != conn {
		return false
	}
	l.deaf = !l.proven
	l.reason = errDead
	if l.deaf {
		l.reason = ErrDeaf
	}
	l.state.Listening = false
	return true
}

// isDeaf reports whether the last connection never heard a canary.
func (l *life) isDeaf() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deaf
}

// hear passes on a canary from the listening connection.
func (l *life) hear(payload string) {
	n, err := strconv.ParseUint(payload, 10, 64)
	if err != nil {
		return // another client notifies on the channel of the canaries
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.heard <- n:
	default: // more canaries than were sent
	}
}

// listener returns the listening connection, nil if there is none.
func (l *life) listener() *pgx.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

// isBlind reports whether the relay has been switched to polling.
func (l *life) isBlind() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blind
}

func (l *life) now() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// watch sends canaries, if p is not nil, and ends incidents, until ctx ends.
func (l *life) watch(ctx context.Context, p *Proof) {
	every := time.Hour // only poke and the end of an incident wake it
	if p != nil {
		every = p.Every
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var over <-chan time.Time
		var timer *time.Timer
		if left := l.settle(); left > 0 {
			timer = time.NewTimer(left)
			over = timer.C
		}
		send := false
		select {
		case <-ctx.Done():
		case <-over:
		case <-l.poke:
			send = p != nil
		case <-tick.C:
			send = p != nil && (p.Missed == nil || p.Missed() || l.isBlind())
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
		if send {
			l.sendCanary(ctx, p)
		}
	}
}

// sendCanary sends a canary and waits until it is heard. A connection that does not hear it is
// given up. If the canary cannot be sent, the state of the listening connection is unknown.
func (l *life) sendCanary(ctx context.Context, p *Proof) {
	conn := l.listener()
	if conn == nil {
		return
	}
	l.mu.Lock()
	l.state.Sent++
	id, heard := l.state.Sent, make(chan uint64, 8)
	l.heard = heard
	l.mu.Unlock()
	begin := time.Now()
	if err := p.Notify(ctx, p.Channel, strconv.FormatUint(id, 10)); err != nil {
		l.unsent(ctx, err)
		return
	}
	patience := time.NewTimer(canaryTimeout)
	defer patience.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.poke: // another connection, which needs a canary of its own
			if conn = l.listener(); conn != nil {
				l.again()
			}
			return
		case n := <-heard:
			if n != id {
				continue
			}
			l.mu.Lock()
			l.state.Proven, l.state.RoundTrip = time.Now(), time.Since(begin)
			l.mu.Unlock()
			l.healthy(conn)
			return
		case <-patience.C:
			l.giveUp(conn)
			return
		}
	}
}

// again pokes the watching goroutine, which is the caller.
func (l *life) again() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// unsent records that a canary could not be sent.
func (l *life) unsent(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Unsent++
	l.troubleLocked(ctx, fmt.Errorf("it is unknown whether notifications are heard: %w", err))
}

// canaries handles heard canaries.
type canaries struct{ l *Listener }

func (c canaries) HandleNotification(_ context.Context, n *pgconn.Notification, _ *pgx.Conn) error {
	c.l.life.hear(n.Payload)
	return nil
}

// HandleBacklog runs after LISTEN to the canaries.
func (c canaries) HandleBacklog(_ context.Context, _ string, conn *pgx.Conn) error {
	c.l.accepted(conn)
	return nil
}

var errProof = errors.New("a proof needs a channel, an interval above 0, and a function to notify with")
