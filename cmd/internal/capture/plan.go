package capture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/sleep"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Request is what a person wants of a capture. Empty fields have defaults.
type Request struct {
	// Outbox is the schema of the outbox. Table is the table as SQL names it.
	Outbox, Table string
	// Operations are some of [Operations]; [DefaultOperations] by default. Types are their event types, in this order.
	Operations, Types []string
	// AggregateType is the name of the table by default. Key are the columns of a unique index, the primary key by default.
	AggregateType string
	Key           []string
	// Columns are the columns in the events, all by default; Exclude are those left out. One of both may be set.
	Columns, Exclude []string
}

// Plan is a capture that is not installed yet.
type Plan struct {
	Capture

	// SQL has the statements. They belong in one transaction.
	SQL string
	// Warnings are facts about the table that can make writes fail or events incomplete.
	Warnings []string
}

// lockTimeout is how long one attempt may make the writers of a table wait.
const lockTimeout = 200 * time.Millisecond

// Prepare returns the capture that a request asks for. It changes nothing. The error of a request that does not fit the
// table wraps [ErrInvalid].
func Prepare(ctx context.Context, db outboxsql.DB, request Request) (*Plan, error) {
	r, err := find(ctx, db, request.Table)
	if err != nil {
		return nil, err
	}

	if err := r.refuse(); err != nil {
		return nil, err
	}

	columns, err := all[column](ctx, db, sqlColumns, r.OID)
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", request.Table, err)
	}

	indexes, err := all[index](ctx, db, sqlIndexes, r.OID)
	if err != nil {
		return nil, fmt.Errorf("read the indexes of %s: %w", request.Table, err)
	}

	c := Capture{
		Outbox:        request.Outbox,
		Schema:        r.Schema,
		Table:         r.Table,
		AggregateType: cmp.Or(request.AggregateType, r.Table),
	}

	c.Types, err = typesOf(r.Table, request.Operations, request.Types)
	if err != nil {
		return nil, invalid{err}
	}

	c.Key, err = keyOf(c.Name(), columns, indexes, request.Key)
	if err != nil {
		return nil, err
	}

	c.Columns, c.Excluded, err = columnsOf(c.Name(), columns, c.Key, request.Columns, request.Exclude)
	if err != nil {
		return nil, err
	}

	if err := c.validate(); err != nil {
		return nil, invalid{err}
	}

	before, err := leftoversOf(ctx, db, &c, r.OID)
	if err != nil {
		return nil, err
	}

	p := &Plan{Capture: c, Warnings: warnings(c.Name(), r, columns)}
	p.SQL, err = script{&c}.statements(before)
	return p, err
}

// warnings returns what a person should know before the capture is installed.
func warnings(name string, r *relation, columns []column) (list []string) {
	for _, c := range columns {
		if c.JSON {
			list = append(list, fmt.Sprintf("column %q of %s has type json: a value that jsonb cannot hold, "+
				"such as \"\\u0000\", makes the write fail, also if the column is left out: change it to jsonb", c.Name, name))
		}
	}

	if r.Kind == "p" {
		list = append(list, name+" is partitioned: statements that name a partition write no event, unless the "+
			"partition is captured, too")
	}

	return list
}

const sqlUses = `SELECT t.tgname::text, n.nspname::text, p.proname::text, t.tgrelid = $3::oid,
	(SELECT count(*)::int FROM pg_trigger AS o WHERE o.tgfoid = t.tgfoid AND o.tgrelid <> t.tgrelid), tn.nspname::text, c.relname::text
	FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid JOIN pg_namespace AS n ON n.oid = p.pronamespace
	JOIN pg_class AS c ON c.oid = t.tgrelid JOIN pg_namespace AS tn ON tn.oid = c.relnamespace
	WHERE t.tgrelid = $3::oid AND t.tgname = ANY ($4::text[]) OR n.nspname = $1::text AND p.proname = $2::text ORDER BY t.tgname`

