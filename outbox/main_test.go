package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// database creates a database with the tables in the given schemas, and a pool.
func database(tb testing.TB, mode pgx.QueryExecMode, schemas ...string) *pgxpool.Pool {
	tb.Helper()
	pool := testdb.Pool(tb, testenv.Database(tb), func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode })
	for _, schema := range append(schemas, "public") {
		if _, err := outboxsql.Migrate(tb.Context(), pool, schema, outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto}); err != nil {
			tb.Fatal(err)
		}
	}
	return pool
}

// stored is a row of the table.
type stored struct {
	Type, AggregateType, AggregateID, Key, State string
	Payload, Headers                             string
	Available                                    string
}

// read returns the events in the order of their ids. All columns come as text, so
// that no decoding hides a difference.
func read(tb testing.TB, pool *pgxpool.Pool, schema string) []stored {
	tb.Helper()
	rows, err := pool.Query(context.WithoutCancel(tb.Context()), `SELECT event_type, coalesce(aggregate_type, '<null>'), coalesce(aggregate_id, '<null>'),
		coalesce(idempotency_key, '<null>'), state, payload::text, coalesce(headers::text, '<null>'),
		coalesce(to_char(available_at AT TIME ZONE 'UTC', 'FMYYYY-MM-DD"T"HH24:MI:SS.US'), '<null>')
		FROM `+pgx.Identifier{schema, "outbox_events"}.Sanitize()+` ORDER BY id`)
	if err != nil {
		tb.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stored])
	if err != nil {
		tb.Fatal(err)
	}
	return list
}
