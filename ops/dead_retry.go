package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
		err := tx.QueryRow(ctx, s.sql(`SELECT state, attempts, event_type, greatest(least(available_at, '9999-12-31 00:00+00'), '0001-01-01 00:00+00')
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
		if _, err := tx.Exec(ctx, s.sql(`UPDATE {deliveries} SET available_at = least(available_at, clock_timestamp()) WHERE event_id = $1 AND destination = $2`),
			r.EventID, r.Destination); err != nil {
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
