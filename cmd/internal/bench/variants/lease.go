package variants

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
)

// leases takes events for a while by a time in their rows, in one short transaction, and deletes them in another. As with
// locked rows, an event may overtake another of its aggregate.
//
// available_after has no index: the query does not need one. A page has room for the second version of its rows. A lease
// therefore changes no index.
func leases() Way {
	return Way{
		Name:   "lease",
		About:  "two short transactions: UPDATE available_after ... RETURNING, produce, DELETE",
		Tables: `CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, key text NOT NULL, payload json NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), available_after timestamptz NOT NULL DEFAULT now()) WITH (fillfactor = 45, ` + vacuumSoon + `)`,
		Left:   `SELECT EXISTS (SELECT FROM outbox)`,
		New:    func(c Config) Worker { return &lease{Config: c} },
	}
}

type lease struct {
	Config
	messages []Message
	ids      []int64 // produced, and to be deleted
}

// Step implements Worker. The deletion of a batch and the lease of the next share one round trip and one commit.
func (w *lease) Step(ctx context.Context) (settled int, idle bool, err error) {
	if settled, err = w.next(ctx); err != nil {
		return 0, false, err
	}
	w.ids = idsOf(w.ids[:0], w.messages)
	if len(w.messages) == 0 {
		return settled, true, nil
	}
	return settled, false, w.Produce(ctx, w.messages)
}

// next deletes the produced events, and leases the next ones, in the order of ids.
func (w *lease) next(ctx context.Context) (settled int, err error) {
	var flight pgx.Batch
	if len(w.ids) > 0 {
		flight.Queue(`DELETE FROM outbox WHERE id = ANY($1)`, w.ids)
	}
	flight.Queue(`UPDATE outbox AS o SET available_after = now() + $2::interval
		FROM (SELECT id FROM outbox WHERE available_after <= now() ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) AS due
		WHERE o.id = due.id RETURNING o.id, o.topic, o.key, o.payload`, w.Batch, w.Lease)
	results := w.Conn.SendBatch(ctx, &flight)
	defer func() { err = errors.Join(err, results.Close()) }()
	if len(w.ids) > 0 {
		tag, err := results.Exec()
		if err != nil {
			return 0, err
		}
		settled = int(tag.RowsAffected())
	}
	if w.messages, err = take(results, w.messages[:0], nil); err != nil {
		return 0, err
	}
	slices.SortFunc(w.messages, func(a, b Message) int { return cmp.Compare(a.ID, b.ID) })
	return settled, nil
}
