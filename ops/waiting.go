package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/deliveries"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ErrNotWaiting is wrapped by the error about a delivery that does not wait for its next try.
var ErrNotWaiting = errors.New("it does not wait for a next try")

// RetryNow makes a waiting delivery due now, and notifies listening relays. It keeps the number of
// attempts. The error wraps [ErrNotWaiting] if the delivery is dead, parked, under way or done.
func (s *Client) RetryNow(ctx context.Context, r DeliveryRef, a Action) error {
	if err := a.validate(); err != nil {
		return err
	}
	if r.Destination == "" {
		return fmt.Errorf("%w: a delivery has a destination", ErrInvalid)
	}

	return s.write(ctx, fmt.Sprintf("retry event %d for %q now", r.EventID, r.Destination), func(tx pgx.Tx, _ time.Time) error {
		if _, err := s.holdMode(ctx, tx); err != nil {
			return err
		}

		var state string
		var d retryDetails

		// A relay that has it locked is delivering it: that is not waited for.
		err := tx.QueryRow(ctx, s.sql(`SELECT state, attempts, event_type,
			greatest(least(available_at, '9999-12-31 00:00+00'), '0001-01-01 00:00+00')
			FROM {deliveries} WHERE event_id = $1 AND destination = $2 FOR UPDATE NOWAIT`),
			r.EventID, r.Destination).Scan(&state, &d.Attempts, &d.Type, &d.NextTry)
		switch refused, isPg := errors.AsType[*pgconn.PgError](err); {
		case errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("no delivery of it is stored: %w", ErrNotWaiting)
		case isPg && refused.Code == lockNotAvailable:
			return fmt.Errorf("it is being delivered at this moment: %w", ErrNotWaiting)
		case err != nil:
			return err
		case state != "retry":
			return fmt.Errorf("its state is %s: %w", state, ErrNotWaiting)
		case a.DryRun:
			return nil
		}

		_, err = tx.Exec(ctx, s.sql(`UPDATE {deliveries} SET available_at = least(available_at, clock_timestamp())
			WHERE event_id = $1 AND destination = $2`), r.EventID, r.Destination)
		if err != nil {
			return err
		}

		d.Reason = a.Reason
		if err := s.record(ctx, tx, a, "retry", &r.EventID, r.Destination, d); err != nil {
			return err
		}

		return s.wake(ctx, tx, 1)
	})
}

// retryDetails are the audit's copy of a delivery that was made due.
type retryDetails struct {
	Reason   string    `json:"reason,omitempty"`
	Type     string    `json:"event_type"`
	Attempts int       `json:"attempts"`
	NextTry  time.Time `json:"next_try"`
}

// WaitingFilter chooses deliveries that wait for their next try, and match all its fields. Without Events or Deliveries
// it chooses only those that have failed: a delayed event keeps its time. The zero value is refused.
type WaitingFilter struct {
	// All chooses every waiting delivery that has failed. It cannot be combined with other fields.
	All bool
	// Destination is the name of one destination.
	Destination string
	// Type is an event type, a prefix such as order.*, or *.
	Type string
	// Events are the ids of the events, nil for any.
	Events []int64
	// Deliveries are the deliveries themselves, nil for any.
	Deliveries []DeliveryRef
}

// rows returns the same choice as a filter of stored deliveries.
func (f WaitingFilter) rows() DeadLetterFilter {
	return DeadLetterFilter{
		All: f.All, Destination: f.Destination, Type: f.Type, Events: f.Events, Letters: f.Deliveries,
		waiting: true,
	}
}

// Validate returns an error that wraps [ErrInvalid] for a filter that can choose nothing, or is misspelt.
func (f WaitingFilter) Validate() error { return f.rows().validateToAct() }

// RetryWaiting makes the waiting deliveries that f chooses due now, and notifies listening relays. Each keeps the number
// of its attempts. A delivery that a relay is delivering is left alone. Like ReplayDeadLetters, it ends, and may be
// interrupted.
func (s *Client) RetryWaiting(ctx context.Context, f WaitingFilter, a BulkAction) (BulkResult, error) {
	return s.act(ctx, f.rows(), a, letterDeed{"retry waiting deliveries", s.hurry, func(context.Context) error { return nil }})
}

// hurry makes locked deliveries due.
func (s *Client) hurry(ctx context.Context, tx pgx.Tx, w work) ([]DeadLetter, error) {
	if err := s.auditWaiting(ctx, tx, w, "retry"); err != nil {
		return nil, err
	}

	ids, names := refs(w.letters)
	_, err := tx.Exec(ctx, s.sql(`UPDATE {deliveries} AS d SET available_at = least(d.available_at, clock_timestamp())
		FROM unnest($1::bigint[], $2::text[]) AS p(event_id, destination)
		WHERE d.event_id = p.event_id AND d.destination = p.destination`), ids, names)
	return w.letters, err
}

