package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	sessions "github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
)

const (
	// holdersInTurns is how many holders use one session in turns, and how many of them send their statements together.
	// Each then holds some six locks of tables and indexes, and its session keeps some ten statements prepared: pgx keeps
	// 512.
	holdersInTurns = 32
	// turnLock and turnStatement bound the wait for a lock in the tables of one outbox, and a statement. The others wait
	// for up to twice that: a statement that fails among those of several holders is sent again alone.
	turnLock      = 100 * time.Millisecond
	turnStatement = 500 * time.Millisecond
	// ownFor is how long an outbox keeps its own session after the last delay.
	ownFor = time.Minute
)

var (
	// errChange ends the use of a session by a table that continues on another one.
	errChange = errors.New("the leases continue on another session")
	// errLost is the error of a session that was lost in the turn of another holder.
	errLost = errors.New("the session of the leases is lost")
)

// Turns has the sessions that holders of several outboxes use in turns. All must lead to the same database, as the same
// user. A session has the advisory locks of all its holders, and the server releases them when the session ends.
// Waiting holders send their renewals and reads together.
//
// An outbox with locked or slow tables moves to a separate session, and returns after a minute without a delay. Behind a
// pooler in transaction mode each holder has a separate connection.
type Turns struct {
	room    int // for holders in one session
	ownFor  time.Duration
	opening chan struct{} // capacity 1: held while a session is found, or opened
	failed  time.Time     // when the last attempt to open one failed, and why; guarded by opening
	err     error

	mu  sync.Mutex
	all []*turns
}

// NewTurns returns a Turns without sessions.
func NewTurns() *Turns {
	return &Turns{room: holdersInTurns, ownFor: ownFor, opening: make(chan struct{}, 1)}
}

// turns is a session that several holders use in turns.
type turns struct {
	conn *sessions.Conn
	turn chan struct{} // capacity 1; holders get it in the order in which they came
	lost atomic.Bool

	holders int // guarded by the mutex of Turns

	mu      sync.Mutex
	waiting []*request
}

// request has the statements that a holder sends at once.
type request struct {
	queue func(*pgx.Batch)
	done  chan error // capacity 1
}

// opener returns an opener of tables that use the sessions in turns.
func (t *Turns) opener(c *store.Connector, o *Options) opener {
	var until time.Time // until then the outbox has a separate session
	own := func(ctx context.Context) (table, func(error), error) {
		conn, err := c.Open(ctx, store.RoleLeases)
		if err != nil {
			until = time.Time{} // there may be no room for another session
			return nil, nil, err
		}
		s := newSession(conn, c.Schema, o)
		s.until = until
		return s.opened(ctx, func(err error) {
			if !errors.Is(err, errChange) { // the tables are still locked
				until = time.Now().Add(t.ownFor)
			}
			s.close(ctx)
		})
	}
	return func(ctx context.Context) (table, func(error), error) {
		if time.Now().Before(until) {
			return own(ctx)
		}
		in, conn, err := t.join(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		s := newSession(conn, c.Schema, o)
		if in == nil {
			return s.opened(ctx, func(error) { s.close(ctx) })
		}
		s.turns = in
		return s.opened(ctx, func(err error) {
			if errors.Is(err, errChange) {
				until = time.Now().Add(t.ownFor)
			}
			s.free(ctx, err)
			t.leave(ctx, in)
		})
	}
}

// join returns a session with room for one more holder, and its connection. Behind a pooler in transaction mode it
// returns a connection for this holder alone. Of holders that come at the same time, one connects for all.
func (t *Turns) join(ctx context.Context, c *store.Connector) (*turns, *sessions.Conn, error) {
	came := time.Now()
	select {
	case t.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("wait for the session of the leases: %w", context.Cause(ctx))
	}
	defer func() { <-t.opening }()
	if in := t.withRoom(); in != nil {
		return in, in.conn, nil
	}
	if t.failed.After(came) {
		return nil, nil, t.err
	}
	conn, err := c.Open(ctx, store.RoleLeases)
	if err == nil && conn.IsShared() {
		return nil, conn, nil
	}
	if err == nil {
		err = limit(ctx, conn)
	}
	if err != nil {
		if ctx.Err() == nil {
			t.failed, t.err = time.Now(), err
		}
		return nil, nil, err
	}
	in := &turns{conn: conn, turn: make(chan struct{}, 1), holders: 1}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, in)
	return in, conn, nil
}

