package variants

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// longTransaction locks the rows, produces and deletes in one transaction. Workers skip rows that others have locked, so
// an event may overtake another of its aggregate.
func longTransaction() Way {
	return Way{
		Name:   "long-tx",
		About:  "one transaction: SELECT ... FOR UPDATE SKIP LOCKED, produce, DELETE, COMMIT",
		Tables: `CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, key text NOT NULL, payload json NOT NULL, created_at timestamptz NOT NULL DEFAULT now()) WITH (` + vacuumSoon + `)`,
		Left:   `SELECT EXISTS (SELECT FROM outbox)`,
		New:    func(c Config) Worker { return &longTx{Config: c} },
	}
}

type longTx struct {
	Config
	messages []Message
	ids      []int64 // produced, and to be deleted in the open transaction
}

// Step implements Worker. The DELETE and COMMIT of a batch, and the BEGIN and SELECT of the next, share one round trip.
func (w *longTx) Step(ctx context.Context) (settled int, idle bool, err error) {
	var flight pgx.Batch
	if len(w.ids) > 0 {
		flight.Queue(`DELETE FROM outbox WHERE id = ANY($1)`, w.ids)
		flight.Queue(`COMMIT`)
	}
	flight.Queue(`BEGIN`)
	flight.Queue(`SELECT id, topic, key, payload FROM outbox ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`, w.Batch)
	if settled, err = w.fly(ctx, &flight); err != nil {
		return 0, false, err
	}
	if w.ids = idsOf(w.ids[:0], w.messages); len(w.ids) == 0 {
		_, err = w.Conn.Exec(ctx, `COMMIT`)
		return settled, true, err
	}
	return settled, false, w.Produce(ctx, w.messages)
}

// fly sends the statements, and reads the new messages.
func (w *longTx) fly(ctx context.Context, flight *pgx.Batch) (settled int, err error) {
	results := w.Conn.SendBatch(ctx, flight)
	defer func() { err = errors.Join(err, results.Close()) }()
	if len(w.ids) > 0 {
		tag, err := results.Exec()
		if err != nil {
			return 0, err
		}
		settled = int(tag.RowsAffected())
		if _, err := results.Exec(); err != nil { // COMMIT
			return 0, err
		}
	}
	if _, err := results.Exec(); err != nil { // BEGIN
		return 0, err
	}
	w.messages, err = take(results, w.messages[:0], nil)
	return settled, err
}
