package outbox

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// DefaultSchema is the schema that [Write] and [WriteSQL] write to.
const DefaultSchema = "public"

// Tx is a pgx transaction: pgx.Tx and *pgxpool.Tx fit. A pool or a bare
// connection does not, because it would write the event outside the transaction
// of its business change. R is inferred at the call; it keeps pgx out of this
// package's imports. Rollback is never called.
type Tx[R any] interface {
	Exec(ctx context.Context, query string, args ...any) (R, error)
	Rollback(ctx context.Context) error
}

// SQLTx is a transaction of database/sql: *sql.Tx, and types that embed it. A *sql.DB or
// *sql.Conn does not fit. Rollback is never called.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	Rollback() error
}

// Write inserts the events within tx, in one statement and in order. A commit of tx
// publishes the events, a rollback removes them.
//
// An event that cannot be stored is refused with an error that wraps [ErrInvalid] before
// anything is sent, so that tx stays usable. Errors of the database are wrapped once; they
// have aborted tx.
//
// With [Event.IgnoreDuplicate] an event whose key exists already is skipped: Write returns
// nil, tx stays usable, and no relay is woken for the event. Write reports neither the
// event that has the key nor the number of events written; [Statement] returns that
// number. If another transaction is inserting the key, Write waits for it to end: after a
// commit the event is skipped, after a rollback it is written. At repeatable read and
// above, that commit is an error, SQLSTATE 40001, like other conflicts: begin again. An
// event that collides with an id that was chosen by hand, or with a unique index of your
// own, is skipped as well.
func Write[R any](ctx context.Context, tx Tx[R], events ...Event) error {
	return WriteTo(ctx, tx, DefaultSchema, events...)
}

// WriteTo is [Write] for tables in another schema.
func WriteTo[R any](ctx context.Context, tx Tx[R], schema string, events ...Event) error {
	query, args, err := Statement(schema, events...)
	if err != nil || len(events) == 0 {
		return err
	}
	if _, err := tx.Exec(ctx, query, args...); err != nil {
		return insertError(len(events), err)
	}
	return nil
}

// WriteSQL is [Write] for transactions of database/sql, with any driver.
func WriteSQL(ctx context.Context, tx SQLTx, events ...Event) error {
	return WriteSQLTo(ctx, tx, DefaultSchema, events...)
}

// WriteSQLTo is [WriteSQL] for tables in another schema.
func WriteSQLTo(ctx context.Context, tx SQLTx, schema string, events ...Event) error {
	query, args, err := Statement(schema, events...)
	if err != nil || len(events) == 0 {
		return err
	}
	if _, err := tx.ExecContext(ctx, query, args...); err != nil {
		return insertError(len(events), err)
	}
	return nil
}

func insertError(n int, err error) error {
	return fmt.Errorf("insert %d outbox event(s): %w%s", n, err, cure(err))
}

// cure returns what to do about an error of PostgreSQL, by its code: drivers have the method SQLState.
func cure(err error) string {
	coded, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	if !ok {
		return ""
	}
	switch coded.SQLState() {
	case "42P01", "3F000": // undefined table, invalid schema name
		return ": the schema has no tables of notifyd: run notifyd migrate, or write to the schema that has them"
	case "42501": // insufficient privilege
		return ": the role may not write events: the owner of the tables grants it with notifyd migrate --grant-writer"
	case "25P02": // in failed sql transaction
		return ": an earlier statement of the transaction has failed: roll it back"
	case "25006": // read only sql transaction
		return ": the transaction or the server is read only: write to the primary"
	default:
		return ""
	}
}

// The columns of payloads: of JSON alone, and of any.
const (
	columnsJSON  = "payload"
	columnsBytes = "content_type, payload, payload_bytes"
)

// row is one event in the statement's argument. The fields are named after the
// columns.
type row struct {
	EventType      string            `json:"event_type"`
	AggregateType  string            `json:"aggregate_type,omitempty"`
	AggregateID    string            `json:"aggregate_id,omitempty"`
	IdempotencyKey string            `json:"idempotency_key,omitempty"`
	AvailableAt    string            `json:"available_at,omitempty"`
	Headers        map[string]string `json:"headers,omitempty"`
	ContentType    string            `json:"content_type,omitempty"`
}

