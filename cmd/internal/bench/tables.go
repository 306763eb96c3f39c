package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// eventType is the type of all events of a bench.
const eventType = "bench.event"

// payloadBytes is the default size of a payload.
const payloadBytes = 256

// freshColumns are the columns of an event that a relay reads in its claims.
const freshColumns = `SELECT id, event_type, aggregate_type, aggregate_id, payload, headers, created_at,
	(extract(epoch FROM available_at - clock_timestamp()) * 1000000)::bigint, traceparent FROM outbox_events WHERE state = 'fresh'`

// insertSQL inserts one event; $1 is the payload.
func insertSQL(schema string) string {
	return "INSERT INTO " + table(schema) + " (event_type, payload) VALUES ('" + eventType + "', $1)"
}

// in returns the quoted name of a table or index in a schema.
func in(schema, name string) string { return pgx.Identifier{schema, name}.Sanitize() }

// table returns the quoted name of a schema's table of events.
func table(schema string) string { return in(schema, "outbox_events") }

// deliveries returns the quoted name of a schema's table of stored deliveries.
func deliveries(schema string) string { return in(schema, "outbox_deliveries") }

// payload returns a JSON string of n bytes that PostgreSQL cannot compress.
func payload(n int) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
	text := make([]byte, max(n, 2))
	for i := range text {
		text[i] = digits[rand.IntN(len(digits))] //nolint:gosec // filling
	}
	text[0] = '"'
	text[len(text)-1] = '"'
	return string(text)
}

// drained waits until all events of the schema are settled, at most settleWithin.
func (e *Env) drained(ctx context.Context, schema string, mode outboxsql.Mode) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleWithin, fmt.Errorf("events were left after %v", settleWithin))
	defer cancel()
	for {
		left, err := e.unsettled(ctx, schema, mode)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil || left == 0:
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// Mode of the tables of a bench; "" is a queue.
type Mode string

// The modes. ModeBoth measures a queue and a stream in turns, in one run.
const (
	ModeQueue  = Mode(outboxsql.ModeQueue)
	ModeStream = Mode(outboxsql.ModeStream)
	ModeBoth   = Mode("both")
)

// tables returns the modes to measure, one after the other.
func (m Mode) tables() []outboxsql.Mode {
	switch m {
	case ModeBoth:
		return []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream}
	case ModeStream:
		return []outboxsql.Mode{outboxsql.ModeStream}
	default:
		return []outboxsql.Mode{outboxsql.ModeQueue}
	}
}

// makeStream converts the tables of a schema into a stream whose destinations begin after the id origin. The tables have
// no other events yet.
func (e *Env) makeStream(ctx context.Context, schema string, origin int) error {
	err := e.Pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		return outboxsql.SetMode(ctx, c.Conn(), schema, outboxsql.ModeStream, outboxsql.ModeOptions{})
	})
	if err != nil || origin == 0 {
		return err
	}
	if _, err := e.Pool.Exec(ctx, "UPDATE "+in(schema, "outbox_mode")+" SET origin_head = $1", origin); err != nil {
		return fmt.Errorf("begin behind event %d: %w", origin, err)
	}
	return nil
}

// unsettled counts the events that a relay has yet to settle. Route patterns of a bench are event types, or an asterisk.
// After its last event, a shard need not have read the events of other shards.
func (e *Env) unsettled(ctx context.Context, schema string, mode outboxsql.Mode) (n int64, err error) {
	query := "SELECT count(*) FROM " + table(schema) + " WHERE state = 'fresh'"
	if mode == outboxsql.ModeStream {
		const columns = "id, event_type, aggregate_type, aggregate_id"
		query = fmt.Sprintf(`SELECT count(*) FROM %[2]s AS p CROSS JOIN LATERAL (
			SELECT `+columns+` FROM %[1]s WHERE id > p.head UNION ALL
			SELECT `+columns+` FROM unnest(p.open) AS o JOIN %[1]s ON id >= lower(o) AND id < upper(o)) AS e
			JOIN %[3]s AS r ON r.destination = p.destination AND r.since > 0 AND r.until_head IS NULL AND r.patterns && ARRAY['*', e.event_type]
			WHERE p.shards = 1 OR %[4]s %% p.shards = p.shard`,
			table(schema), in(schema, "outbox_positions"), in(schema, "outbox_routes"), pgschema.Hash("e."))
	}
	if err := e.Pool.QueryRow(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("count what is left: %w", err)
	}
	return n, nil
}

// deadRows returns the number of dead rows of a schema. PostgreSQL counts all of them only after the relay's sessions
// have ended.
func (e *Env) deadRows(ctx context.Context, schema string) (n int64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleWithin, errors.New("the relay's sessions have not ended"))
	defer cancel()
	for gone := false; !gone; {
		err := e.Pool.QueryRow(ctx, `SELECT coalesce(sum(n_dead_tup), 0)::bigint, NOT EXISTS (
				SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%' AND application_name <> $2)
			FROM pg_stat_user_tables, pg_sleep(0.02) WHERE schemaname = $1`, schema, benchName).Scan(&n, &gone)
		if err != nil {
			return 0, errors.Join(fmt.Errorf("count dead rows: %w", err), context.Cause(ctx))
		}
	}
	return n, nil
}

const (
	// heldSnapshot sees the present state of the tables: the first statement takes the snapshot.
	heldSnapshot = `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_snapshot()`
	// foreignWrite is a transaction with a transaction id, as if it had written.
	foreignWrite = `BEGIN; SELECT pg_current_xact_id()`
)

// transactions begins a transaction by each statement, on new connections. Closing a connection ends its transaction.
func (e *Env) transactions(ctx context.Context, begin ...string) (all writers, err error) {
	for _, statement := range begin {
		conn, err := e.session(ctx, statement)
		if err != nil {
			all.close(ctx)
			return nil, fmt.Errorf("hold a transaction: %w", err)
		}
		all = append(all, conn)
	}
	return all, nil
}

// session opens a connection, and executes a statement on it.
func (e *Env) session(ctx context.Context, statement string, args ...any) (*pgx.Conn, error) {
	conn, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, statement, args...); err != nil {
		store.Close(ctx, conn)
		return nil, err
	}
	return conn, nil
}
