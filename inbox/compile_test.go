package inbox_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/inbox"
)

// What Once takes, and what only creates and purges.
var (
	_ inbox.Tx[pgconn.CommandTag]     = pgx.Tx(nil)
	_ inbox.Tx[pgconn.CommandTag]     = (*pgxpool.Tx)(nil)
	_ inbox.SQLTx                     = (*sql.Tx)(nil)
	_ inbox.Execer[pgconn.CommandTag] = (*pgxpool.Pool)(nil)
	_ inbox.Execer[pgconn.CommandTag] = (*pgx.Conn)(nil)
	_ inbox.SQLExecer                 = (*sql.DB)(nil)
	_ inbox.SQLExecer                 = (*sql.Conn)(nil)
)

// TestOnlyTransactions: what would commit the note without the work is no Tx.
func TestOnlyTransactions(t *testing.T) {
	t.Parallel()
	for _, v := range []any{(*pgxpool.Pool)(nil), (*pgxpool.Conn)(nil), (*pgx.Conn)(nil)} {
		if _, ok := v.(inbox.Tx[pgconn.CommandTag]); ok {
			t.Errorf("%T is taken for a transaction", v)
		}
	}
	for _, v := range []any{(*sql.DB)(nil), (*sql.Conn)(nil)} {
		if _, ok := v.(inbox.SQLTx); ok {
			t.Errorf("%T is taken for a transaction", v)
		}
	}
}