// use is a trigger of an earlier capture.
type use struct {
	Trigger          string
	FunctionSchema   string
	Function         string
	Here             bool // on the table of the new capture
	Elsewhere        int  // triggers of other tables with this function
	Schema, Relation string
}

// leftoversOf returns the parts of an earlier capture of the table that the new one has to drop. It refuses a function that
// serves another table: that one has lost its name to the table of the new capture.
func leftoversOf(ctx context.Context, db outboxsql.DB, c *Capture, oid uint32) (before leftovers, err error) {
	var triggers []string
	for _, operation := range Operations() {
		triggers = append(triggers, c.trigger(operation))
	}

	uses, err := all[use](ctx, db, sqlUses, c.Schema, c.function(), oid, triggers)
	if err != nil {
		return before, fmt.Errorf("look for an earlier capture of %s: %w", c.Name(), err)
	}

	for _, u := range uses {
		own := u.FunctionSchema == c.Schema && u.Function == c.function()
		if own && !u.Here {
			other := qualified(u.Schema, u.Relation)
			return before, fmt.Errorf("%s has the capture of a former table of this name: notifyd capture remove %s",
				other, shellWord(other))
		}

		name := (pgx.Identifier{u.FunctionSchema, u.Function}).Sanitize()
		isLeft := !own && u.Elsewhere == 0 && strings.HasPrefix(u.Function, functionPrefix)
		if isLeft && !slices.Contains(before.functions, name) {
			before.functions = append(before.functions, name)
		}

		isReplaced := slices.ContainsFunc(c.Operations(), func(operation string) bool {
			return c.trigger(operation) == u.Trigger
		})
		if u.Here && !isReplaced {
			before.triggers = append(before.triggers, u.Trigger)
		}
	}

	return before, nil
}

// Script returns the statements of a plan as a script for a tool that runs it in one transaction.
func (p *Plan) Script() string {
	return "-- Made by notifyd capture add. The owner of the table runs this in one transaction: psql --single-transaction.\n" +
		"-- If a lock is not granted in time, run it again: a longer wait would make all writers of the table wait as well.\n" +
		fmt.Sprintf("SET LOCAL lock_timeout = %d;\n", lockTimeout.Milliseconds()) + p.SQL
}

// Run executes statements in one transaction. A lock that it does not get within 200 ms makes it roll back, let writers
// pass, and try again, for as long as patience lasts.
func Run(ctx context.Context, db outboxsql.DB, statements string, patience time.Duration) error {
	const pause = 500 * time.Millisecond
	began := time.Now()

	for {
		err := pgx.BeginFunc(ctx, beginner{db}, func(tx pgx.Tx) error {
			settings := fmt.Sprintf("SET LOCAL client_min_messages = warning;\n"+
				"SET LOCAL statement_timeout = 0;\nSET LOCAL lock_timeout = %d;\n", lockTimeout.Milliseconds())
			_, err := tx.Exec(ctx, settings+statements, pgx.QueryExecModeSimpleProtocol)
			return err
		})

		if !refused(err) {
			return err
		}

		if waited := time.Since(began); waited > patience {
			return fmt.Errorf("%w: waited %v for a lock on the table: end the transactions that use it, and repeat the command",
				err, waited.Round(time.Second))
		}

		if !sleep.For(ctx, sleep.Spread(pause, 0.5)) {
			return fmt.Errorf("wait for a lock on the table: %w", context.Cause(ctx))
		}
	}
}

// beginner begins transactions with the default options.
type beginner struct{ outboxsql.DB }

// Begin implements the interface of [pgx.BeginFunc].
func (b beginner) Begin(ctx context.Context) (pgx.Tx, error) { return b.BeginTx(ctx, pgx.TxOptions{}) }

// refused reports whether a lock was not granted, a deadlock ended the transaction, or another session has just made the
// same function.
func refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}

	const lockNotAvailable, deadlock, concurrently, duplicate = "55P03", "40P01", "XX000", "23505"
	switch pg.Code {
	case lockNotAvailable, deadlock, duplicate:
		return true
	case concurrently:
		return strings.Contains(pg.Message, "concurrently")
	default:
		return false
	}
}
