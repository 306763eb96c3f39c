package inbox_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/inbox"
)

// The types that Once accepts, and those that can only create and purge.
var (
	_ inbox.Tx[pgconn.CommandTag]     = pgx.Tx(nil)
	_ inbox.Tx[pgconn.CommandTag]     = (*pgxpool.Tx)(nil)
	_ inbox.SQLTx                     = (*sql.Tx)(nil)
	_ inbox.Execer[pgconn.CommandTag] = (*pgxpool.Pool)(nil)
	_ inbox.Execer[pgconn.CommandTag] = (*pgx.Conn)(nil)
	_ inbox.SQLExecer                 = (*sql.DB)(nil)
	_ inbox.SQLExecer                 = (*sql.Conn)(nil)
)

// TestOnlyTransactions: a type that could commit the note without the work is not a Tx.
func TestOnlyTransactions(t *testing.T) {
	t.Parallel()
	for _, v := range []any{(*pgxpool.Pool)(nil), (*pgxpool.Conn)(nil), (*pgx.Conn)(nil)} {
		if _, ok := v.(inbox.Tx[pgconn.CommandTag]); ok {
			t.Errorf("%T is accepted as a transaction", v)
		}
	}
	for _, v := range []any{(*sql.DB)(nil), (*sql.Conn)(nil)} {
		if _, ok := v.(inbox.SQLTx); ok {
			t.Errorf("%T is accepted as a transaction", v)
		}
	}
}