// limit sets the limits of statements on a session that is used in turns. After an error the connection is closed.
func limit(ctx context.Context, conn *sessions.Conn) error {
	err := within(ctx, answerWithin, func(ctx context.Context) error {
		if err := conn.Set(ctx, "lock_timeout", fmt.Sprint(turnLock.Milliseconds())); err != nil {
			return err
		}
		return conn.Set(ctx, "statement_timeout", fmt.Sprint(turnStatement.Milliseconds()))
	})
	if err != nil {
		store.Close(ctx, conn.Conn)
	}
	return err
}

// withRoom adds a holder to a session, nil for none.
func (t *Turns) withRoom() *turns {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, in := range t.all {
		if in.holders < t.room && !in.lost.Load() {
			in.holders++
			return in
		}
	}
	return nil
}

// leave removes a holder from a session, and closes the session after the last one.
func (t *Turns) leave(ctx context.Context, in *turns) {
	t.mu.Lock()
	in.holders--
	last := in.holders == 0
	if last {
		t.all = slices.DeleteFunc(t.all, func(other *turns) bool { return other == in })
	}
	t.mu.Unlock()
	if last {
		store.Close(ctx, in.conn.Conn)
	}
}

// use runs f as one turn. An error after which the session is of no use ends it for all holders. [errChange] is the
// error of a statement that was cancelled because it would have delayed the others.
func (t *turns) use(ctx context.Context, f func(context.Context) error) error {
	t.turn <- struct{}{} // soon: the timeouts of locks, statements and round trips bound each turn
	defer func() { <-t.turn }()
	return t.do(ctx, f)
}

// do runs f. The caller has the turn.
func (t *turns) do(ctx context.Context, f func(context.Context) error) error {
	if t.lost.Load() {
		return errLost
	}
	err := within(ctx, answerWithin, f)
	switch {
	case err == nil:
	case store.Spoiled(t.conn.Conn, err):
		t.end(ctx)
	case store.BoundOf(err) != "":
		return fmt.Errorf("%w: %w", errChange, err)
	}
	return err
}

// send sends the statements of one holder together with the statements of waiting holders. On a busy machine a round
// trip takes far longer than its statements, and one turn per holder makes renewals late. queue may be called again.
func (t *turns) send(ctx context.Context, queue func(*pgx.Batch)) error {
	r := &request{queue: queue, done: make(chan error, 1)}
	t.mu.Lock()
	t.waiting = append(t.waiting, r)
	t.mu.Unlock()
	for {
		select {
		case err := <-r.done:
			return err
		case t.turn <- struct{}{}:
			t.sendWaiting(ctx)
			<-t.turn
		}
	}
}

// sendWaiting sends the statements of all holders that wait. The caller has the turn.
func (t *turns) sendWaiting(ctx context.Context) {
	t.mu.Lock()
	all := t.waiting
	t.waiting = nil
	t.mu.Unlock()
	if len(all) == 0 {
		return
	}
	err := t.sendAll(ctx, all...)
	again := err != nil && len(all) > 1 && !t.lost.Load() // the error concerns one of them
	for _, r := range all {
		if again {
			err = t.sendAll(ctx, r)
		}
		r.done <- err
	}
}

// sendAll sends statements in one transaction, each with its own snapshot.
func (t *turns) sendAll(ctx context.Context, all ...*request) error {
	return t.do(ctx, func(ctx context.Context) error {
		var batch pgx.Batch
		for _, r := range all {
			r.queue(&batch)
		}
		return t.conn.SendBatch(ctx, &batch).Close()
	})
}

// end ends the session for all holders. The caller has the turn.
func (t *turns) end(ctx context.Context) {
	t.lost.Store(true)
	store.Close(ctx, t.conn.Conn)
}
