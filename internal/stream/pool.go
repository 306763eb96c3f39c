package stream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
)

// roleStream is the role of the connections that read the table and write positions.
const roleStream = "stream"

// roundTrip bounds what a unit does on a connection without a break.
const roundTrip = 15 * time.Second

// errMoved says that the session on which a unit was taken is not there any more. The
// server may have crashed meanwhile, and given back ids that the unit has in memory.
var errMoved = errors.New("the session that owns the unit is gone")

// pool is the few connections that all units of a relay share. Reads are single
// statements, so that a connection is wanted for a moment only.
//
// A connection is used for a unit only where it is known to lead to the server on which
// the session lives that owns the unit, in the very life of it: what a unit has in memory is worth
// nothing after a crash, where ids may be given out again. A connection does not outlive
// a crash either, so it is enough to look once.
type pool struct {
	connector *store.Connector
	free      chan *pooled // one for each connection there may be; nil in it is not connected
	waiting   atomic.Int32 // how many wait for one
}

type pooled struct {
	conn    *pgx.Conn
	backend int32 // the session for which it was looked
}

func newPool(c *store.Connector, n int) *pool {
	p := &pool{connector: c, free: make(chan *pooled, n)}
	for range n {
		p.free <- &pooled{}
	}
	return p
}

// use runs f on a connection that is good for the unit. After an error that is not
// an answer of the server the connection is given up.
func (p *pool) use(ctx context.Context, pos Position, f func(*pgx.Conn) error) error {
	return p.with(ctx, func(ctx context.Context, c *pooled) error {
		if c.backend != pos.Backend {
			if err := p.verify(ctx, c, pos); err != nil {
				return err
			}
			c.backend = pos.Backend
		}
		return f(c.conn)
	})
}

// verify looks whether the connection is good for the unit. One of before may lead to
// where the session was once: another one is asked then.
func (p *pool) verify(ctx context.Context, c *pooled, pos Position) error {
	err := pos.verify(ctx, c.conn)
	if !errors.Is(err, errMoved) || c.backend == 0 {
		return err
	}
	store.Close(ctx, c.conn)
	c.backend = 0
	if c.conn, err = p.connector.Connect(ctx, roleStream); err != nil {
		return err
	}
	return pos.verify(ctx, c.conn)
}

// plain runs f on any connection.
func (p *pool) plain(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return p.with(ctx, func(ctx context.Context, c *pooled) error { return f(ctx, c.conn) })
}

func (p *pool) with(ctx context.Context, f func(context.Context, *pooled) error) error {
	var c *pooled
	p.waiting.Add(1)
	select {
	case c = <-p.free:
		p.waiting.Add(-1)
	case <-ctx.Done():
		p.waiting.Add(-1)
		return fmt.Errorf("wait for a connection: %w", context.Cause(ctx))
	}
	defer func() { p.free <- c }()
	if c.conn == nil || c.conn.IsClosed() {
		conn, err := p.connector.Connect(ctx, roleStream)
		if err != nil {
			return err
		}
		c.conn, c.backend = conn, 0
	}
	err := f(ctx, c)
	if err != nil && !errors.Is(err, errFenced) && c.conn != nil {
		// Reconnecting is rare and always right; picking up what was left half read is neither.
		store.Close(ctx, c.conn)
		c.conn = nil
	}
	return err
}

// turn is how long a unit keeps a connection that others wait for, where it has work
// without end.
const turn = 20 * time.Millisecond

// wanted reports whether somebody waits for the connection that is used since began. Who
// waits longest is next.
func (p *pool) wanted(began time.Time) bool { return p.waiting.Load() > 0 && time.Since(began) >= turn }

// close ends all connections. Nobody uses them any more.
func (p *pool) close(ctx context.Context) {
	for range cap(p.free) {
		if c := <-p.free; c.conn != nil {
			store.Close(ctx, c.conn)
		}
	}
}

// verify looks whether the session that owns the unit lives on the server that conn
// leads to. It returns errMoved if not.
func (p Position) verify(ctx context.Context, conn *pgx.Conn) error {
	var lives bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND classid = 'outbox_positions'::regclass::oid AND objid = $1::bigint::oid AND pid = $2)`, int64(p.Unit), p.Backend).Scan(&lives)
	switch {
	case err != nil:
		return fmt.Errorf("look for the session that owns the unit: %w", err)
	case !lives:
		return errMoved
	}
	return nil
}
