package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/wire"
)

// ErrChanging is wrapped by the error about a table that is becoming a queue: until the change has ended, the rows do
// not show which events are delivered.
var ErrChanging = errors.New("the mode of the table is being changed: let `notifyd migrate --mode` finish, or repeat it")

// statementTimeout bounds each statement: even one that reads by index may take long behind a long
// run of dead index entries.
const statementTimeout = 10 * time.Second

// readEvents runs f in a transaction with one snapshot, also on a standby.
func (s *Client) readEvents(ctx context.Context, what string, f func(tx pgx.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err == nil {
		defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written
		// Each statement has one good plan, by index, whatever stale statistics say. A limit of the
		// caller's stays. Rows that a policy hides are an error.
		_, err = tx.Exec(ctx, `SELECT set_config('row_security', 'off', true), set_config('enable_seqscan', 'off', true),
			set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
			CASE current_setting('statement_timeout') WHEN '0' THEN set_config('statement_timeout', $1, true) END`,
			fmt.Sprintf("%dms", statementTimeout.Milliseconds()))
	}

	if err == nil {
		err = f(tx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}

	return nil
}

// Event returns the state of an event, without headers and payload. The error wraps [ErrNoEvent] if no table knows the
// event.
func (s *Client) Event(ctx context.Context, id int64) (e Event, err error) {
	err = s.readEvents(ctx, fmt.Sprintf("show event %d", id), func(tx pgx.Tx) error {
		e, err = s.ReadEvent(ctx, tx, id)
		return err
	})
	return e, err
}

// WholeEvent is Event with headers and payload.
func (s *Client) WholeEvent(ctx context.Context, id int64) (e Event, err error) {
	err = s.readEvents(ctx, fmt.Sprintf("show event %d", id), func(tx pgx.Tx) error {
		e, err = s.ReadWholeEvent(ctx, tx, id)
		return err
	})
	return e, err
}

// ReadEvent is Event in a transaction of the caller, which must have one snapshot (REPEATABLE READ).
func (s *Client) ReadEvent(ctx context.Context, tx pgx.Tx, id int64) (Event, error) {
	t, err := s.tablesNow(ctx, tx)
	if err != nil {
		return Event{}, err
	}

	found, err := s.byID(ctx, tx, []int64{id})
	if err != nil {
		return Event{}, err
	}
	if len(found) == 0 {
		found = []raw{{Event: Event{ID: id, Gone: true}}}
	}

	all, err := s.outcomes(ctx, tx, t, found)
	if err != nil {
		return Event{}, err
	}
	if e := all[0]; !e.Gone || e.known {
		return e, nil
	}

	return Event{}, ErrNoEvent
}

// ReadWholeEvent is ReadEvent with headers and payload.
func (s *Client) ReadWholeEvent(ctx context.Context, tx pgx.Tx, id int64) (Event, error) {
	e, err := s.ReadEvent(ctx, tx, id)
	if err != nil || e.Gone {
		return e, err
	}
	return e, s.readContent(ctx, tx, &e)
}

// readContent reads headers and payload, as text, because they are shown byte for byte. After a failure it reads each
// column alone, so that the readable ones are shown.
func (s *Client) readContent(ctx context.Context, tx pgx.Tx, e *Event) error {
	columns := []string{"headers::text", "payload::text", "payload_bytes", "coalesce(content_type, '')"}
	values := []any{(*[]byte)(&e.Headers), (*[]byte)(&e.Payload), &e.PayloadBytes, &e.ContentType}

	err := s.readColumns(ctx, tx, e.ID, columns, values)
	if !wire.IsUnreadable(err) {
		return err
	}

	e.Unreadable = make(map[string]string)
	for i, name := range []string{"headers", "payload", "payload_bytes", "content_type"} {
		err := s.readColumns(ctx, tx, e.ID, columns[i:i+1], values[i:i+1])
		switch {
		case wire.IsUnreadable(err):
			e.Unreadable[name] = err.Error()
		case err != nil:
			return err
		}
	}

	return nil
}

// readColumns reads columns of an event. After a failure the transaction is as before.
func (s *Client) readColumns(ctx context.Context, tx pgx.Tx, id int64, columns []string, values []any) error {
	return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, s.sql(`SELECT `+strings.Join(columns, ", ")+` FROM {events} WHERE id = $1`), id).Scan(values...)
	})
}
