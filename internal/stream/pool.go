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

// pool has the few connections that all shards of a relay share. Reads are single statements, so a shard needs a
// connection only for a moment. The relay's other statements use the pool, too.
//
// A shard uses a connection only if it leads to the server life in which the shard was taken: after a crash, the server
// may assign ids again, and the shard's memory is worthless. A connection does not outlive a crash, so one check is
// enough.
type pool struct {
	connector *store.Connector
	uses      chan struct{} // one per use by a shard; the capacity bounds the uses at the same time
	owners    chan struct{} // one per write of an owner, which must not wait for working shards
	lends     chan struct{} // one per other use: while the database is away, these must not delay the shards
	closed    chan struct{}
	closing   sync.Once
	waiting   atomic.Int32 // how many uses wait for a connection

	back chan *pooled // hands a connection from a finished use to a waiting one

	mu   sync.Mutex
	idle []*pooled // unused connections, the last used one last
}

type pooled struct {
	conn  *session.Conn // nil while it is not connected
	life  string        // the server life for which it was verified
	mode  bool          // it keeps the table a stream
	since time.Time     // when it was last used
}

// ownersAtOnce is how many owners of positions are written at the same time: a trigger that delays one must not delay
// all.
const ownersAtOnce = 2

func newPool(c *store.Connector, n int) *pool {
	return &pool{
		connector: c,
		uses:      make(chan struct{}, n),
		owners:    make(chan struct{}, ownersAtOnce),
		lends:     make(chan struct{}, 1),
		closed:    make(chan struct{}),
		back:      make(chan *pooled),
	}
}

// idleFor is how long an unused connection stays open. The last used one is used first, so an idle relay keeps one, or
// as many as its shards need at the same time.
const idleFor = 10 * time.Second

// reuseWait is how long a use waits for the end of another one before it opens a connection, which takes about as long.
const reuseWait = 20 * time.Millisecond

// take returns the connection that was used last, or one that is not connected yet.
func (p *pool) take(ctx context.Context) *pooled {
	if c := p.last(); c.conn != nil || len(p.uses)+len(p.owners)+len(p.lends) < 2 {
		return c
	}

	timer := time.NewTimer(reuseWait)
	defer timer.Stop()

	select {
	case c := <-p.back:
		return c
	case <-timer.C:
	case <-ctx.Done():
	}

	return p.last() // a connection may have been returned before the wait began
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

// put returns a connection to the pool. It returns a connection that was idle for too long, or nil.
func (p *pool) put(c *pooled) (stale *session.Conn) {
	now := time.Now()
	c.since = now

	gone := c.conn == nil // or handed over
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

// use runs f on a connection that is verified for the shard. An error that is not an answer of the server closes the
// connection.
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

// own runs f, which writes the owner of a position, on a connection that is verified for the server life. The
// connection stays open if the server refused a statement.
func (p *pool) own(ctx context.Context, l *lease.Lease, f func(*session.Conn) error) error {
	var answer error
	err := p.with(ctx, p.owners, func(ctx context.Context, c *pooled) error {
		if c.life != l.Server {
			if err := p.verify(ctx, c, l); err != nil {
				return err
			}
		}

		answer = f(c.conn)
		if answer != nil && store.Spoiled(c.conn.Conn, answer) {
			return answer
		}

		return nil
	})

	return cmp.Or(err, answer)
}

// verify checks the connection for the shard. An older connection may lead to a former server: verify then opens a new
// one.
func (p *pool) verify(ctx context.Context, c *pooled, l *lease.Lease) error {
	requires := lease.Requires(l.Server)
	c.conn.Require(nil) // drop the requirement of an earlier use

	err := requires(ctx, c.conn)
	if errors.Is(err, lease.ErrMoved) && c.life != "" {
		store.Close(ctx, c.conn.Conn)
		c.life = ""
		c.mode = false
		c.conn, err = p.connector.Open(ctx, roleStream)
		if err == nil {
			err = requires(ctx, c.conn)
		}
	}

	if err != nil {
		return err //nolint:wrapcheck // the error names the failed step
	}

	c.life = l.Server
	c.mode = c.mode && !c.conn.IsShared()
	c.conn.Require(requires)

	return nil
}

// holdMode keeps the table a stream while the connection lives, or in each transaction of a shared one.
func (p *pool) holdMode(ctx context.Context, c *pooled) error {
	if c.conn.IsShared() {
		c.life = ""
		c.conn.Require(p.connector.RequiresMode(outboxsql.ModeStream))
	} else if err := p.connector.HoldMode(ctx, c.conn.Conn, outboxsql.ModeStream, nil); err != nil {
		return err
	}

	c.mode = true
	return nil
}

// lend runs f on any connection, within the time of one continuous use. The connection stays open if the server refused
// a statement. While the connection lives, the table stays a stream.
func (p *pool) lend(ctx context.Context, f func(context.Context, *session.Conn) error) error {
	var answer error
	err := p.with(ctx, p.lends, func(ctx context.Context, c *pooled) error {
		ctx, cancel := context.WithTimeoutCause(ctx, position.RoundTrip, position.ErrSlow)
		defer cancel()

		if !c.mode {
			if err := p.holdMode(ctx, c); err != nil {
				return err
			}
		}

		answer = f(ctx, c.conn)
		if answer != nil && store.Spoiled(c.conn.Conn, answer) {
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

		c.conn = conn
		c.life = ""
		c.mode = false
	}

	err := f(ctx, c)
	if err != nil && !errors.Is(err, position.ErrFenced) && c.conn != nil {
		// Reconnecting is rare and always right; resuming a half-read result is neither.
		store.Close(ctx, c.conn.Conn)
		c.conn = nil
	}

	return err
}

// maxTurn is how long a shard with endless work keeps a connection that others wait for.
const maxTurn = 20 * time.Millisecond

// mustYield reports whether another use waits for the connection, which has been used since began. The longest waiting
// use is next.
func (p *pool) mustYield(began time.Time) bool {
	return p.waiting.Load() > 0 && time.Since(began) >= maxTurn
}

// close closes all connections, once they are unused.
func (p *pool) close(ctx context.Context) {
	p.closing.Do(func() {
		close(p.closed)
		p.lends <- struct{}{} // never released

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
