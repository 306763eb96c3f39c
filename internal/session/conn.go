package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Conn is a connection with the relay's settings. A direct connection to the server keeps its settings and its other
// session state. A shared connection leads through a pooler, which may run each transaction in another session of the
// server. So each transaction of a shared connection begins with the settings, and a statement outside a transaction
// becomes a transaction. LISTEN, session locks and prepared statements need a direct connection.
//
// Like a pgx.Conn, it is not safe for concurrent use. Its creator closes it.
type Conn struct {
	*pgx.Conn
	settings string // SET LOCAL statements; "" on a direct connection
	check    func(context.Context, Querier) error
}

// Querier is a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Direct returns a Conn for a direct connection that already has its settings.
func Direct(conn *pgx.Conn) *Conn { return &Conn{Conn: conn} }

// perClient reports whether a pooler tracks a setting for each client: see [Startup].
func perClient(name string) bool {
	tracked := []string{"client_encoding", "DateStyle", "TimeZone"}
	return slices.ContainsFunc(tracked, func(s string) bool { return strings.EqualFold(s, name) })
}

// Shared returns a Conn through a pooler in transaction mode, with settings for each transaction. The connection must
// have been opened with pgx.QueryExecModeCacheDescribe.
func Shared(ctx context.Context, conn *pgx.Conn, settings [][2]string) (*Conn, error) {
	names, values := split(settings)
	rows, err := conn.Query(ctx, sqlLocal, pgx.QueryExecModeExec, names, values)
	if err != nil {
		return nil, fmt.Errorf("prepare the session: %w", err)
	}

	var b strings.Builder
	b.WriteByte(';')
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		if !perClient(name) || value == asciiBytes {
			fmt.Fprintf(&b, " SET LOCAL %s = %s;", name, value)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("prepare the session: %w", err)
	}

	return &Conn{Conn: conn, settings: b.String()}, nil
}

// asciiBytes is the literal of client_encoding for a server without an encoding: see [Set].
const asciiBytes = `'SQL_ASCII'`

// sqlLocal returns the settings that the server knows, as literals. search_path is already a list of identifiers. A
// setting that only a superuser may set is omitted while it has the desired value.
const sqlLocal = `SELECT s.name, CASE WHEN s.name OPERATOR(pg_catalog.=) 'search_path' THEN s.value
		WHEN s.name OPERATOR(pg_catalog.=) 'client_encoding' AND pg_catalog.current_setting('server_encoding') OPERATOR(pg_catalog.=) 'SQL_ASCII'
		THEN pg_catalog.quote_literal('SQL_ASCII') ELSE pg_catalog.quote_literal(s.value) END
	FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[])) AS s(name, value)
	JOIN pg_catalog.pg_settings AS p ON p.name OPERATOR(pg_catalog.=) s.name
	WHERE p.context OPERATOR(pg_catalog.<>) 'superuser' OR pg_catalog.current_setting(s.name) OPERATOR(pg_catalog.<>) s.value`

// IsShared reports whether each transaction may run in another session of the server.
func (c *Conn) IsShared() bool { return c.settings != "" }

// Set changes a setting for all later statements. value is a literal.
func (c *Conn) Set(ctx context.Context, name, value string) error {
	if c.IsShared() {
		c.settings += fmt.Sprintf(" SET LOCAL %s = %s;", name, value)
		return nil
	}
	_, err := c.Conn.Exec(ctx, "SET "+name+" = "+value)
	return err
}

// Require makes each transaction of a shared connection begin with a check of the server, whose error ends the
// transaction. A direct connection is not checked: its user checks it once.
func (c *Conn) Require(check func(context.Context, Querier) error) { c.check = check }

// Begin begins a transaction.
func (c *Conn) Begin(ctx context.Context) (pgx.Tx, error) { return c.BeginTx(ctx, pgx.TxOptions{}) }

// BeginTx begins a transaction. A shared connection ignores all of o except the isolation level and the access mode.
func (c *Conn) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	if !c.IsShared() {
		return c.Conn.BeginTx(ctx, o)
	}

	begin := fmt.Sprintf("BEGIN ISOLATION LEVEL %s %s", cmp.Or(o.IsoLevel, pgx.ReadCommitted), cmp.Or(o.AccessMode, pgx.ReadWrite))

	tx, err := c.Conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin + c.settings})
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "0A000" { // feature_not_supported: write access on a standby
		return nil, fmt.Errorf("%s: %w", pg.Message, pgconn.ErrReadOnlyConnection)
	}
	if err != nil || c.check == nil {
		return tx, err
	}
	if err := c.check(ctx, tx); err != nil {
		return nil, errors.Join(err, tx.Rollback(ctx))
	}

	return tx, nil
}

