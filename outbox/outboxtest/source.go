// Package outboxtest is for the tests of applications that write events: it asserts which events a transaction
// has written, calls their handlers without a daemon, and waits until a relay has delivered everything.
//
// Events are read where they were written. [Pgx] reads through a transaction, a pool or a connection of pgx,
// [SQL] through one of database/sql. A source that reads through a transaction has the events that this
// transaction has written, savepoints included, and no others: tests that run at the same time on the same
// tables do not see each other's events. A test that rolls its transaction back reads through that
// transaction:
//
//	err := shop.PlaceOrder(ctx, tx, order)
//	...
//	outboxtest.Wrote(t, outboxtest.Pgx(tx), outboxtest.Type("order.created"), outboxtest.Aggregate("order", "1042"))
//
// A source that reads through a pool or a connection has all committed events of its schema. Call [Source.Now]
// before the test writes: the returned source has only events written afterwards. Tests that commit at the
// same time need a schema each ([Source.In]), or a database.
//
// Like package outbox, it imports no driver and nothing of the relay.
package outboxtest

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/outbox"
)

// Event is an event in the table.
type Event struct {
	// ID is the primary key of the row.
	ID int64
	// Type, AggregateType, AggregateID and IdempotencyKey are as written, and empty if not set.
	Type           string
	AggregateType  string
	AggregateID    string
	IdempotencyKey string
	// Payload holds the written bytes, unchanged: JSON, unless ContentType names another
	// media type.
	Payload []byte
	// ContentType is the media type of the payload, as relays give it to handlers.
	ContentType string
	// Headers are nil for an event without headers.
	Headers map[string]string
	// AvailableAt is zero for an event that is delivered at once.
	AvailableAt time.Time
	// CreatedAt is when the writing transaction began.
	CreatedAt time.Time
}

// Decode decodes the payload of an event, and ends the test if that fails.
func Decode[T any](tb testing.TB, e *Event) (payload T) {
	tb.Helper()
	if err := json.Unmarshal(e.Payload, &payload); err != nil {
		tb.Fatalf("outboxtest: payload of event %d (%s): %v", e.ID, e.Type, err)
	}
	return payload
}

// Rows are the rows of a query: pgx.Rows and *sql.Rows fit.
type Rows interface {
	Next() bool
	Scan(to ...any) error
	Err() error
}

// Querier is implemented by pgx.Tx, *pgxpool.Pool and *pgx.Conn. R is inferred at the call.
type Querier[R Rows] interface {
	Query(ctx context.Context, query string, args ...any) (R, error)
}

// SQLQuerier is implemented by *sql.Tx, *sql.DB and *sql.Conn.
type SQLQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Source reads events from the table in one schema, as one transaction or database sees it. It is a
// value; its methods return changed copies. It has nothing to close.
type Source struct {
	query  func(ctx context.Context, query string, args ...any) (Rows, error)
	schema string
	after  int64
	inTx   bool
}

// Pgx reads through a transaction, a pool or a connection of pgx, in the schema [outbox.DefaultSchema]. A type
// with the method Rollback of pgx.Tx is a transaction.
func Pgx[R Rows](q Querier[R]) Source {
	_, inTx := q.(interface {
		Rollback(ctx context.Context) error
	})
	return Source{schema: outbox.DefaultSchema, inTx: inTx, query: func(ctx context.Context, query string, args ...any) (Rows, error) {
		return q.Query(ctx, query, args...)
	}}
}

// SQL reads through a transaction, a pool or a connection of database/sql, with any driver for
// PostgreSQL, in the schema [outbox.DefaultSchema]. A type with the method Rollback of *sql.Tx is a transaction.
func SQL(q SQLQuerier) Source {
	_, inTx := q.(interface{ Rollback() error })
	return Source{schema: outbox.DefaultSchema, inTx: inTx, query: func(ctx context.Context, query string, args ...any) (Rows, error) {
		return q.QueryContext(ctx, query, args...) //nolint:rowserrcheck // each looks at it
	}}
}

// In returns the source of the tables in another schema.
func (s Source) In(schema string) Source {
	s.schema = schema
	return s
}

// Now returns the source of later events: those with ids above the highest visible one. Through a pool or a
// connection, events that other tests commit later are included.
func (s Source) Now(tb testing.TB) Source {
	tb.Helper()
	s.after = s.last(tb)
	return s
}

