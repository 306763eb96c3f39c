package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// roleStream is the role of the connections that read the table and write positions.
const roleStream = "stream"

var errClosed = errors.New("the engine has ended")

// pool has the few connections that all units of a relay share. Reads are single statements, so
// that a connection is needed for a moment only. What else the relay asks uses them, too.
//
// A connection is used for a unit only if it leads to the server in the life in which the unit was
// taken: the memory of a unit is worthless after a crash, when ids may be assigned again. A
// connection does not outlive a crash either, so one check is enough.
type pool struct {
	connector *store.Connector
	uses      chan struct{} // one for each use by a unit; its capacity is how many there can be at the same time
	owners    chan struct{} // one for each write of an owner, which no unit at work keeps waiting
	lends     chan struct{} // one for another use: while the database is away, those keep no unit waiting
	closed    chan struct{}
	closing   sync.Once
	waiting   atomic.Int32 // how many uses wait for a connection

	back chan *pooled // from a use that has ended to one that waits for it

	mu   sync.Mutex
	idle []*pooled // connections that are not used, the last used one last
}

type pooled struct {
	conn  *session.Conn // nil while it is not connected
	life  string        // of the server, for which it was verified
	mode  bool          // it keeps the table a stream
	since time.Time     // when it was last used
}

// ownersAtOnce is how many owners of positions are written at the same time: one that a trigger delays must not delay all.
const ownersAtOnce = 2

func newPool(c *store.Connector, n int) *pool {
	return &pool{connector: c, uses: make(chan struct{}, n), owners: make(chan struct{}, ownersAtOnce), lends: make(chan struct{}, 1), closed: make(chan struct{}), back: make(chan *pooled)}
}

// idleFor is how long a connection may be without use until it is closed. The last used one is used again
// first, so that a relay at rest keeps one, or as many as its units happen to need at the same time.
const idleFor = 10 * time.Second

// sooner is how long a use waits for the end of another one before it opens a connection of its own, which
// would hardly take less.
const sooner = 20 * time.Millisecond

// take returns the connection that was used last, or one that is not connected yet.
func (p *pool) take(ctx context.Context) *pooled {
	if c := p.last(); c.conn != nil || len(p.uses)+len(p.owners)+len(p.lends) < 2 {
		return c
	}
	timer := time.NewTimer(sooner)
	defer timer.Stop()
	select {
	case c := <-p.back:
		return c
	case <-timer.C:
	case <-ctx.Done():
	}
	return p.last() // one may have come back before this has waited
}

func (p *pool) last() *pooled {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return &pooled{}
	}
	c := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return c
}

