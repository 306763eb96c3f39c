package variants

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// advisoryLock has one worker at a time. The worker holds an advisory lock, locks no rows, and stores the last id that it
// has delivered. If an event commits after an event with a higher id was delivered, it is never read.
func advisoryLock() Way {
	return Way{
		Name:  "advisory",
		About: "an advisory lock, one worker, the last id as its position; no row is locked or deleted",
		Most:  1,
		Tables: `CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, key text NOT NULL, payload json NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
			CREATE TABLE outbox_offset (last_id bigint NOT NULL);
			INSERT INTO outbox_offset VALUES (0)`,
		Left: `SELECT EXISTS (SELECT FROM outbox WHERE id > (SELECT last_id FROM outbox_offset))`,
		New:  func(c Config) Worker { return &advisory{Config: c} },
	}
}

// lockKey is the advisory lock of this way, and of serialized writers. The two never run on one database at once.
const lockKey = "7738151094537"

type advisory struct {
	Config
	locked   bool
	messages []Message // produced; the position is still to move past them
}

// Step implements Worker. The lock belongs to the session, so that it costs nothing per batch. The position of a batch
// and the read of the next share one round trip.
func (w *advisory) Step(ctx context.Context) (settled int, idle bool, err error) {
	if !w.locked {
		err := w.Conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(`+lockKey+`)`).Scan(&w.locked)
		if err != nil || !w.locked {
			return 0, true, err
		}
	}
	settled = len(w.messages)
	if err := w.next(ctx); err != nil {
		return 0, false, err
	}
	if len(w.messages) == 0 {
		return settled, true, nil
	}
	return settled, false, w.Produce(ctx, w.messages)
}

// next moves the position past the produced messages, and reads the next ones.
func (w *advisory) next(ctx context.Context) (err error) {
	var flight pgx.Batch
	passed := len(w.messages) > 0
	if passed {
		flight.Queue(`UPDATE outbox_offset SET last_id = $1`, w.messages[len(w.messages)-1].ID)
	}
	flight.Queue(`SELECT id, topic, key, payload FROM outbox WHERE id > (SELECT last_id FROM outbox_offset) ORDER BY id LIMIT $1`, w.Batch)
	results := w.Conn.SendBatch(ctx, &flight)
	defer func() { err = errors.Join(err, results.Close()) }()
	if passed {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	w.messages, err = take(results, w.messages[:0], nil)
	return err
}
