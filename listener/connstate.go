package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// canaryTimeout bounds the round trip of a canary. A healthy one takes milliseconds, but a busy machine must not
	// lose the connection.
	canaryTimeout = 5 * time.Second
	// calm is how long notifications must arrive without a break before an incident is over: a server that restarts
	// repeatedly is one incident.
	calm = 5 * time.Second
)

// Proof configures how a [Listener] proves that notifications arrive: by canaries, which are notifications that
// another connection sends.
type Proof struct {
	// Channel is the channel of the canaries. No other relay may use it.
	Channel string
	// Every is the interval of canaries; above 0.
	Every time.Duration
	// Notify sends a canary from a connection other than the listening one.
	Notify func(ctx context.Context, channel, payload string) error
}

// State is the state of a [Listener] at one moment.
type State struct {
	// Listening reports that a connection exists, LISTEN was accepted, and no evidence shows that notifications are
	// lost.
	Listening bool
	// Proven is when the last canary arrived, zero before the first.
	Proven time.Time
	// RoundTrip is the time from sending to receiving that canary.
	RoundTrip time.Duration
	// Sent counts canaries, Overdue the canaries that did not arrive in time, and Unsent the canaries that could not
	// be sent.
	Sent, Overdue, Unsent uint64
	// Lost counts connections that were lost or closed as dead.
	Lost uint64
	// Trouble is the reason why no notifications arrive, nil while they
	// arrive.
	Trouble error
}

// errDead is the error of a connection on which canaries no longer arrive.
var errDead = fmt.Errorf("a notification was sent from another connection and not heard within %v: the connection is dead", canaryTimeout)

// ErrDeaf is the error of a connection on which no canary ever arrived, although LISTEN was accepted.
var ErrDeaf = fmt.Errorf("LISTEN was accepted, and a notification from another connection was not heard within %v: the connection leads "+
	"through a pooler in transaction mode, or to another database than the others; set listen_url to a direct connection", canaryTimeout)

// connState is the state of the listening connection, and has the subscribers. The listening goroutine and the one that
// sends canaries share it.
type connState struct {
	log     *slog.Logger
	poke    chan struct{} // capacity 1: LISTEN has just been accepted
	changed chan struct{} // capacity 1: the channels have changed

	mu          sync.Mutex
	subscribers []*Subscriber // replaced as a whole, never changed

	conn   *pgx.Conn // the listening connection, nil without one
	heard  chan uint64
	proven bool  // a canary arrived on conn
	reason error // why conn was closed
	deaf   bool  // no canary arrived on the last connection
	blind  bool
	state  State

	since        time.Time // start of the incident, zero without one
	healthySince time.Time // when notifications arrived again, zero while they do not
	lost         uint64    // connections lost in this incident
	tries        uint64    // failed attempts in this incident
}

// subscribe adds a subscriber, which learns of the current incident.
func (l *connState) subscribe(s *Subscriber) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.subscribers = append(slices.Clone(l.subscribers), s)
	if l.blind && s.OnBlind != nil {
		s.OnBlind(true)
	}
	if !l.since.IsZero() && s.OnChange != nil {
		s.OnChange(l.state.Trouble)
	}

	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// unsubscribe removes a subscriber. The connection listens on its channel until it is replaced.
func (l *connState) unsubscribe(s *Subscriber) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscribers = slices.DeleteFunc(slices.Clone(l.subscribers), func(other *Subscriber) bool { return other == s })
}

// subscribersOf returns the subscribers of a channel.
func (l *connState) subscribersOf(channel string) (all []*Subscriber) {
	l.mu.Lock()
	defer l.mu.Unlock()

	for _, s := range l.subscribers {
		if s.Channel == channel {
			all = append(all, s)
		}
	}

	return all
}

// channels returns the channels of all subscribers, sorted.
func (l *connState) channels() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.channelsLocked()
}