// put gives a connection back, and returns one that has been idle for too long, nil if there is none.
func (p *pool) put(c *pooled) (stale *session.Conn) {
	now := time.Now()
	c.since = now
	gone := c.conn == nil // or in other hands
	if !gone {
		select {
		case p.back <- c:
			gone = true
		default:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !gone {
		p.idle = append(p.idle, c)
	}
	if len(p.idle) > 0 && now.Sub(p.idle[0].since) > idleFor {
		stale = p.idle[0].conn
		p.idle = slices.Delete(p.idle, 0, 1)
	}
	return stale
}

// use runs f on a connection that is verified for the unit. After an error that is not an answer of
// the server the connection is given up.
func (p *pool) use(ctx context.Context, l *lease.Lease, f func(*session.Conn) error) error {
	return p.with(ctx, p.uses, func(ctx context.Context, c *pooled) error {
		if c.life != l.Server {
			if err := p.verify(ctx, c, l); err != nil {
				return err
			}
		}
		return f(c.conn)
	})
}

// own runs f, which writes the owner of a position, on a connection that is verified for the life of the server. It is kept if
// the server has refused a statement.
func (p *pool) own(ctx context.Context, l *lease.Lease, f func(*session.Conn) error) error {
	var answer error
	err := p.with(ctx, p.owners, func(ctx context.Context, c *pooled) error {
		if c.life != l.Server {
			if err := p.verify(ctx, c, l); err != nil {
				return err
			}
		}
		if answer = f(c.conn); answer != nil && store.Spoiled(c.conn.Conn, answer) {
			return answer
		}
		return nil
	})
	return cmp.Or(err, answer)
}

// verify checks the connection for the unit. An older connection may lead to a former server: then a new one is tried.
func (p *pool) verify(ctx context.Context, c *pooled, l *lease.Lease) error {
	requires := lease.Requires(l.Server)
	c.conn.Require(nil) // what an earlier use requires
	err := requires(ctx, c.conn)
	if errors.Is(err, lease.ErrMoved) && c.life != "" {
		store.Close(ctx, c.conn.Conn)
		c.life, c.mode = "", false
		if c.conn, err = p.connector.Open(ctx, roleStream); err == nil {
			err = requires(ctx, c.conn)
		}
	}
	if err != nil {
		return err //nolint:wrapcheck // it says what failed
	}
	c.life, c.mode = l.Server, c.mode && !c.conn.IsShared()
	c.conn.Require(requires)
	return nil
}

// hold keeps the table a stream while the connection lives, or in each transaction of a shared one.
func (p *pool) hold(ctx context.Context, c *pooled) error {
	if c.conn.IsShared() {
		c.life = ""
		c.conn.Require(p.connector.RequiresMode(outboxsql.ModeStream))
	} else if err := p.connector.HoldMode(ctx, c.conn.Conn, outboxsql.ModeStream, nil); err != nil {
		return err
	}
	c.mode = true
	return nil
}

// lend runs f on any connection, which has the time of one continuous use for it, and after which it is kept if the server
// has refused a statement. While it lives, the table stays a stream.
func (p *pool) lend(ctx context.Context, f func(context.Context, *session.Conn) error) error {
	var answer error
	err := p.with(ctx, p.lends, func(ctx context.Context, c *pooled) error {
		ctx, cancel := context.WithTimeoutCause(ctx, position.RoundTrip, position.ErrSlow)
		defer cancel()
		if !c.mode {
			if err := p.hold(ctx, c); err != nil {
				return err
			}
		}
		if answer = f(ctx, c.conn); answer != nil && store.Spoiled(c.conn.Conn, answer) {
			return answer
		}
		return nil
	})
	return cmp.Or(err, answer)
}

func (p *pool) with(ctx context.Context, uses chan struct{}, f func(context.Context, *pooled) error) error {
	p.waiting.Add(1)
	select {
	case uses <- struct{}{}:
	case <-p.closed:
		p.waiting.Add(-1)
		return errClosed
	case <-ctx.Done():
		p.waiting.Add(-1)
		return fmt.Errorf("wait for a connection: %w", context.Cause(ctx))
	}
	c := p.take(ctx)
	p.waiting.Add(-1)
	defer func() {
		stale := p.put(c)
		if stale != nil {
			store.Close(ctx, stale.Conn)
		}
		<-uses
	}()
	if c.conn == nil || c.conn.IsClosed() {
		conn, err := p.connector.Open(ctx, roleStream)
		if err != nil {
			return err
		}
		c.conn, c.life, c.mode = conn, "", false
	}
	err := f(ctx, c)
	if err != nil && !errors.Is(err, position.ErrFenced) && c.conn != nil {
		// Reconnecting is rare and always right; resuming a half-read result is neither.
		store.Close(ctx, c.conn.Conn)
		c.conn = nil
	}
	return err
}

// turn is how long a unit with endless work keeps a connection that others wait for.
const turn = 20 * time.Millisecond

// wanted reports whether another use waits for the connection, which has been used since began.
// The one that has waited longest is next.
func (p *pool) wanted(began time.Time) bool { return p.waiting.Load() > 0 && time.Since(began) >= turn }

// close ends all connections, once they are no longer used.
func (p *pool) close(ctx context.Context) {
	p.closing.Do(func() {
		close(p.closed)
		p.lends <- struct{}{} // for good
		for range cap(p.owners) {
			p.owners <- struct{}{}
		}
		for range cap(p.uses) {
			p.uses <- struct{}{}
		}
		for _, c := range p.idle {
			store.Close(ctx, c.conn.Conn)
		}
	})
}
