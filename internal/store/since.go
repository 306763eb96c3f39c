package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// FirstSince returns the id at which the events begin whose created_at is t or later. This is the id of the first
// such event, or a lower id without an event. Without such an event it is the next id to be assigned. FirstSince
// reads at most 64 events.
//
// The result is exact if created_at rises with the ids. created_at is when the writing transaction began: events of
// transactions that were open at t, or with another created_at from their writer, may lie on either side.
func FirstSince(ctx context.Context, db querier, t time.Time) (int64, error) {
	var low, high int64 // the result is low, high, or between them
	err := db.QueryRow(ctx, `SELECT coalesce((SELECT id FROM outbox_events ORDER BY id LIMIT 1), outbox_last_id() + 1),
		outbox_last_id() + 1`).Scan(&low, &high)
	for err == nil && low < high {
		middle := low + (high-low)/2
		var id int64
		var early bool

		err = db.QueryRow(ctx, `SELECT id, created_at < $2 FROM outbox_events WHERE id >= $1 ORDER BY id LIMIT 1`, middle, t).
			Scan(&id, &early)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			err = nil
			high = middle
		case early:
			low = id + 1
		default:
			high = middle
		}
	}

	if err != nil {
		return 0, fmt.Errorf("find the first event since %v: %w", t, err)
	}

	return low, nil
}
