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
	// canaryTimeout is how long the answer to a canary may take: it takes
	// milliseconds where all is well, and a busy machine must not cost the connection.
	canaryTimeout = 5 * time.Second
	// calm is how long notifications must have been heard without a break before
	// an incident is over: a server that restarts again and again is one incident.
	calm = 5 * time.Second
)

// Proof says how a [Listener] proves that it would hear the bell: by canaries,
// notifications of its own that are sent from another connection.
type Proof struct {
	// Channel is what canaries are sent on. No other relay may use it.
	Channel string
	// Every is how often one is sent; more than 0.
	Every time.Duration
	// Notify sends one, from another connection than the listening one.
	Notify func(ctx context.Context, channel, payload string) error
	// Missed reports whether a notification would be missed at the moment if it
	// were not heard. While it is not, no canary is sent. nil means always.
	Missed func() bool
}

// State is how a [Listener] is at one moment.
type State struct {
	// Listening says that there is a connection, LISTEN was accepted, and nothing
	// speaks against notifications being heard.
	Listening bool
	// Proven is when a canary was heard last, zero before the first.
	Proven time.Time
	// RoundTrip is how long that one took, from being sent to being heard.
	RoundTrip time.Duration
	// Sent counts canaries, Unheard those that were not heard in time, and Unsent
	// those that could not be sent.
	Sent, Unheard, Unsent uint64
	// Lost counts connections that were lost or given up.
	Lost uint64
	// Trouble is why notifications are not heard, nil while they are.
	Trouble error
}

// errDead is a connection that was heard on, and is not any more.
var errDead = fmt.Errorf("a notification was sent from another connection and not heard within %v: the connection is dead", canaryTimeout)

// ErrDeaf is a connection on which no canary was ever heard, though LISTEN was accepted.
var ErrDeaf = fmt.Errorf("LISTEN was accepted, and a notification from another connection was not heard within %v: the connection leads "+
	"through a pooler in transaction mode, or to another database than the others; let listen_url lead to the database directly", canaryTimeout)

// life is what is known of the listening connection. The goroutine that listens
// and the one that sends canaries share it.
type life struct {
	log      *slog.Logger
	channel  string
	onChange func(err error)
	onBlind  func(blind bool)
	poke     chan struct{} // capacity 1: LISTEN has just been accepted

	mu     sync.Mutex
	conn   *pgx.Conn // that listens, nil while there is none
	heard  chan uint64
	proven bool  // on conn
	reason error // why conn was given up
	deaf   bool  // nothing was ever heard on the last one
	blind  bool
	state  State

	since time.Time // when the incident began, zero while there is none
	well  time.Time // since when all is well again, zero while it is not
	lost  uint64    // connections, in this incident
	tries uint64    // in vain, in this incident
}

// listens takes word that LISTEN was accepted on conn. Where nothing is to be
// proven it is taken as proof itself.
func (l *life) listens(conn *pgx.Conn, prove bool) { //nolint:revive // prove is what the listener was told
	l.mu.Lock()
	l.conn, l.proven, l.state.Listening = conn, false, true
	l.mu.Unlock()
	if !prove {
		l.fine(conn)
	}
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// ended takes word that the connection is gone, or could not be made.
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

// troubleLocked begins an incident, or goes on with the one that is under way.
func (l *life) troubleLocked(ctx context.Context, err error) {
	l.state.Trouble, l.well = err, time.Time{}
	l.seeLocked(true)
	if !l.since.IsZero() {
		return
	}
	l.since = time.Now()
	if l.onChange != nil {
		l.onChange(err)
	}
	l.log.WarnContext(ctx, "not listening; events are found by polling until notifications are heard again", "channel", l.channel, "err", err)
}

// seeLocked says whether the relay is blind, where that is news.
func (l *life) seeLocked(blind bool) { //nolint:revive // the state itself
	if l.blind != blind {
		l.blind = blind
		if l.onBlind != nil {
			l.onBlind(blind)
		}
	}
}

// fine takes word that notifications are heard on conn, which may be gone again.
func (l *life) fine(conn *pgx.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != conn {
		return
	}
	l.state.Trouble, l.proven, l.deaf = nil, true, false
	l.seeLocked(false)
	if l.well.IsZero() {
		l.well = time.Now()
	}
}

// settle ends the incident if all has been well for long enough, and returns
// how long that will be yet, 0 if there is nothing to wait for.
func (l *life) settle() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() || l.well.IsZero() {
		return 0
	}
	if left := calm - time.Since(l.well); left > 0 {
		return left
	}
	l.log.Info("listening again", "channel", l.channel, "after", l.well.Sub(l.since).Round(time.Millisecond),
		"connections_lost", l.lost, "tries_in_vain", l.tries)
	l.since, l.lost, l.tries = time.Time{}, 0, 0
	if l.onChange != nil {
		l.onChange(nil)
	}
	return 0
}

// giveUp closes the connection under the goroutine that waits on it, which then
// makes a new one. It does nothing to a connection that is gone already.
func (l *life) giveUp(conn *pgx.Conn) {
	if l.condemn(conn) {
		_ = conn.PgConn().Conn().Close() // it is given up because it does not work
	}
}

// condemn notes why the connection is given up. It reports false if that is
// not the one that listens.
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

// isDeaf reports whether the last connection was one on which nothing is heard.
func (l *life) isDeaf() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deaf
}

// hear takes a canary from the listening connection.
func (l *life) hear(payload string) {
	n, err := strconv.ParseUint(payload, 10, 64)
	if err != nil {
		return // somebody else sings on our channel
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.heard <- n:
	default: // nobody waits for that many
	}
}

// listener returns the connection that listens, nil if there is none.
func (l *life) listener() *pgx.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

// isBlind reports whether the relay has been told to poll.
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
	every := time.Hour // woken by poke and by the end of an incident only
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
		sing := false
		select {
		case <-ctx.Done():
		case <-over:
		case <-l.poke:
			sing = p != nil
		case <-tick.C:
			sing = p != nil && (p.Missed == nil || p.Missed() || l.isBlind())
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
		if sing {
			l.sing(ctx, p)
		}
	}
}

// sing sends a canary and waits until it is heard. A connection on which it is
// not is given up. Where it cannot be sent, that says nothing about the
// connection that listens, only that nobody knows.
func (l *life) sing(ctx context.Context, p *Proof) {
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
		case <-l.poke: // another connection; it is its turn
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
			l.fine(conn)
			return
		case <-patience.C:
			l.giveUp(conn)
			return
		}
	}
}

// again pokes whoever watches, which is the caller.
func (l *life) again() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// unsent takes word that a canary could not be sent.
func (l *life) unsent(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Unsent++
	l.troubleLocked(ctx, fmt.Errorf("whether notifications are heard is not known: %w", err))
}

// canaries takes the canaries that are heard.
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

var errProof = errors.New("a proof needs a channel, a time above 0, and something to notify with")
