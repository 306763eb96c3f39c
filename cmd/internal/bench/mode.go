package bench

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

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
