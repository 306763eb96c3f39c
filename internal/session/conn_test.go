package session_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/session"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// pooled returns a connection through a pooler in transaction mode, and another client of the same pooler.
func pooled(d *testdb.DB) (c *session.Conn, other *pgx.Conn) {
	d.Helper()
	through := testenv.PgBouncer(d, d.URL, "transaction")
	connect := func(mode pgx.QueryExecMode) *pgx.Conn {
		cfg, err := pgx.ParseConfig(through)
		if err != nil {
			d.Fatal(err)
		}
		cfg.DefaultQueryExecMode = mode
		session.Startup(cfg)
		conn, err := pgx.ConnectConfig(d.Context(), cfg)
		if err != nil {
			d.Fatal(err)
		}
		d.Cleanup(func() { _ = conn.Close(context.WithoutCancel(d.Context())) }) // the socket is closed either way
		return conn
	}
	settings := append(session.Settings(), [2]string{"search_path", `"public"`}, [2]string{"application_name", "shared"}, [2]string{"enable_seqscan", "off"}, [2]string{"no_such_setting", "x"})
	c, err := session.Shared(d.Context(), connect(pgx.QueryExecModeCacheDescribe), settings)
	if err != nil {
		d.Fatal(err)
	}
	return c, connect(pgx.QueryExecModeExec)
}

const sqlHas = `SELECT current_setting('enable_seqscan')`

// TestSharedSettings: each way to run a statement has the settings, and leaves none.
func TestSharedSettings(t *testing.T) {
	t.Parallel()
	d := testdb.New(t, testdb.Tables{})
	c, other := pooled(d)
	d.Exec(`CREATE TABLE t (n int)`)
	ctx := t.Context()
	ways := map[string]func() (string, error){
		"row": func() (got string, err error) {
			err = c.QueryRow(ctx, sqlHas).Scan(&got)
			return got, err
		},
		"rows": func() (string, error) {
			rows, err := c.Query(ctx, sqlHas)
			if err != nil {
				return "", err
			}
			return pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
		},
		"batch": func() (got string, err error) {
			var b pgx.Batch
			b.Queue(sqlHas).QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
			b.Queue(`INSERT INTO t VALUES (1)`)
			return got, c.SendBatch(ctx, &b).Close()
		},
		"transaction": func() (got string, err error) {
			err = pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return tx.QueryRow(ctx, sqlHas).Scan(&got) })
			return got, err
		},
		"statement": func() (got string, err error) {
			if _, err := c.Exec(ctx, `INSERT INTO t SELECT 1 WHERE current_setting('enable_seqscan') = $1`, "off"); err != nil {
				return "", err
			}
			err = c.QueryRow(ctx, `SELECT 'off' FROM t LIMIT 1`).Scan(&got)
			return got, err
		},
		"raw": func() (got string, err error) {
			err = c.Raw(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ", "name", func(name string) error {
				result := c.PgConn().ExecParams(ctx, sqlHas+` || $1`, [][]byte{[]byte(name)}, nil, nil, nil).Read()
				if result.Err == nil {
					got = string(result.Rows[0][0])
				}
				return result.Err
			})
			return got, err
		},
	}
	for name, way := range ways {
		if got, err := way(); got != "off" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if c.PgConn().TxStatus() != 'I' {
			t.Errorf("%s leaves a transaction", name)
		}
		var left, application string
		if err := other.QueryRow(ctx, sqlHas+`, current_setting('application_name')`).Scan(&left, &application); err != nil || left != "on" || application == "shared" {
			t.Errorf("%s: the next client has %q and %q, %v", name, left, application, err)
		}
	}
}

