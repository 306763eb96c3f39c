package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

// totalName is the name of the one line of a destination that gets all events one after the other.
// No aggregate has it: their names have a slash.
const totalName = "*"

// order says which events of a unit are in one line. Only the goroutine of the unit uses it.
type order struct {
	keys    dispatch.Keys
	kept    bool         // events are in lines at all
	total   bool         // all events are in one line
	line    dispatch.Key // of that line
	scratch []byte       // to reuse
}

func newOrder(lane dispatch.Lane, keys dispatch.Keys) order {
	o := order{keys: keys, kept: lane.Ordered(), total: lane.Total()}
	if o.total {
		o.line = keys.Named(totalName)
	}
	return o
}

// of returns the key of an event's line, zero if it is in none.
func (o *order) of(e *delivery.Event) (key dispatch.Key) {
	switch {
	case !o.kept:
		return dispatch.Key{}
	case o.total:
		return o.line
	}
	key, o.scratch = o.keys.Of(o.scratch, e)
	return key
}

// name returns the name of an event's line, as it is stored.
func (o *order) name(e *delivery.Event) string {
	if o.total {
		return totalName
	}
	return dispatch.OrderingKey(e)
}

// leads reports whether a row that is due goes before all that its line has stored, and later,
// whether it must wait for its line: another row of it comes first. A row may be stored by another
// order, as one of the router is; it leads nothing in a total order.
func (o *order) leads(r *stored) (leads, waits bool) {
	switch {
	case !o.kept || r.key == "":
		return false, false
	case o.total:
		return r.key == totalName, r.key == totalName && !r.first && !r.orphan
	}
	return true, !r.first && r.event.Replay == 0 && !r.orphan
}

// feedHeld hands over, of what the lane has given back, the stored events of a line that is held.
// Now and then it looks at the line: a dead letter that was discarded leaves nothing that is due.
func (u *unit) feedHeld() bool {
	if i := slices.IndexFunc(u.gate.flight.again, func(d dispatch.Delivery) bool { return d.Leads }); i >= 0 {
		d := u.gate.flight.again[i]
		if u.gate.grant(1) == 0 {
			return false
		}
		u.gate.flight.again = slices.Delete(u.gate.flight.again, i, i+1)
		p := u.gate.parcel()
		u.gate.deliver(p, append(p.Room(1), d), nil, 1)
		return true
	}
	if time.Now().Before(u.shelf.lineAt) || u.lane.Busy(u.order.line) {
		return false
	}
	u.collect() // nothing is in flight, so that these are the last answers
	if !u.shelf.pending.empty() {
		return false // the line is not yet stored
	}
	u.shelf.lineAt = time.Now().Add(u.e.limits.PollInterval)
	u.shelf.continueLine(u.order.line, totalName)
	return true
}

const (
	// rekeyPage is how many rows one transaction puts into other lines.
	rekeyPage = 5000
	// sqlMisplaced reads rows that another order has stored, with their aggregates.
	sqlMisplaced = `SELECT d.event_id, coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, '')
FROM (SELECT event_id FROM outbox_deliveries WHERE destination = $1 AND %s LIMIT $2) AS d
LEFT JOIN outbox_events AS e ON e.id = d.event_id`
	// sqlRekey puts rows into their lines. What is in none waits for nothing.
	sqlRekey = `UPDATE outbox_deliveries AS d SET ordering_key = nullif(p.key, ''), updated_at = now(),
	state = CASE WHEN d.state = 'parked' AND p.key = '' THEN 'retry' ELSE d.state END,
	available_at = CASE WHEN d.state = 'parked' AND p.key = '' THEN now() ELSE d.available_at END
FROM unnest($2::bigint[], $3::text[]) AS p(event_id, key) WHERE d.destination = $1 AND d.event_id = p.event_id`
)

// misplaced are the conditions for rows that another order has stored, each for one range of an
// index.
func (o *order) misplaced() []string {
	if !o.total {
		return []string{`ordering_key = '*'`}
	}
	// A row without a key that was never tried is a delayed event, which is in no line until it is due.
	return []string{`ordering_key < '*'`, `ordering_key > '*'`, `ordering_key IS NULL AND state = 'retry' AND (attempts > 0 OR error_class IS NOT NULL)`}
}

// rekey puts the rows of the destination into the lines of its order: it may have had another one.
func (u *unit) rekey(ctx context.Context, conn *pgx.Conn) error {
	for _, where := range u.order.misplaced() {
		for n := rekeyPage; n == rekeyPage; {
			u.round.Begin()
			err := u.owned(ctx, conn, func(tx pgx.Tx) (err error) {
				n, err = u.rekeySome(ctx, tx, fmt.Sprintf(sqlMisplaced, where))
				return err
			})
			if err != nil {
				return fmt.Errorf("put the stored deliveries of %q into the lines of their order: %w", u.name, err)
			}
		}
	}
	return nil
}

func (u *unit) rekeySome(ctx context.Context, tx pgx.Tx, query string) (n int, err error) {
	rows, err := tx.Query(ctx, query, u.name, rekeyPage)
	if err != nil {
		return 0, err
	}
	var ids []int64
	var names []string
	var e delivery.Event
	_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.AggregateType, &e.AggregateID}, func() error {
		ids, names = append(ids, e.ID), append(names, u.order.name(&e))
		return nil
	})
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	_, err = tx.Exec(ctx, sqlRekey, u.name, ids, names)
	return len(ids), err
}

// sqlLine reads the first row of a line, and whether any is parked.
const sqlLine = `SELECT state = 'parked' OR EXISTS (SELECT FROM outbox_deliveries WHERE destination = $1 AND ordering_key = $2 AND state = 'parked'), state = 'parked'
FROM outbox_deliveries WHERE destination = $1 AND ordering_key = $2 AND (state IN ('retry', 'parked') OR $3 AND state = 'dead')
ORDER BY event_id LIMIT 1`

// loadLine holds the line of all events if anything is stored of it. A parked row may come from another order, and
// may have to wait for events that are open.
func (u *unit) loadLine(ctx context.Context, conn *pgx.Conn) error {
	var parked, first bool
	err := conn.QueryRow(ctx, sqlLine, u.name, totalName, u.lane.Blocks()).Scan(&parked, &first)
	switch {
	case isNoRows(err):
		return nil
	case err != nil:
		return fmt.Errorf("load the stored line of %q: %w", u.name, err)
	}
	u.lane.Block(u.order.line)
	if first {
		u.shelf.doubtful[u.order.line] = totalName
	}
	if parked && u.reader.Gaps().Len() > 0 {
		u.shelf.early = u.reader.Head()
	}
	return nil
}