// Events returns the events in the order of their ids. An error of the database ends the test.
func (s Source) Events(tb testing.TB) []*Event {
	tb.Helper()

	var all []*Event
	err := s.each(tb.Context(), `SELECT id, event_type,
				coalesce(aggregate_type, ''), coalesce(aggregate_id, ''), coalesce(idempotency_key, ''),
				coalesce(payload::text, ''), payload_bytes,
				coalesce(content_type, CASE WHEN payload IS NULL THEN 'application/octet-stream' ELSE 'application/json' END),
				coalesce(headers::text, ''), coalesce(extract(epoch FROM available_at) * 1000000, 0)::bigint,
				(extract(epoch FROM created_at) * 1000000)::bigint
			FROM {schema}.outbox_events AS e WHERE id > $1 AND `+s.visible()+` ORDER BY id`, func(r Rows) error {
		var e Event
		var text, headers string
		var available, created int64
		err := r.Scan(&e.ID, &e.Type, &e.AggregateType, &e.AggregateID, &e.IdempotencyKey,
			&text, &e.Payload, &e.ContentType, &headers, &available, &created)
		if err != nil {
			return err
		}

		e.CreatedAt = time.UnixMicro(created).UTC()
		if e.Payload == nil {
			e.Payload = []byte(text)
		}
		if available != 0 {
			e.AvailableAt = time.UnixMicro(available).UTC()
		}

		all = append(all, &e)
		if headers == "" {
			return nil
		}
		return json.Unmarshal([]byte(headers), &e.Headers)
	})
	if err != nil {
		tb.Fatalf("outboxtest: read the events: %v", err)
	}
	return all
}

// visible returns the condition for the rows e that the source has.
func (s Source) visible() string {
	if s.inTx {
		return sqlOwn
	}
	return "true"
}

// sqlOwn is true for a row that the transaction has written. Transactions and savepoints draw their ids from one
// sequence: the row has the id of the transaction, or the later id of a savepoint. Rows of other transactions are
// visible only if they are committed, and have ids below the end of the snapshot. PostgreSQL may be asked how a
// transaction ended only for such ids. The modulus is needed because a row has only the low 32 bits of the id.
const sqlOwn = `(SELECT CASE
		WHEN m.top IS NULL OR m.later >= 2147483648 THEN false
		WHEN m.later = 0 OR m.top + m.later >= m.ends THEN true
		ELSE coalesce(pg_xact_status((m.top + m.later)::text::xid8) = 'in progress', false) END
	FROM (SELECT t.top, t.ends, (e.xmin::text::bigint - t.top) & 4294967295 AS later
		FROM (SELECT pg_current_xact_id_if_assigned()::text::bigint AS top,
				pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS ends) AS t) AS m)`

func (s Source) last(tb testing.TB) (id int64) {
	tb.Helper()
	query := `SELECT greatest(coalesce(max(id), 0), $1) FROM {schema}.outbox_events`
	err := s.each(tb.Context(), query, func(r Rows) error { return r.Scan(&id) })
	if err != nil {
		tb.Fatalf("outboxtest: read the highest id: %v", err)
	}
	return id
}

// each calls do for each row of a query, with the id after which events count as its one argument.
func (s Source) each(ctx context.Context, query string, do func(Rows) error) error {
	quoted := `"` + strings.ReplaceAll(s.schema, `"`, `""`) + `"`
	rows, err := s.query(ctx, strings.ReplaceAll(query, "{schema}", quoted), s.after)
	if err != nil {
		return err
	}
	defer release(rows)
	for rows.Next() {
		if err := do(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// undelivered names deliveries that are left of the events up to last, some of each kind.
func (s Source) undelivered(ctx context.Context, last int64) (waiting, dead []string, err error) {
	mode := ""
	queryMode := `SELECT mode FROM {schema}.outbox_mode WHERE $1::bigint IS NOT NULL`
	if err := s.each(ctx, queryMode, func(r Rows) error { return r.Scan(&mode) }); err != nil {
		return nil, nil, err
	}

	query := sqlQueue
	if mode == "stream" {
		query = sqlStream
	}
	query = strings.ReplaceAll(query+sqlRows, "{last}", fmt.Sprint(last))
	err = s.each(ctx, query, func(r Rows) error {
		var id int64
		var kind, destination, state, fault string
		if err := r.Scan(&id, &kind, &destination, &state, &fault); err != nil {
			return err
		}

		line := fmt.Sprintf("#%d %s", id, kind)
		if destination != "" {
			line += " to " + destination
		}
		line += ": " + state
		if fault != "" {
			line += ": " + shortened(fault)
		}

		if state == "dead" {
			dead = append(dead, line)
			return nil
		}
		waiting = append(waiting, line)
		return nil
	})
	return waiting, dead, err
}

// release closes rows that were not read to their end. Close of database/sql returns an
// error, which repeats the error of Err; Close of pgx returns nothing.
func release(rows Rows) {
	switch r := rows.(type) {
	case interface{ Close() }:
		r.Close()
	case io.Closer:
		r.Close() //nolint:errcheck,gosec // see above
	}
}

// String returns the name of an event in failures.
func (e *Event) String() string {
	text := fmt.Sprintf("#%d %s", e.ID, e.Type)
	if e.AggregateType != "" {
		text += " of " + e.AggregateType + "/" + e.AggregateID
	}
	if !utf8.Valid(e.Payload) || bytes.ContainsRune(e.Payload, 0) {
		return fmt.Sprintf("%s %s of %d bytes", text, e.ContentType, len(e.Payload))
	}
	return text + " " + shortened(string(e.Payload))
}

// longest is the longest payload that a failure shows, in bytes.
const longest = 200

func shortened(text string) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "..."
}
