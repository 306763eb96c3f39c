package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/session"
)

// roleCalls is the role of the session that records calls with large events.
const roleCalls = "calls"

// Calls records the calls with large events in outbox_calls: a process that ends during a call leaves its row. It
// implements dispatch.Calls. It connects on first use. It is safe for concurrent use; its creator closes it.
type Calls struct {
	connector *Connector
	// report receives the result of each statement; nil is good.
	report func(error)

	mu      sync.Mutex // guards the fields below, and serializes the session
	conn    *session.Conn
	unended map[call]int // what Set has not recorded
	tidy    time.Time    // when to delete rows of dead letters
}

// call names the row of a call.
type call struct {
	event       int64
	destination string
}

// NewCalls returns Calls that connect on first use.
func NewCalls(c *Connector, report func(error)) *Calls {
	return &Calls{connector: c, report: report, unended: make(map[call]int)}
}

// Close ends the session, even if ctx has ended.
func (c *Calls) Close(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		Close(ctx, c.conn.Conn)
		c.conn = nil
	}
}

// callsTimeout bounds a statement: the call with the event waits for it.
const callsTimeout = 2 * time.Second

const (
	sqlCallBegins = `INSERT INTO outbox_calls AS c (event_id, destination, replays) VALUES ($1, $2, $3)
		ON CONFLICT (event_id, destination) DO UPDATE SET calls = excluded.calls, replays = excluded.replays, begun_at = clock_timestamp()
		WHERE c.replays <> excluded.replays`
	sqlCallsOf   = `SELECT calls FROM outbox_calls WHERE event_id = $1 AND destination = $2`
	sqlCalls     = `UPDATE outbox_calls SET calls = $3, begun_at = clock_timestamp() WHERE event_id = $1 AND destination = $2`
	sqlCallsEnd  = `DELETE FROM outbox_calls WHERE event_id = $1 AND destination = $2`
	sqlCallsTidy = `DELETE FROM outbox_calls WHERE ctid = ANY(ARRAY(SELECT ctid FROM outbox_calls
		WHERE begun_at < clock_timestamp() - interval '1 day' LIMIT $1 FOR UPDATE SKIP LOCKED))`
)

// Begin records that a call begins with an event that was replayed some times, unless earlier calls have not ended: then it returns
// their number.
func (c *Calls) Begin(ctx context.Context, event int64, destination string, replays int) (calls int, err error) {
	err = c.do(ctx, "record the begin of a call", func(ctx context.Context) error {
		if err := c.record(ctx); err != nil {
			return err
		}
		if now := time.Now(); now.After(c.tidy) {
			c.tidy = now.Add(tidyEvery)
			if _, err := c.conn.Exec(ctx, sqlCallsTidy, tidyRows); err != nil {
				return err
			}
		}
		tag, err := c.conn.Exec(ctx, sqlCallBegins, event, destination, replays)
		if err != nil || tag.RowsAffected() > 0 {
			return err
		}
		calls, err = c.read(ctx, call{event, destination})
		if err == nil && calls == 0 {
			err = session.CheckChanged("begin a call", 0, 1)
		}
		return err
	})
	return calls, err
}

// Set records how many calls with an event have begun and not ended. After an error the next Begin records it.
func (c *Calls) Set(ctx context.Context, event int64, destination string, calls int) error {
	c.mu.Lock()
	c.unended[call{event, destination}] = calls
	c.mu.Unlock()
	return c.do(ctx, "record the end of a call", c.record)
}

// record writes the rows of all calls that have ended.
func (c *Calls) record(ctx context.Context) error {
	for of, n := range c.unended {
		if err := c.set(ctx, of, n); err != nil {
			return err
		}
		delete(c.unended, of)
	}
	return nil
}

// set writes the row of an event, which is known to exist.
func (c *Calls) set(ctx context.Context, of call, calls int) error {
	sql, args := sqlCalls, []any{of.event, of.destination, calls}
	if calls == 0 {
		sql, args = sqlCallsEnd, args[:2]
	}
	tag, err := c.conn.Exec(ctx, sql, args...)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		left, err := c.read(ctx, of)
		if err != nil || left > 0 {
			return cmp.Or(err, session.CheckChanged("end a call", 0, 1))
		}
	}
	return nil
}

// read returns how many calls with an event have begun and not ended.
func (c *Calls) read(ctx context.Context, of call) (calls int, err error) {
	err = c.conn.QueryRow(ctx, sqlCallsOf, of.event, of.destination).Scan(&calls)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return calls, err
}

// do runs f on the session.
func (c *Calls) do(ctx context.Context, what string, f func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), callsTimeout, fmt.Errorf("the database did not answer within %v", callsTimeout))
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil || c.conn.IsClosed() {
		c.conn, err = c.connector.Open(ctx, roleCalls)
	}
	if err == nil {
		if err = f(ctx); err != nil {
			Close(ctx, c.conn.Conn) // the server may have become a standby
		}
	}
	if err != nil {
		c.conn, err = nil, fmt.Errorf("%s: %w", what, err)
	}
	c.report(err)
	return err
}
