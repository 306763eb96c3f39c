package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/session"
)

// ErrPooler is returned by [Connector.Connect] for a connection through a pooler in transaction or statement mode.
// Session state is lost there: LISTEN is accepted without effect, prepared statements disappear, and an advisory lock
// stays with a connection that another client gets next. So do settings, including synchronous_commit = off. So the
// relay must rule this out before it sets, locks or listens.
var ErrPooler = errors.New("the connection leads through a pooler in transaction mode, where LISTEN, session locks, " +
	"settings and prepared statements are lost: connect to PostgreSQL directly, or through a pool in session mode")

const (
	// probeTimeout bounds opening the second connection that reveals the mode of a pooler. In session mode it may
	// have to wait for a free one.
	probeTimeout = 2 * time.Second
	// probeRounds is how often two sessions are compared. An idle pool is detected in the first round, a busy one in
	// a few.
	probeRounds = 8
)

// checkPooler detects a pooler that does not keep sessions. With a pooler, the connection's process id differs from
// the server process. Without kept sessions, two connections share a server process, or one connection changes its
// server process. The check runs once; it costs a direct connection one round trip.
func (c *Connector) checkPooler(ctx context.Context, conn *pgx.Conn) error {
	first, err := backend(ctx, conn)
	if err != nil || first == conn.PgConn().PID() || c.keepsSessions.Load() {
		return err
	}
	if c.shared.Load() {
		return ErrPooler
	}

	other, err := c.secondSession(ctx, conn.Config())
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
				c.shared.Store(true)
				return ErrPooler
			}

			s.pid = pid
			seen[pid] = true
		}
	}

	c.keepsSessions.Store(other != nil)
	return nil
}

// pooled is a connection with its last server process.
type pooled struct {
	conn *pgx.Conn
	pid  uint32 // 0 for unknown
}

// secondSession opens another connection to the same target. It returns nil without a free one in time: most likely a
// full pool in session mode.
func (c *Connector) secondSession(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	within, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()

	other, err := pgx.ConnectConfig(within, cfg)
	switch {
	case err == nil:
		return other, nil
	case within.Err() != nil && ctx.Err() == nil:
		return nil, nil //nolint:nilnil // nil means no free connection
	default:
		return nil, &connectError{err, c.Wants}
	}
}

// backend returns the id of the answering server process. The query is never prepared, because some poolers do not
// support that.
func backend(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	var n int64
	if err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&n); err != nil {
		return 0, fmt.Errorf("find the answering server process: %w", err)
	}
	return uint32(n), nil //nolint:gosec // a process id
}

// isStatementMode reports whether a pooler refuses transactions. The refusal has no code, so the text decides.
func isStatementMode(conn *session.Conn, err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !conn.IsShared() {
		return false
	}
	return pg.Code == "08P01" && strings.Contains(pg.Message, "statement pooling mode")
}