// Statement returns the insert of the events as a query with $n placeholders and
// its arguments, for an ORM, a batch, or a driver that [Write] does not know. Run
// it inside the transaction of the business change. Errors wrap [ErrInvalid] and
// name every refused event.
//
// The query returns no rows, and a RETURNING may be appended to it. With
// [Event.IgnoreDuplicate] nothing may be appended: the query returns one row with
// the column written, a bigint, which is the number of events written, 0
// included. The driver then reports one affected row, because the query is a
// SELECT.
func Statement(schema string, events ...Event) (query string, args []any, err error) {
	if schema == "" || strings.ContainsRune(schema, 0) {
		return "", nil, fmt.Errorf("schema name %q is invalid: %w", schema, ErrInvalid)
	}

	rows := make([]row, len(events))
	payloads := make([]content, len(events))
	columns := columnsJSON
	var errs []error

	for i := range events {
		payloads[i], err = events[i].encode()
		if err != nil {
			errs = append(errs, fmt.Errorf("event %d: %w: %w", i, ErrInvalid, err))
		}
		rows[i] = toRow(&events[i])
		if events[i].ContentType != "" { // roles with older grants can still write JSON
			columns = columnsBytes
		}
	}

	errs = append(errs, sameChoice(events))
	if err := errors.Join(errs...); err != nil {
		return "", nil, err
	}

	ignore := len(events) > 0 && events[0].IgnoreDuplicate
	into := `INSERT INTO "` + strings.ReplaceAll(schema, `"`, `""`) + `".outbox_events ` +
		`(event_type, aggregate_type, aggregate_id, idempotency_key, available_at, headers, ` + columns + `) `

	one := "VALUES ("
	end := ")"
	chosen := ""
	if ignore {
		one = "SELECT "
		end = " FROM chosen WHERE chosen.choice = 'ignore'"
		chosen = "CROSS JOIN chosen WHERE chosen.choice = 'ignore' "
	}

	if len(events) == 1 {
		query, args, err = single(&rows[0], payloads[0], one, end)
	} else {
		query, args, err = several(rows, payloads, columns, chosen)
	}

	if ignore {
		return ignoring(into + query), args, err
	}
	return into + query, args, err
}

// sameChoice refuses a mix of events with and without IgnoreDuplicate: ON
// CONFLICT applies to a whole statement.
func sameChoice(events []Event) error {
	for i := range events {
		if events[i].IgnoreDuplicate != events[0].IgnoreDuplicate {
			return fmt.Errorf("event %d: %w: ignore duplicate is %t, but %t for event 0: write them with two calls",
				i, ErrInvalid, events[i].IgnoreDuplicate, events[0].IgnoreDuplicate)
		}
	}
	return nil
}

// ignoring makes the insert skip duplicates. On a plain table ON CONFLICT skips
// them. On a partitioned table the trigger that keeps the keys skips them,
// controlled by a setting. The statement restores the setting when all rows are
// written, so that later duplicates in the transaction are refused as before. The
// insert reads the new value from chosen, which reads the old one from before;
// the count reads all of the insert. RETURNING 1 needs no right to read the
// table.
func ignoring(insert string) string {
	return `WITH before AS MATERIALIZED (SELECT coalesce(pg_catalog.current_setting('notifyd.duplicate', true), '') AS choice), ` +
		`chosen AS MATERIALIZED (SELECT pg_catalog.set_config('notifyd.duplicate', 'ignore', true) AS choice ` +
		`FROM before WHERE before.choice IS NOT NULL), ` +
		`inserted AS (` + insert + ` ON CONFLICT DO NOTHING RETURNING 1) ` +
		`SELECT CASE WHEN pg_catalog.set_config('notifyd.duplicate', before.choice, true) IS NOT NULL THEN n.written END AS written ` +
		`FROM before CROSS JOIN (SELECT pg_catalog.count(*) AS written FROM inserted) AS n`
}