// BuryWaiting makes the waiting deliveries that f chooses dead letters, before their attempts are used up. Later events
// of their aggregates continue as behind any dead letter, and [Config.ReportTo] names the destinations that receive
// reports. Like ReplayDeadLetters, it ends, and may be interrupted.
//
// A delivery that a relay of a queue is delivering is left alone. An attempt of a stream that is in flight may still
// succeed: then the event is delivered, and the dead letter is gone.
func (s *Client) BuryWaiting(ctx context.Context, f WaitingFilter, a BulkAction) (BulkResult, error) {
	var behind aggregateLines
	bury := func(ctx context.Context, tx pgx.Tx, w work) (done []DeadLetter, err error) {
		done, behind, err = s.bury(ctx, tx, w)
		return done, err
	}
	goOn := func(ctx context.Context) error { return s.goOnAgain(ctx, behind) }

	return s.act(ctx, f.rows(), a, letterDeed{"bury waiting deliveries", bury, goOn})
}

// buriedUntried is the error of a dead letter that a person has made of a delivery without a failure.
const buriedUntried = "a person gave the delivery up before it had failed"

// bury makes locked deliveries dead letters. A dead letter that blocks its aggregate keeps later events waiting: the shard
// parks a row again that comes behind one.
func (s *Client) bury(ctx context.Context, tx pgx.Tx, w work) (done []DeadLetter, behind aggregateLines, err error) {
	if err := s.auditWaiting(ctx, tx, w, "bury"); err != nil {
		return nil, behind, err
	}

	ids, names := refs(w.letters)
	rows, err := tx.Query(ctx, s.sql(`UPDATE {deliveries} AS d SET state = 'dead', updated_at = clock_timestamp(),
			error_class = coalesce(d.error_class, 'event'), last_error = coalesce(d.last_error, $3)
		FROM unnest($1::bigint[], $2::text[]) AS p(event_id, destination)
		WHERE d.event_id = p.event_id AND d.destination = p.destination
			RETURNING d.destination, coalesce(d.ordering_key, '')`), ids, names, buriedUntried)
	if err != nil {
		return nil, behind, err
	}

	behind, err = collectLines(rows)
	if err != nil {
		return nil, behind, err
	}

	behind.passDead = true
	if err := s.report(ctx, tx, w.letters); err != nil {
		return nil, behind, err
	}
	if _, err := s.goOn(ctx, tx, behind); err != nil {
		return nil, behind, err
	}
	if w.mode != outboxsql.ModeStream {
		err = s.finish(ctx, tx, ids)
	}

	return w.letters, behind, err
}

// report writes the reports of new dead letters.
func (s *Client) report(ctx context.Context, tx pgx.Tx, letters []DeadLetter) error {
	if s.cfg.ReportTo == nil {
		return nil
	}

	var entries []deliveries.Entry
	for _, l := range letters {
		to := s.cfg.ReportTo(l.Destination)
		entries = append(entries, deliveries.Entry{Ref: deliveries.Ref{EventID: l.EventID, Destination: l.Destination}, ReportTo: to})
	}

	args := deliveries.ReportArgs(entries)
	if args == nil {
		return nil
	}

	_, err := tx.Exec(ctx, s.sql(strings.ReplaceAll(deliveries.SQLReport, "outbox_deliveries", "{deliveries}")), args...)
	return err
}

// auditWaiting records an action on waiting deliveries, with their state before the action.
func (s *Client) auditWaiting(ctx context.Context, tx pgx.Tx, w work, action string) error {
	ids, names := refs(w.letters)
	_, err := tx.Exec(ctx, s.sql(`INSERT INTO {audit} (actor, action, event_id, destination, details)
		SELECT coalesce(nullif($1::text, ''), session_user), $2, d.event_id, d.destination, jsonb_strip_nulls(jsonb_build_object(
			'reason', nullif($3::text, ''), 'event_type', d.event_type, 'attempts', d.attempts, 'next_try', `+clamped("d.available_at")+`,
			'error_class', d.error_class, 'error', d.last_error))
		FROM unnest($4::bigint[], $5::text[]) AS p(event_id, destination)
		JOIN {deliveries} AS d ON d.event_id = p.event_id AND d.destination = p.destination
		ORDER BY d.event_id, d.destination`), w.Actor, action, w.Reason, ids, names)

	return err
}
