package stream

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/session"
)

const (
	// rekeyPage is how many rows one transaction puts into other lines.
	rekeyPage = 5000
	// sqlMisplaced reads rows that another order has stored, with their aggregates.
	sqlMisplaced = `SELECT d.event_id, coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, '')
FROM (SELECT event_id FROM outbox_deliveries WHERE destination = $1 AND %s LIMIT $2) AS d
LEFT JOIN outbox_events AS e ON e.id = d.event_id`
	// sqlRekey puts rows into their lines. What is in none waits for nothing, and what gets into one and was
	// never tried waits there.
	sqlRekey = `UPDATE outbox_deliveries AS d SET ordering_key = nullif(p.key, ''), updated_at = now(),
	state = CASE WHEN d.state = 'parked' AND p.key = '' THEN 'retry'
		WHEN d.ordering_key IS NULL AND d.attempts = 0 AND d.error_class IS NULL THEN 'parked' ELSE d.state END,
	available_at = CASE WHEN d.state = 'parked' AND p.key = '' THEN now() ELSE d.available_at END
FROM unnest($2::bigint[], $3::text[]) AS p(event_id, key) WHERE d.destination = $1 AND d.event_id = p.event_id`
)

// rekey puts the rows of the destination into the lines of its order: it may have had another one.
func (l *loader) rekey(ctx context.Context, conn *session.Conn) error {
	for _, where := range l.order.misplaced() {
		for n := rekeyPage; n == rekeyPage; {
			err := l.write(ctx, conn, func(tx pgx.Tx) (err error) {
				n, err = l.rekeySome(ctx, tx, fmt.Sprintf(sqlMisplaced, where))
				return err
			})
			if err != nil {
				return fmt.Errorf("put the stored deliveries of %q into the lines of their order: %w", l.name, err)
			}
		}
	}
	return nil
}

func (l *loader) rekeySome(ctx context.Context, tx pgx.Tx, query string) (n int, err error) {
	rows, err := tx.Query(ctx, query, l.name, rekeyPage)
	if err != nil {
		return 0, err
	}
	var ids []int64
	var names []string
	var e delivery.Event
	_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.AggregateType, &e.AggregateID}, func() error {
		ids, names = append(ids, e.ID), append(names, l.order.name(&e))
		return nil
	})
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	_, err = tx.Exec(ctx, sqlRekey, l.name, ids, names)
	return len(ids), err
}
