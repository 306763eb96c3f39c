package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// orphansLooked bounds the stored deliveries whose events are looked for.
	orphansLooked = 100_000
	// orphansTimeout bounds the search for events, which reads the whole table.
	orphansTimeout = "10s"
	// sqlUndelivered is the condition of events of a queue that no relay ever looks at.
	sqlUndelivered = `state = 'deferred' AND NOT EXISTS (SELECT FROM %s AS d WHERE d.event_id = e.id)`
)

// orphans are rows whose counterpart is missing.
type orphans struct {
	N     int
	First *int64
}

// checkOrphans looks for stored deliveries without an event, and for events of a queue that wait for
// stored deliveries and have none.
func checkOrphans(ctx context.Context, e *exam) (string, []Finding, error) {
	var all []Finding
	o, err := row[orphans](ctx, e.conn, `SELECT count(*)::int, min(d.event_id)
		FROM (SELECT event_id FROM `+e.table("outbox_deliveries")+`
		ORDER BY event_id LIMIT $1) AS d
		WHERE NOT EXISTS (SELECT FROM `+e.table("outbox_events")+` AS e WHERE e.id = d.event_id)`, orphansLooked)
	if err != nil {
		return "", nil, err
	}

	if o.N > 0 {
		all = append(all, found(Warning, engine.MissingCure,
			"Stored deliveries whose events are missing from outbox_events, among the first %d: %d, the first one of "+
				"event %d.", orphansLooked, o.N, *o.First))
	}

	if e.mode == outboxsql.ModeStream {
		return "Every stored delivery has its event.", all, nil
	}

	parked, err := row[orphans](ctx, e.conn, `SELECT count(*)::int, min(d.event_id)
		FROM (SELECT event_id, state FROM `+e.table("outbox_deliveries")+`
		WHERE state IN ('retry', 'running', 'parked') ORDER BY event_id LIMIT $1) AS d WHERE state = 'parked'`, orphansLooked)
	if err != nil {
		return "", all, err
	}

	if parked.N > 0 {
		all = append(all, found(Error, "restart a relay: it makes them due",
			"Deliveries of a stream are parked in this queue, among the first %d: %d, the first one of event %d. A "+
				"relay that runs does not find them.", orphansLooked, parked.N, *parked.First))
	}

	events := e.table("outbox_events")
	condition := fmt.Sprintf(sqlUndelivered, e.table("outbox_deliveries"))
	err = pgx.BeginFunc(ctx, e.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = '`+orphansTimeout+`'`); err != nil {
			return err
		}
		o, err = row[orphans](ctx, tx.Conn(), `SELECT count(*)::int, min(e.id) FROM `+events+` AS e WHERE `+condition)
		return err
	})

	switch {
	case store.IsCanceled(err):
		return "", append(all, found(Note, "SELECT count(*) FROM "+events+" AS e WHERE "+condition,
			"outbox_events is too large to look within %s for deferred events without a stored delivery.", orphansTimeout)), nil
	case err != nil:
		return "", all, err
	case o.N > 0:
		set := "UPDATE " + events + " AS e SET "
		where := " WHERE " + condition
		all = append(all, found(Error, "to have them delivered, to all of their destinations: "+set+"state = 'fresh'"+where+
			"; to give them up: "+set+"state = 'done', processed_at = now()"+where,
			"Events that wait for stored deliveries and have none: %d, the first one is %d. No relay delivers them.", o.N, *o.First))
	}

	return "Every stored delivery has its event, and every deferred event a stored delivery.", all, nil
}
