package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrPooler is returned by [Connector.Connect] for a connection that leads
// through a pooler in transaction or statement mode. A session does not last
// there: LISTEN is accepted and never heard of again, prepared statements are
// gone, an advisory lock stays with a connection that somebody else gets next,
// and so do settings, synchronous_commit = off among them. So nothing is set,
// locked or listened to before this is known.
var ErrPooler = errors.New("the connection leads through a pooler in transaction mode, where LISTEN, session locks, " +
	"settings and prepared statements are lost: connect to PostgreSQL directly, or through a pool in session mode")

const (
	// probeTimeout bounds the second connection that tells the modes of a pooler
	// apart. In session mode it may have to wait for one to be free.
	probeTimeout = 2 * time.Second
	// probeRounds is how often two sessions are compared. A pool that is idle
	// gives itself away in the first, one that is busy in a few.
	probeRounds = 8
)

// checkPooler tells a pooler that keeps sessions together from one that does
// not. A pooler shows by its process id, which is not that of a server
// process; its mode by two connections that meet in one server process, or by
// one that changes its own. Whether it is so is found out once: a connection
// that is not pooled costs one round trip.
func (c *Connector) checkPooler(ctx context.Context, cfg *pgx.ConnConfig, conn *pgx.Conn) error {
	first, err := backend(ctx, conn)
	if err != nil || first == conn.PgConn().PID() || c.keepsSessions.Load() {
		return err
	}
	other, err := c.secondSession(ctx, cfg)
	if err != nil {
		return err
	}
	sessions := []*pooled{{conn, first}}
	if other != nil {
		defer Close(ctx, other)
		sessions = append(sessions, &pooled{other, 0})
	}
	for range probeRounds {
		seen := make(map[uint32]bool, len(sessions))
		for _, s := range sessions {
			pid, err := backend(ctx, s.conn)
			if err != nil {
				return err
			}
			if seen[pid] || s.pid != 0 && s.pid != pid {
				return ErrPooler
			}
			s.pid, seen[pid] = pid, true
		}
	}
	c.keepsSessions.Store(other != nil)
	return nil
}

// pooled is a connection, and the server process that has answered on it.
type pooled struct {
	conn *pgx.Conn
	pid  uint32 // 0: not known yet
}

// secondSession opens another connection to the same place. It returns nil
// where none is free in time: a full pool in session mode, most likely.
func (c *Connector) secondSession(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	within, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	other, err := pgx.ConnectConfig(within, cfg.Copy())
	switch {
	case err == nil:
		return other, nil
	case within.Err() != nil && ctx.Err() == nil:
		return nil, nil //nolint:nilnil // none is an answer
	default:
		return nil, &connectError{err}
	}
}

// backend returns the id of the server process that answers. The query is
// never prepared: that is one of the things that poolers do not get along with.
func backend(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	var n int64
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&n); err != nil {
		return 0, fmt.Errorf("ask which server process answers: %w", err)
	}
	return uint32(n), nil //nolint:gosec // a process id
}
