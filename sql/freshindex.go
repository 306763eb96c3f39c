package outboxsql

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
)

// freshIndex is the index by which a queue finds its events. A stream does not have it.
const freshIndex = "outbox_events_fresh"

// indexFresh creates the index concurrently, so no writer waits for it. PostgreSQL cannot create an index of a
// partitioned table concurrently. There indexFresh creates the parent index alone, creates the index of each partition
// concurrently, and attaches them.
func (m *modeChange) indexFresh(ctx context.Context) error {
	partitioned, err := pgschema.Partitioned(ctx, m.conn, m.schema)
	if err != nil {
		return err
	}

	if !partitioned {
		m.say("indexing waiting events concurrently: this waits for open transactions")
		return m.build(ctx, "outbox_events", freshIndex)
	}

	m.say("indexing waiting events, partition by partition, concurrently: this waits for open transactions")
	err = m.alone(ctx, `CREATE INDEX IF NOT EXISTS outbox_events_fresh ON ONLY outbox_events (id) WHERE state = 'fresh';`)
	if err != nil {
		return err
	}

	partitions, err := m.without(ctx)
	if err != nil {
		return err
	}

	for _, p := range partitions {
		name := p[:min(len(p), pgschema.MaxNameBytes)] + "_fresh"
		if err := m.build(ctx, p, name); err != nil {
			return err
		}
		if err := m.alone(ctx, `ALTER INDEX outbox_events_fresh ATTACH PARTITION `+m.table(name)); err != nil {
			return err
		}
	}

	partitions, err = m.without(ctx)
	if err == nil && len(partitions) > 0 {
		err = fmt.Errorf("partition %s was created meanwhile: repeat the command", partitions[0])
	}

	return err
}

// without returns the partitions whose events are not indexed.
func (m *modeChange) without(ctx context.Context) ([]string, error) {
	rows, err := m.conn.Query(ctx, `SELECT c.relname::text FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid
		WHERE h.inhparent = to_regclass($1) AND NOT EXISTS (SELECT FROM pg_inherits p JOIN pg_index i ON i.indexrelid = p.inhrelid
			WHERE p.inhparent = to_regclass($2) AND i.indrelid = c.oid)
		ORDER BY c.relname`, m.table("outbox_events"), m.table(freshIndex))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// build creates the index of one table, unless it exists. An interrupted call leaves an invalid
// index, which is rebuilt.
func (m *modeChange) build(ctx context.Context, table, name string) (err error) {
	var valid *bool
	err = m.conn.QueryRow(ctx, `SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)`, m.table(name)).Scan(&valid)
	switch {
	case err == nil && *valid:
		return nil
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return err
	}

	// CREATE INDEX CONCURRENTLY cannot run in a transaction, so the settings apply to the session. It
	// waits for transactions, and no session waits for it.
	_, err = m.conn.Exec(ctx, `SELECT set_config('statement_timeout', '0', false),
		set_config('lock_timeout', $1, false)`, strconv.FormatInt(m.lasts().Milliseconds(), 10))
	if err != nil {
		return err
	}
	defer func() {
		_, rerr := m.conn.Exec(context.WithoutCancel(ctx), `RESET statement_timeout; RESET lock_timeout`,
			pgx.QueryExecModeSimpleProtocol)
		err = errors.Join(err, rerr)
	}()

	if valid != nil {
		if _, err := m.conn.Exec(ctx, `DROP INDEX CONCURRENTLY `+m.table(name)); err != nil {
			return err
		}
	}

	_, err = m.conn.Exec(ctx, `CREATE INDEX CONCURRENTLY `+pgx.Identifier{name}.Sanitize()+`
		ON `+m.table(table)+` (id) WHERE state = 'fresh'`)
	return err
}