// TestSharedEnds: a failed call is rolled back, and a successful one is committed, even if its rows are not read to the
// end.
func TestSharedEnds(t *testing.T) {
	t.Parallel()
	d := testdb.New(t, testdb.Tables{})
	c, _ := pooled(d)
	d.Exec(`CREATE TABLE t (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	ctx := t.Context()
	fails := map[string]func() error{
		"at the commit of a statement": func() error {
			_, err := c.Exec(ctx, `INSERT INTO t VALUES (1), (1)`)
			return err
		},
		"at the commit of a query": func() error {
			rows, err := c.Query(ctx, `INSERT INTO t VALUES (2), (2) RETURNING n`)
			if err != nil {
				return err
			}
			_, err = pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		},
		"at the commit of a row": func() error {
			var n int
			return c.QueryRow(ctx, `WITH i AS (INSERT INTO t VALUES (3), (3) RETURNING n) SELECT count(*) FROM i`).Scan(&n)
		},
		"at the commit of a batch": func() error {
			var b pgx.Batch
			b.Queue(`INSERT INTO t VALUES (4)`)
			b.Queue(`INSERT INTO t VALUES (4)`)
			return c.SendBatch(ctx, &b).Close()
		},
		"in a batch": func() error {
			var b pgx.Batch
			b.Queue(`INSERT INTO t VALUES (5)`)
			b.Queue(`SELECT 1 / 0`)
			return c.SendBatch(ctx, &b).Close()
		},
		"in a query": func() error {
			rows, err := c.Query(ctx, `SELECT 1 / (2 - n) FROM generate_series(1, 3) AS n`)
			if err != nil {
				return err
			}
			_, err = pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		},
	}
	for name, fail := range fails {
		if err := fail(); err == nil {
			t.Errorf("%s: no error", name)
		}
		if c.PgConn().TxStatus() != 'I' {
			t.Errorf("%s leaves a transaction", name)
		}
	}
	rows, err := c.Query(ctx, `INSERT INTO t VALUES (6), (7) RETURNING n`)
	if err != nil {
		t.Fatal(err)
	}
	if !rows.Next() {
		t.Fatal(rows.Err())
	}
	rows.Close()
	var n int
	if err := c.QueryRow(ctx, `INSERT INTO t SELECT 8 WHERE false RETURNING n`).Scan(&n); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("no row: %v", err)
	}
	if got := testdb.List[int](d, d.Conn, `SELECT n FROM t ORDER BY n`); !slices.Equal(got, []int{6, 7}) {
		t.Errorf("the table has %v", got)
	}
}

// TestSharedRequire: a check that fails ends each transaction before anything is written, and the read of one.
func TestSharedRequire(t *testing.T) {
	t.Parallel()
	d := testdb.New(t, testdb.Tables{})
	c, _ := pooled(d)
	d.Exec(`CREATE TABLE t (n int)`)
	ctx := t.Context()
	errMoved := errors.New("moved")
	c.Require(func(context.Context, session.Querier) error { return errMoved })
	var n int
	for name, err := range map[string]error{
		"statement": func() error { _, err := c.Exec(ctx, `INSERT INTO t VALUES (1)`); return err }(),
		"row":       c.QueryRow(ctx, `INSERT INTO t VALUES (1) RETURNING n`).Scan(&n),
		"rows": func() error {
			rows, err := c.Query(ctx, `INSERT INTO t VALUES (1)`)
			if err == nil {
				rows.Close()
			}
			return err
		}(),
		"batch": func() error {
			var b pgx.Batch
			b.Queue(`INSERT INTO t VALUES (1)`).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
			return c.SendBatch(ctx, &b).Close()
		}(),
		"raw": c.Raw(ctx, "", "", func(string) error { return nil }),
	} {
		if !errors.Is(err, errMoved) || c.PgConn().TxStatus() != 'I' {
			t.Errorf("%s: %v, and the transaction is %c", name, err, c.PgConn().TxStatus())
		}
	}
	if got := testdb.One[int](d, d.Conn, `SELECT count(*) FROM t`); got != 0 {
		t.Errorf("%d rows were written", got)
	}
}

// TestSharedEncoding: a database without an encoding gives its bytes as they are.
func TestSharedEncoding(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig(testenv.PgBouncer(t, testenv.DatabaseIn(t, "SQL_ASCII"), "transaction"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	session.Startup(cfg)
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // the socket is closed either way
	c, err := session.Shared(t.Context(), conn, session.Settings())
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := c.QueryRow(t.Context(), `SELECT current_setting('client_encoding')`).Scan(&got); err != nil || got != "SQL_ASCII" {
		t.Errorf("the encoding is %q, %v", got, err)
	}
}
