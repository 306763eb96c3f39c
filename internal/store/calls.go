package store

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/session"
)

// roleCalls is the role of the session that records calls with large events.
const roleCalls = "calls"

// Calls records the calls with large events in outbox_calls: a process that ends during a call leaves its row. It
// implements dispatch.Calls. It connects on first use. It is safe for concurrent use; its creator closes it.
type Calls struct {
	onDemand

	// Guarded by onDemand.mu.
	unended map[call]int // what Set has not recorded
	tidy    time.Time    // when to delete rows of dead letters
}

// call names the row of a call.
type call struct {
	event       int64
	destination string
}

// NewCalls returns Calls that connect on first use. report receives the result of each statement; nil is good.
func NewCalls(c *Connector, report func(error)) *Calls {
	return &Calls{onDemand: onDemand{connector: c, role: roleCalls, report: report}, unended: make(map[call]int)}
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
	err = c.do(ctx, callsTimeout, "record the begin of a call", func(ctx context.Context, conn *session.Conn) error {
		if err := c.record(ctx, conn); err != nil {
			return err
		}

		if now := time.Now(); now.After(c.tidy) {
			c.tidy = now.Add(tidyEvery)
			if _, err := conn.Exec(ctx, sqlCallsTidy, tidyRows); err != nil {
				return err
			}
		}

		tag, err := conn.Exec(ctx, sqlCallBegins, event, destination, replays)
		if err != nil || tag.RowsAffected() > 0 {
			return err
		}

		calls, err = readCall(ctx, conn, call{event, destination})
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
	return c.do(ctx, callsTimeout, "record the end of a call", c.record)
}

// record writes the rows of all calls that have ended.
func (c *Calls) record(ctx context.Context, conn *session.Conn) error {
	for of, n := range c.unended {
		if err := setCall(ctx, conn, of, n); err != nil {
			return err
		}
		delete(c.unended, of)
	}
	return nil
}

// setCall writes the row of an event, which is known to exist.
func setCall(ctx context.Context, conn *session.Conn, of call, calls int) error {
	sql := sqlCalls
	args := []any{of.event, of.destination, calls}
	if calls == 0 {
		sql = sqlCallsEnd
		args = args[:2]
	}

	tag, err := conn.Exec(ctx, sql, args...)
	if err != nil {
		return err
	}

	if tag.RowsAffected() == 0 {
		left, err := readCall(ctx, conn, of)
		if err != nil || left > 0 {
			return cmp.Or(err, session.CheckChanged("end a call", 0, 1))
		}
	}

	return nil
}

// readCall returns how many calls with an event have begun and not ended.
func readCall(ctx context.Context, conn *session.Conn, of call) (calls int, err error) {
	err = conn.QueryRow(ctx, sqlCallsOf, of.event, of.destination).Scan(&calls)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return calls, err
}