func toRow(e *Event) row {
	r := row{
		EventType: e.Type, AggregateType: e.AggregateType, AggregateID: e.AggregateID,
		IdempotencyKey: e.IdempotencyKey, Headers: e.Headers, ContentType: e.ContentType,
	}
	if !e.AvailableAt.IsZero() {
		r.AvailableAt = e.AvailableAt.UTC().Format(time.RFC3339Nano)
	}
	return r
}

// single is the common case, and the cheapest for the server. Every argument but
// bytes is text that the server casts: that works with any driver and protocol.
func single(r *row, payload content, one, end string) (string, []any, error) {
	const columns = `$1::text, $2::text, $3::text, $4::text, $5::text::timestamptz, $6::text::jsonb, `
	var headers any
	if len(r.Headers) > 0 {
		text, err := json.Marshal(r.Headers)
		if err != nil {
			return "", nil, fmt.Errorf("encode headers: %w", err)
		}
		headers = string(text)
	}

	args := []any{
		r.EventType,
		null(r.AggregateType),
		null(r.AggregateID),
		null(r.IdempotencyKey),
		null(r.AvailableAt),
		headers,
	}

	if r.ContentType == "" {
		return one + columns + `$7::text::json` + end, append(args, string(payload.text)), nil
	}

	var text, raw any
	switch {
	case payload.text != nil:
		text = string(payload.text)
	case payload.raw != nil:
		raw = payload.raw
	default:
		raw = []byte{} // nil would be NULL
	}

	return one + columns + `$7::text, $8::text::json, $9::bytea` + end, append(args, r.ContentType, text, raw), nil
}

// several passes any number of events in two arguments, three where some are not
// JSON, so that one text of the statement, and one plan, serves them all.
func several(rows []row, payloads []content, columns, chosen string) (string, []any, error) {
	list, err := json.Marshal(rows)
	if err != nil {
		return "", nil, fmt.Errorf("encode columns: %w", err)
	}

	args := []any{string(list), array(payloads)}
	typed := ""
	raw := ""
	if columns == columnsBytes {
		typed = ", content_type text"
		raw = ", $3::text::bytea[]"
		args = append(args, byteArray(payloads))
	}

	return `SELECT e.event_type, e.aggregate_type, e.aggregate_id, e.idempotency_key, e.available_at, e.headers, ` + columns + ` ` +
		`FROM ROWS FROM (json_to_recordset($1::text::json) AS (event_type text, aggregate_type text, aggregate_id text, ` +
		`idempotency_key text, available_at timestamptz, headers jsonb` + typed + `), unnest($2::text::json[]` + raw + `)) WITH ORDINALITY ` +
		`AS e(event_type, aggregate_type, aggregate_id, idempotency_key, available_at, headers, ` + columns + `, n) ` +
		chosen + `ORDER BY e.n`, args, nil
}

// byteArray returns the payloads that are not JSON as text of a bytea[].
func byteArray(payloads []content) string {
	size := 2
	for _, p := range payloads {
		size += 2*len(p.raw) + len(`"\\x",`)
	}

	list := make([]byte, 0, size)
	list = append(list, '{')
	for i, p := range payloads {
		if i > 0 {
			list = append(list, ',')
		}
		if p.text != nil {
			list = append(list, "NULL"...)
			continue
		}
		list = append(list, `"\\x`...)
		list = hex.AppendEncode(list, p.raw)
		list = append(list, '"')
	}

	return string(append(list, '}'))
}

// array returns the payloads as text of a json[]. A list in JSON would lose the
// white space around its elements, which must arrive byte for byte.
func array(payloads []content) string {
	size := 2
	for _, p := range payloads {
		size += len(p.text) + len(p.text)/4 + 5
	}

	list := make([]byte, 0, size)
	list = append(list, '{')
	for i, p := range payloads {
		if i > 0 {
			list = append(list, ',')
		}
		if p.text == nil {
			list = append(list, "NULL"...)
			continue
		}
		list = append(list, '"')
		for _, c := range p.text {
			if c == '"' || c == '\\' {
				list = append(list, '\\')
			}
			list = append(list, c)
		}
		list = append(list, '"')
	}

	return string(append(list, '}'))
}

func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}