func (l *connState) channelsLocked() (all []string) {
	for _, s := range l.subscribers {
		all = append(all, s.Channel)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// changeAllLocked reports the start of an incident to all subscribers, or its end with nil.
func (l *connState) changeAllLocked(err error) {
	for _, s := range l.subscribers {
		if s.OnChange != nil {
			s.OnChange(err)
		}
	}
}

// listens records that LISTEN was accepted on conn. Without a proof, conn counts as healthy.
func (l *connState) listens(conn *pgx.Conn, prove bool) {
	l.mu.Lock()
	l.conn = conn
	l.proven = false
	l.state.Listening = true
	l.mu.Unlock()

	if !prove {
		l.healthy(conn)
	}

	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// ended records that the connection is lost, or could not be opened.
func (l *connState) ended(ctx context.Context, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.state.Listening = false
	if ctx.Err() != nil {
		l.conn = nil
		l.proven = false
		l.reason = nil
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

	l.conn = nil
	l.proven = false
	l.reason = nil
	l.troubleLocked(ctx, err)
}

// troubleLocked begins an incident, or continues the current one.
func (l *connState) troubleLocked(ctx context.Context, err error) {
	l.state.Trouble = err
	l.healthySince = time.Time{}
	l.setBlindLocked(true)

	if !l.since.IsZero() {
		return
	}

	l.since = time.Now()
	l.changeAllLocked(err)
	l.log.WarnContext(ctx, "not listening", "channels", l.channelsLocked(), "err", err)
}

// setBlindLocked calls OnBlind of all subscribers if blind has changed.
func (l *connState) setBlindLocked(blind bool) {
	if l.blind == blind {
		return
	}

	l.blind = blind
	for _, s := range l.subscribers {
		if s.OnBlind != nil {
			s.OnBlind(blind)
		}
	}
}

// healthy records that notifications arrive on conn, which may already be lost.
func (l *connState) healthy(conn *pgx.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.conn != conn {
		return
	}

	l.state.Trouble = nil
	l.proven = true
	l.deaf = false
	l.setBlindLocked(false)

	if l.healthySince.IsZero() {
		l.healthySince = time.Now()
	}
}

// settle ends the incident if notifications have arrived for long enough. It returns the remaining time, 0 without an
// incident to end.
func (l *connState) settle() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.since.IsZero() || l.healthySince.IsZero() {
		return 0
	}
	if left := calm - time.Since(l.healthySince); left > 0 {
		return left
	}

	l.log.Info("listening again", "channels", l.channelsLocked(), "after", l.healthySince.Sub(l.since).Round(time.Millisecond),
		"connections_lost", l.lost, "failed_attempts", l.tries)
	l.since = time.Time{}
	l.lost = 0
	l.tries = 0
	l.changeAllLocked(nil)

	return 0
}

// closeDead closes a dead connection. The goroutine that waits on it then opens a new one. closeDead does nothing to a
// connection that is already lost.
func (l *connState) closeDead(conn *pgx.Conn) {
	if l.markDead(conn) {
		_ = conn.PgConn().Conn().Close() // the connection is broken anyway
	}
}

// markDead records that no canary arrived on conn. It returns false if conn is not the listening connection.
func (l *connState) markDead(conn *pgx.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.state.Overdue++
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

// giveUp closes a connection on which the listener cannot work. The goroutine that waits on it, which is the caller, then
// opens a new one.
func (l *connState) giveUp(ctx context.Context, conn *pgx.Conn, why error) {
	l.mu.Lock()
	if l.reason == nil { // otherwise closeDead has closed it
		l.reason = why
	}
	l.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()

	_ = conn.Close(ctx) // the socket is closed either way
}

// isDeaf reports whether no canary arrived on the last connection.
func (l *connState) isDeaf() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deaf
}

// receive handles a canary on the listening connection.
func (l *connState) receive(payload string) {
	n, err := strconv.ParseUint(payload, 10, 64)
	if err != nil {
		return // another client notifies on this channel
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	select {
	case l.heard <- n:
	default: // more canaries than were sent
	}
}

// listener returns the listening connection, nil without one.
func (l *connState) listener() *pgx.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

func (l *connState) now() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// watch sends canaries, unless p is nil, and ends incidents, until ctx ends.
func (l *connState) watch(ctx context.Context, p *Proof) {
	every := time.Hour // only poke and the end of an incident wake the loop
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
			send = p != nil
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

// sendCanary sends a canary and waits for it. A connection on which it does not arrive is closed. If the canary
// cannot be sent, the state of the listening connection is unknown.
func (l *connState) sendCanary(ctx context.Context, p *Proof) {
	conn := l.listener()
	if conn == nil {
		return
	}

	l.mu.Lock()
	l.state.Sent++
	id := l.state.Sent
	heard := make(chan uint64, 8)
	l.heard = heard
	l.mu.Unlock()

	begin := time.Now()
	if err := p.Notify(ctx, p.Channel, strconv.FormatUint(id, 10)); err != nil {
		l.unsent(ctx, err)
		return
	}

	timeout := time.NewTimer(canaryTimeout)
	defer timeout.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-l.poke: // a new connection needs a new canary
			conn = l.listener()
			if conn != nil {
				l.again()
			}
			return

		case n := <-heard:
			if n != id {
				continue
			}

			l.mu.Lock()
			l.state.Proven = time.Now()
			l.state.RoundTrip = time.Since(begin)
			l.mu.Unlock()

			l.healthy(conn)
			return

		case <-timeout.C:
			l.closeDead(conn)
			return
		}
	}
}

// again pokes the watching goroutine, which is the caller.
func (l *connState) again() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// unsent records that a canary could not be sent.
func (l *connState) unsent(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.state.Unsent++
	l.troubleLocked(ctx, fmt.Errorf("it is unknown whether notifications are heard: %w", err))
}

// canaries handles canaries that arrive.
type canaries struct{ l *Listener }

// HandleNotification also uses the connection, so that the server does not end its session as idle: see [Listener.show].
func (c canaries) HandleNotification(ctx context.Context, n *pgconn.Notification, conn *pgx.Conn) error {
	c.l.conn.receive(n.Payload)

	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()

	if err := conn.Ping(ctx); err != nil {
		c.l.conn.giveUp(ctx, conn, fmt.Errorf("use the listening connection: %w", err))
	}

	return nil
}

// HandleBacklog runs after LISTEN to the canaries.
func (c canaries) HandleBacklog(_ context.Context, _ string, conn *pgx.Conn) error {
	c.l.accepted(conn)
	return nil
}

var errProof = errors.New("a proof needs a channel, an interval above 0, and a function to notify with")