// Exec runs a statement, in a transaction on a shared connection.
func (c *Conn) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if !c.IsShared() {
		return c.Conn.Exec(ctx, sql, args...)
	}

	err = pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		tag, err = tx.Exec(ctx, sql, args...)
		return err
	})

	return tag, err
}

// Query runs a query. On a shared connection the last row, or Close, ends a transaction.
func (c *Conn) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if !c.IsShared() {
		return c.Conn.Query(ctx, sql, args...)
	}

	tx, err := c.Begin(ctx)
	if err != nil {
		return nil, err
	}

	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, errors.Join(err, tx.Rollback(ctx))
	}

	return &sharedRows{Rows: rows, end: ending(ctx, tx)}, nil
}

// QueryRow runs a query for one row. On a shared connection Scan ends a transaction.
func (c *Conn) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if !c.IsShared() {
		return c.Conn.QueryRow(ctx, sql, args...)
	}

	tx, err := c.Begin(ctx)
	if err != nil {
		return failed{err}
	}

	return &sharedRow{row: tx.QueryRow(ctx, sql, args...), end: ending(ctx, tx)}
}

// SendBatch sends a batch. On a shared connection the batch is one transaction, which Close ends.
func (c *Conn) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if !c.IsShared() {
		return c.Conn.SendBatch(ctx, b)
	}

	tx, err := c.Begin(ctx)
	if err != nil {
		return &noResults{failed: failed{err}}
	}

	return &sharedResults{BatchResults: tx.SendBatch(ctx, b), end: ending(ctx, tx)}
}

// Raw runs f, which speaks the server's protocol, in a transaction that begins with the statement begin and is rolled
// back. On a direct connection an empty begin means no transaction. f receives a name for a prepared statement: name,
// or the unnamed statement on a shared connection.
func (c *Conn) Raw(ctx context.Context, begin, name string, f func(name string) error) (err error) {
	if c.IsShared() {
		begin = cmp.Or(begin, "BEGIN ISOLATION LEVEL READ COMMITTED") + c.settings
		name = ""
	}

	if begin == "" {
		return f(name)
	}
	defer func() {
		_, rerr := c.PgConn().Exec(ctx, "ROLLBACK").ReadAll()
		err = cmp.Or(err, rerr)
	}()

	if _, err := c.PgConn().Exec(ctx, begin).ReadAll(); err != nil {
		return err
	}
	if err := f(name); err != nil {
		return err
	}
	if !c.IsShared() || c.check == nil {
		return nil
	}

	return c.check(ctx, c.Conn) // last, because f may set the snapshot of the transaction
}

// ending returns a function that commits the transaction, or rolls it back after an error.
func ending(ctx context.Context, tx pgx.Tx) func(error) error {
	return func(err error) error {
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return errors.Join(err, tx.Rollback(ctx))
		}
		return errors.Join(err, tx.Commit(ctx))
	}
}

// sharedRows ends the transaction after the last row, before its user checks Err.
type sharedRows struct {
	pgx.Rows
	end func(error) error
	err error
}

func (r *sharedRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *sharedRows) Close() {
	r.Rows.Close()
	if r.end != nil {
		r.err = r.end(r.Rows.Err())
		r.end = nil
	}
}

func (r *sharedRows) Err() error { return cmp.Or(r.err, r.Rows.Err()) }

type sharedRow struct {
	row pgx.Row
	end func(error) error
}

func (r *sharedRow) Scan(dest ...any) error { return r.end(r.row.Scan(dest...)) }

type sharedResults struct {
	pgx.BatchResults
	end func(error) error
}

func (r *sharedResults) Close() error {
	err := r.BatchResults.Close()
	if r.end == nil {
		return err
	}

	end := r.end
	r.end = nil
	return end(err)
}

// failed is the row of a transaction that did not begin.
type failed struct{ err error }

func (f failed) Scan(...any) error { return f.err }

// noResults is the result of a batch whose transaction did not begin.
type noResults struct {
	pgx.BatchResults // nil: code that sees the error calls no other method
	failed
}

func (n *noResults) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, n.err }
func (n *noResults) Query() (pgx.Rows, error)         { return nil, n.err }
func (n *noResults) QueryRow() pgx.Row                { return n.failed }
func (n *noResults) Close() error                     { return n.err }
