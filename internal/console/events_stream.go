package console

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/deadletter"
)

// The row of an event of a stream does not hold its state. The event waits while
// a destination of its route has not reached it; then it has the state of its
// deliveries, and it is done without any.

// waits shows which destinations events of a stream wait for.
type waits struct {
	router Router
	mine   map[string]bool // destinations of this relay, whose routes are known
	others map[string]bool // destinations of relays with another configuration
}

// waits returns the current state. A position that no relay moves, of a
// destination that this relay does not have, makes no event wait.
func (c *Console) waits(ctx context.Context) waits {
	snap := c.sampler.now(ctx)
	w := waits{router: c.cfg.Router, mine: make(map[string]bool), others: make(map[string]bool)}
	for _, d := range snap.stats.Destinations {
		w.mine[d.Name] = true
	}
	for _, p := range snap.reading.backlog.Positions {
		w.others[p.Destination] = p.Session != nil && !w.mine[p.Destination]
	}
	return w
}

// of returns those of the names that an event of this type waits for.
func (w waits) of(eventType string, names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		if w.mine[name] && w.router != nil {
			return !slices.Contains(w.router.DestinationsOf(eventType), name)
		}
		return !w.mine[name] && !w.others[name]
	})
}

// judge sets the state of an event of a stream by the routes, which the database
// does not know. It does not change an event of a queue.
func (c *Console) judge(ctx context.Context, found *deadletter.Case) {
	if found.Event == nil || len(found.Event.WaitsFor) == 0 {
		return
	}
	states := make([]string, len(found.Deliveries))
	for i := range found.Deliveries {
		states[i] = found.Deliveries[i].State
	}
	found.Event.WaitsFor = c.waits(ctx).of(found.Event.Type, found.Event.WaitsFor)
	found.Event.State = deadletter.EventState(found.Event.WaitsFor, states)
}

// runStream is run for a stream. The database finds a few events too many,
// because it does not know the routes.
func (f search) runStream(ctx context.Context, tx pgx.Tx, schema string, who waits) (result findings, err error) {
	every := f
	every.State = ""
	text, args := every.sql(schema, `id, event_type, coalesce(aggregate_type, ''), coalesce(aggregate_id, ''), created_at, processed_at,
		ARRAY(SELECT DISTINCT p.destination FROM `+table(schema, "outbox_positions")+` AS p
			WHERE p.destination <> '' AND (e.id > p.head OR p.open @> e.id) ORDER BY 1) AS behind,
		ARRAY(SELECT d.state FROM `+table(schema, "outbox_deliveries")+` AS d WHERE d.event_id = e.id) AS stored`)
	where := "true"
	switch f.State {
	case "":
	case "waiting":
		where = "behind <> '{}'"
	case "done":
		where = "stored = '{}'"
	default:
		args = append(args, f.State)
		where = fmt.Sprintf("$%d = ANY(stored)", len(args))
	}
	found, err := tx.Query(ctx, fmt.Sprintf("SELECT * FROM (%s) AS s WHERE %s ORDER BY id DESC LIMIT %d", text, where, eventsShown), args...)
	if err != nil {
		return findings{}, err
	}
	var behind, stored []string
	n := 0
	result.rows, err = pgx.CollectRows(found, func(row pgx.CollectableRow) (r eventRow, err error) {
		behind, stored = nil, nil
		err = row.Scan(&r.ID, &r.Type, &r.AggregateType, &r.AggregateID, &r.CreatedAt, &r.ProcessedAt, &behind, &stored)
		r.State = deadletter.EventState(who.of(r.Type, behind), stored)
		n++
		result.lowest = r.ID
		return r, err
	})
	if err != nil {
		return findings{}, err
	}
	result.rows = slices.DeleteFunc(result.rows, func(r eventRow) bool { return f.State != "" && r.State != f.State })
	if result.full = n == eventsShown; result.full {
		result.ended = result.lowest == math.MinInt64
		return result, nil
	}
	err = search{Upto: f.Upto}.bounds(ctx, tx, schema, &result)
	return result, err
}
