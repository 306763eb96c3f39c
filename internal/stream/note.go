package stream

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

// handPoll is how often a destination checks whether it has been handed the events that had no
// route.
const handPoll = 50 * time.Millisecond

// handed reports whether the destination has been handed all events that had no route before it had
// one. Its first call stores the routes of the destination.
func (u *unit) handed(ctx context.Context, conn *session.Conn) (bool, error) {
	if !u.routed {
		if err := u.note(ctx, conn); err != nil {
			return false, fmt.Errorf("store the routes of %q: %w", u.name, err)
		}
		u.routed = true
	}
	var waiting bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox_routes WHERE destination = $1 AND since > 0 AND until_head IS NULL AND NOT handed)`, u.name).Scan(&waiting)
	if err != nil {
		return false, fmt.Errorf("find events that had no route: %w", err)
	}
	return !waiting, nil
}

// sqlFence makes the router start over with stored events: it has found the ones in its memory by
// routes that change now. A router that no relay has owned yet has none in memory. It returns the
// router's position.
const sqlFence = `UPDATE outbox_positions SET epoch = CASE epoch WHEN 0 THEN 0 ELSE epoch + 1 END WHERE destination = '' AND part = 0 RETURNING head, open::text`

// fence returns the ids that the router has seen, and makes it judge the rest by the routes that
// the transaction leaves. It comes before every statement on outbox_routes.
func fence(ctx context.Context, tx pgx.Tx) (seen tail.Watermark, err error) {
	var open string
	err = tx.QueryRow(ctx, sqlFence).Scan(&seen.Head, &open)
	switch {
	case isNoRows(err):
		return tail.Watermark{Head: math.MinInt64}, nil
	case err != nil:
		return seen, fmt.Errorf("fence the router: %w", err)
	}
	if seen.Open, err = tail.ParseRanges(open); err != nil {
		return seen, fmt.Errorf("fence the router: %w", err)
	}
	return seen, nil
}

// note stores the routes of the destination, if they have changed, and keeps those by which it
// still has to read.
func (u *unit) note(ctx context.Context, conn *session.Conn) error {
	wanted := u.e.wantedOf(u.name)
	changed := false
	err := u.owned(ctx, conn, func(tx pgx.Tx) error {
		all, err := readRoutes(ctx, tx, &u.name)
		if err != nil {
			return err
		}
		// The unit will read its open events itself, with the current routes.
		head, open := u.account(true)
		head, open = u.pos.Bound(head, open)
		at := tail.Watermark{Head: head, Open: open}
		newest := len(all) - 1
		var last *span
		if newest >= 0 && all[newest].since != expected {
			last = &all[newest]
		}
		changed = last == nil || !last.Routes.equal(&wanted.Routes)
		if changed && u.pos.Shards > 1 {
			return errLayout // they change for all shards together
		}
		if changed {
			if err := changeRoutes(ctx, tx, change{u.e.wanted, &wanted, last, u.former.Passed(at), at}); err != nil {
				return err
			}
			if all, err = readRoutes(ctx, tx, &u.name); err != nil {
				return err
			}
		}
		if last = &all[len(all)-1]; !last.from.Within(head, open) { // only of one that has, or had, several shards
			u.types.before = last.from
		}
		u.types.former = slices.DeleteFunc(all, func(s span) bool { return !s.ended || s.until.Within(head, open) })
		return noted(ctx, tx, u.name)
	})
	if err == nil && changed {
		return u.e.announce(ctx, conn)
	}
	return err
}

const (
	// sqlUntil ends a span at the position of the destination or the router: ids that either has
	// seen have these routes.
	sqlUntil = `UPDATE outbox_routes SET until_head = greatest($3::bigint, $5::bigint),
		until_open = ($4::text::int8multirange + int8multirange(int8range($3, greatest($3::bigint, $5::bigint), '(]')))
			* ($6::text::int8multirange + int8multirange(int8range($5, greatest($3::bigint, $5::bigint), '(]')))
		WHERE destination = $1 AND since = $2`

	// sqlSpan begins a span. If it brings no new events nothing has to be handed.
	sqlSpan = `INSERT INTO outbox_routes (destination, since, patterns, others, head, open, handed, drops)
		SELECT $1::text, 1 + coalesce((SELECT max(since) FROM outbox_routes WHERE destination = $1), 0), $2::text[], $3::text[], $4::bigint, $5::text::int8multirange, $6::boolean, $7::text[]`

	// sqlDrops adds settings to the spans before, if they may still hold for stored deliveries of these.
	sqlDrops = `UPDATE outbox_routes AS r SET drops = ARRAY(SELECT DISTINCT d FROM unnest(r.drops || $2::text[]) AS d ORDER BY d)
		WHERE r.destination = $1 AND r.since > 0 AND NOT r.drops @> $2::text[] AND (
			EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.destination = $1 AND d.state = 'retry')
			OR EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.destination = $1 AND d.ordering_key IS NOT NULL AND d.state IN ('retry', 'parked')))`
)

// change is a change of the routes of a destination.
type change struct {
	all  []Wanted       // that the relay wants to own
	to   *Wanted        // the destination
	last *span          // the span by which it has read; nil if there is none
	at   tail.Watermark // the ids that it has seen, or any of its shards
	// passed are the ids that it has seen, all of its shards. No span that ends above them is put aside.
	passed tail.Watermark
}

// changeRoutes ends the last span of a destination, if there is one, and begins another.
func changeRoutes(ctx context.Context, tx pgx.Tx, c change) error {
	w, last, at := c.to, c.last, c.at
	router, err := fence(ctx, tx)
	if err != nil {
		return err
	}
	if err := expect(ctx, tx, c.all); err != nil {
		return err
	}
	handed := false
	if last != nil {
		handed = last.handed && !w.gains(&last.Routes)
		if _, err := tx.Exec(ctx, sqlUntil, w.Destination, last.since, at.Head, at.Open.String(), router.Head, router.Open.String()); err != nil {
			return fmt.Errorf("end routes: %w", err)
		}
	}
	if err := dropSpans(ctx, tx, w.Destination, c.passed, router); err != nil {
		return err
	}
	patterns, others := w.lists()
	if _, err := tx.Exec(ctx, sqlSpan, w.Destination, patterns, others, at.Head, at.Open.String(), handed, append([]string{}, w.Drops...)); err != nil {
		return fmt.Errorf("begin routes: %w", err)
	}
	if len(w.Drops) > 0 && last != nil {
		if _, err := tx.Exec(ctx, sqlDrops, w.Destination, w.Drops); err != nil {
			return fmt.Errorf("begin routes: %w", err)
		}
	}
	return noted(ctx, tx, w.Destination)
}

// noted removes the routes expected of a destination: its owner has stored them.
func noted(ctx context.Context, tx pgx.Tx, destination string) error {
	if _, err := tx.Exec(ctx, `DELETE FROM outbox_routes WHERE destination = $1 AND since = 0`, destination); err != nil {
		return fmt.Errorf("forget expected routes: %w", err)
	}
	return nil
}

// firstRoutes begins the routes of a destination that is new, or was forgotten.
func firstRoutes(ctx context.Context, tx pgx.Tx, all []Wanted, w *Wanted, at tail.Watermark) error {
	if _, err := tx.Exec(ctx, `DELETE FROM outbox_routes WHERE destination = $1 AND since > 0`, w.Destination); err != nil {
		return fmt.Errorf("forget routes: %w", err)
	}
	return changeRoutes(ctx, tx, change{all: all, to: w, at: at, passed: at})
}

// sqlPast keeps a span for people, who ask what became of an event, and sqlTidy bounds what is kept: nothing about
// events that are gone, and 100 spans of a destination, the newest.
const (
	sqlPast = `UPDATE outbox_routes SET past = 'read' WHERE destination = $1 AND since = $2`
	sqlTidy = `DELETE FROM outbox_routes WHERE destination = $1 AND past IS NOT NULL AND (
		until_head < (SELECT id FROM outbox_events ORDER BY id LIMIT 1)
		OR since <= (SELECT since FROM outbox_routes WHERE destination = $1 AND past IS NOT NULL ORDER BY since DESC OFFSET 100 LIMIT 1))`
)

// dropSpans puts aside spans that have ended for both the destination and the router.
func dropSpans(ctx context.Context, tx pgx.Tx, destination string, at, router tail.Watermark) error {
	all, err := readRoutes(ctx, tx, &destination)
	if err != nil {
		return err
	}
	for i := range all {
		if s := &all[i]; s.ended && s.until.Within(at.Head, at.Open) && s.until.Within(router.Head, router.Open) {
			if _, err := tx.Exec(ctx, sqlPast, destination, s.since); err != nil {
				return fmt.Errorf("put routes aside: %w", err)
			}
		}
	}
	if _, err := tx.Exec(ctx, sqlTidy, destination); err != nil {
		return fmt.Errorf("forget routes: %w", err)
	}
	return nil
}

const (
	// sqlExpect stores routes of a destination that its owner has not stored yet: events that it
	// passes until then are kept for it. Storing other routes for it ends that.
	sqlExpect = `INSERT INTO outbox_routes (destination, since, patterns, others, head)
		SELECT $1::text, 0, $2::text[], $3::text[], 9223372036854775807 WHERE NOT EXISTS (` + sqlAsNoted + `)
		ON CONFLICT (destination, since) DO UPDATE SET patterns = excluded.patterns, others = excluded.others
		WHERE (outbox_routes.patterns, outbox_routes.others) IS DISTINCT FROM (excluded.patterns, excluded.others)`
	// sqlExpected removes expected routes that equal the stored ones.
	sqlExpected = `DELETE FROM outbox_routes WHERE destination = $1 AND since = 0 AND EXISTS (` + sqlAsNoted + `)`
	sqlAsNoted  = `SELECT FROM outbox_routes AS n WHERE n.destination = $1 AND n.since > 0 AND n.until_head IS NULL AND n.patterns = $2 AND n.others = $3`
)

// expect stores the routes of all destinations that have not stored theirs: events without a route
// are handed to all destinations that get them, so none comes too late.
func expect(ctx context.Context, tx pgx.Tx, all []Wanted) error {
	all = slices.SortedFunc(slices.Values(all), func(a, b Wanted) int { return cmp.Compare(a.Destination, b.Destination) })
	var batch pgx.Batch
	for i := range all {
		patterns, others := all[i].lists()
		batch.Queue(sqlExpect, all[i].Destination, patterns, others)
		batch.Queue(sqlExpected, all[i].Destination, patterns, others)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store the expected routes: %w", err)
	}
	return nil
}
