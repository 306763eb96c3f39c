package console

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// statementTimeout bounds each statement of the console, which must not burden
// the relay's database.
const statementTimeout = 5 * time.Second

// bounded is a pool whose transactions have a statement_timeout, and read by index.
type bounded struct{ pool *pgxpool.Pool }

// BeginTx implements ops.DB.
func (b bounded) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	tx, err := b.pool.BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}

	// Statistics of a table whose rows come and go are stale; an index is always right here.
	_, err = tx.Exec(ctx, fmt.Sprintf(`SET LOCAL statement_timeout = %d; SET LOCAL enable_seqscan = off`,
		statementTimeout.Milliseconds()))
	if err != nil {
		return nil, errors.Join(err, tx.Rollback(ctx))
	}
	return tx, nil
}

// tables are the tables of one database.
type tables struct {
	Database

	client *ops.Client
}

// inOrder makes the planner walk an index in order and stop at the limit. With
// stale statistics it would rather read the whole index, and sort.
func inOrder(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off`)
	return err
}

// table returns the qualified name of a table.
func table(schema, name string) string { return pgx.Identifier{schema, name}.Sanitize() }

// latencyOf is the number of newest events that the latency is computed from.
const latencyOf = 500

// latency is computed from the newest events that were done within the last
// minute. Delayed events are left out.
func (t *tables) latency(ctx context.Context) (latency, error) {
	var median, p99 *float64
	tx, err := bounded{t.Pool}.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err == nil {
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // nothing was written
		err = inOrder(ctx, tx)
	}

	if err == nil {
		err = tx.QueryRow(ctx, `SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY took), percentile_cont(0.99) WITHIN GROUP (ORDER BY took)
			FROM (SELECT greatest(0, extract(epoch FROM processed_at - created_at))::float8 AS took, state, available_at, processed_at
				FROM `+table(t.Schema, "outbox_events")+` ORDER BY id DESC LIMIT $1) AS e
			WHERE state = 'done' AND available_at IS NULL AND processed_at > now() - interval '1 minute'`, latencyOf).Scan(&median, &p99)
	}

	if err != nil {
		return latency{}, fmt.Errorf("read the latency: %w", err)
	}

	if median == nil || p99 == nil {
		return latency{math.NaN(), math.NaN()}, nil
	}
	return latency{*median, *p99}, nil
}

// alive returns the state of the tables, and the relays that are alive: see store.ReadLive.
func (t *tables) alive(ctx context.Context) (state outboxsql.State, relays []store.RelaySession, err error) {
	err = t.Pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		state, err = outboxsql.ReadState(ctx, conn, t.Schema)
		if err != nil {
			return err
		}

		relays, err = store.ReadLive(ctx, conn, t.Schema, state.Mode)
		return err
	})
	return state, relays, err
}

// explain returns the cure of an error of the database. The text of the error
// goes only to the log: it may hold names of hosts, for example.
func explain(err error) failure {
	refused, isPg := errors.AsType[*pgconn.PgError](err)
	isMissing := isPg && slices.Contains([]string{"42P01", "3F000", "42703"}, refused.Code)

	switch {
	case errors.Is(err, ops.ErrNoEvent):
		return failure{http.StatusNotFound, "There is no such event. It may have been delivered and deleted."}
	case errors.Is(err, ops.ErrInvalid):
		return failure{http.StatusBadRequest, "Invalid request: " + strings.TrimSpace(err.Error()) + "."}
	case errors.Is(err, ops.ErrNotDead), errors.Is(err, ops.ErrNotWaiting):
		return failure{http.StatusConflict, "Not done: " + strings.TrimSpace(err.Error()) + "."}
	case errors.Is(err, ops.ErrNoPosition), errors.Is(err, ops.ErrNoReplay), errors.Is(err, ops.ErrQueue):
		return failure{http.StatusNotFound, "Not found: " + strings.TrimSpace(err.Error()) + "."}
	case errors.Is(err, ops.ErrNothingToReplay), errors.Is(err, ops.ErrReplayRunning):
		return failure{http.StatusConflict, "Not done: " + strings.TrimSpace(err.Error()) + "."}
	case errors.Is(err, ops.ErrChanging):
		return failure{http.StatusServiceUnavailable, "The mode of the table is being changed. " +
			"Until that has ended, its rows do not say what is delivered."}
	case errors.Is(err, outboxsql.ErrNotMigrated), isMissing:
		return failure{http.StatusServiceUnavailable, "The tables are missing or of an older version: run notifyd migrate."}
	case isPg && refused.Code == "57014":
		text := fmt.Sprintf("The database took longer than %v. Ask for less, or try again.", statementTimeout)
		return failure{http.StatusServiceUnavailable, text}
	case store.IsHidden(err):
		return failure{http.StatusServiceUnavailable, "Row level security hides rows of the tables from the role of the relay: " +
			"see notifyd doctor."}
	case isPg && refused.Code == "42501":
		return failure{http.StatusServiceUnavailable, "The role of the relay may not do this: see notifyd migrate --print-grants."}
	case isPg:
		return failure{http.StatusInternalServerError, "The database refuses (" + refused.Code + "). The log of notifyd says more."}
	default:
		return failure{http.StatusServiceUnavailable, "The database does not answer. The log of notifyd says more."}
	}
}
