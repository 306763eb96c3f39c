package ops

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// lockNotAvailable is the SQLSTATE of NOWAIT and of lock_timeout.
const lockNotAvailable = "55P03"

// EditEvent replaces the payload of a dead letter's event, byte for byte, and keeps the old payload in
// the audit. It delivers nothing: call ReplayDeadLetters for that. All destinations of an event have the same
// payload, so the error wraps [ErrNotDead] where the event is on its way to another one;
// destinations that have received it have the old payload. Of an event that was written as JSON, a payload
// that is not JSON is [ErrInvalid]. The content type stays. Of a payload that PostgreSQL cannot read, the audit has the error.
func (s *Client) EditEvent(ctx context.Context, eventID int64, payload []byte, a Action) error {
	if err := a.validate(); err != nil {
		return err
	}

	return s.write(ctx, fmt.Sprintf("edit event %d", eventID), func(tx pgx.Tx, _ time.Time) error {
		if err := s.lockDead(ctx, tx, eventID); err != nil {
			return err
		}

		var text *string
		var raw []byte
		var isText bool

		err := tx.QueryRow(ctx, s.sql(`SELECT payload IS NOT NULL FROM {events} WHERE id = $1 FOR UPDATE`), eventID).Scan(&isText)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("the event itself is gone, its dead letter can only be discarded: %w", ErrNoEvent)
		}
		if err != nil {
			return err
		}

		unreadable := ""
		err = s.readColumns(ctx, tx, eventID, []string{"payload::text", "payload_bytes"}, []any{&text, &raw})
		switch {
		case wire.IsUnreadable(err): // the audit has the reason in its place
			text = nil
			raw = nil
			unreadable = err.Error()
		case err != nil:
			return err
		}

		if isText && !json.Valid(payload) {
			return fmt.Errorf("%w: the payload is not JSON, and that of the event is", ErrInvalid)
		}
		if a.DryRun {
			return nil
		}

		if err := s.replace(ctx, tx, eventID, payload, isText); err != nil {
			return err
		}

		details, err := json.Marshal(struct {
			Reason     string `json:"reason,omitempty"`
			Unreadable string `json:"unreadable,omitempty"`
		}{a.Reason, unreadable})
		if err != nil {
			return err
		}

		_, err = tx.Exec(ctx, s.sql(`INSERT INTO {audit} (actor, action, event_id, details, old_payload, old_payload_bytes)
			VALUES (coalesce(nullif($1::text, ''), session_user), 'edit', $2, $3::text::jsonb, $4::text::json, $5)`),
			a.Actor, eventID, string(details), text, raw)
		return err
	})
}

// replace writes a payload into the column that holds the present one.
func (s *Client) replace(ctx context.Context, tx pgx.Tx, eventID int64, payload []byte, isText bool) error {
	if !isText {
		if payload == nil {
			payload = []byte{} // nil would be NULL
		}
		tag, err := tx.Exec(ctx, s.sql(`UPDATE {events} SET payload_bytes = $2 WHERE id = $1`), eventID, payload)
		return cmp.Or(err, session.CheckChanged("replace the payload", tag.RowsAffected(), 1))
	}

	tag, err := tx.Exec(ctx, s.sql(`UPDATE {events} SET payload = $2::text::json WHERE id = $1`), eventID, string(payload))
	return cmp.Or(err, session.CheckChanged("replace the payload", tag.RowsAffected(), 1))
}

// MayEdit reports whether the role of the session has the privilege that EditEvent needs. A relay's role usually lacks it.
func (s *Client) MayEdit(ctx context.Context) (may bool, err error) {
	err = s.read(ctx, "look for the privilege to edit payloads", func(tx pgx.Tx, _ time.Time) error {
		return tx.QueryRow(ctx, s.sql(`SELECT has_column_privilege(oid, 'payload', 'UPDATE')
			AND has_column_privilege(oid, 'payload_bytes', 'UPDATE')
			FROM pg_class WHERE oid = '{events}'::regclass`)).Scan(&may)
	})
	return may, err
}

// lockDead locks the deliveries of an event and makes sure that all of them are dead. It does not
// wait: a relay that has one of them locked is delivering it.
func (s *Client) lockDead(ctx context.Context, tx pgx.Tx, eventID int64) error {
	rows, err := tx.Query(ctx, s.sql(`SELECT destination, state FROM {deliveries} WHERE event_id = $1 ORDER BY destination
		FOR UPDATE NOWAIT`), eventID)
	if err != nil {
		return err
	}

	type delivery struct{ Destination, State string }

	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[delivery])
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == lockNotAvailable {
		return fmt.Errorf("a relay or another command is working on it at this moment, try again: %w", ErrNotDead)
	}
	if err != nil {
		return err
	}

	mode, err := s.mode(ctx, tx)
	if err != nil {
		return err
	}

	var open []string
	if mode == outboxsql.ModeStream {
		reading, err := s.inFlight(ctx, tx, eventID)
		if err != nil {
			return err
		}
		for _, name := range reading {
			open = append(open, fmt.Sprintf("%q", name))
		}
	}

	for _, d := range all {
		if d.State != "dead" {
			open = append(open, fmt.Sprintf("%q (%s)", d.Destination, d.State))
		}
	}

	switch {
	case len(open) > 0:
		return fmt.Errorf("it is on its way to %s, edit it when that has ended: %w", strings.Join(open, ", "), ErrNotDead)
	case len(all) == 0:
		return fmt.Errorf("no delivery of it is dead: %w", ErrNotDead)
	}

	return nil
}
