package stream

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// handPoll is how often a destination looks whether it has been handed what had no route.
const handPoll = 50 * time.Millisecond

// handed reports whether the destination has been handed all that had no route before
// it had one. It notes the routes of the destination when it is first called.
func (u *unit) handed(ctx context.Context, conn *pgx.Conn) (bool, error) {
	if !u.routed {
		if err := u.note(ctx, conn); err != nil {
			return false, fmt.Errorf("note the routes of %q: %w", u.name, err)
		}
		u.routed = true
	}
	var waiting bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox_routes WHERE destination = $1 AND since > 0 AND until_head IS NULL AND NOT handed)`, u.name).Scan(&waiting)
	if err != nil {
		return false, fmt.Errorf("look for what had no route: %w", err)
	}
	return !waiting, nil
}

// sqlFence has the router begin anew with what is stored: what it has in memory it has
// judged by routes that change now. Of one that nobody has had yet nothing is in memory. It
// returns how far the router is.
const sqlFence = `UPDATE outbox_positions SET epoch = CASE epoch WHEN 0 THEN 0 ELSE epoch + 1 END WHERE destination = '' AND part = 0 RETURNING head, open::text`

// fence returns what the router has seen, and has it judge the rest by the routes that
// the transaction leaves. It comes before everything that touches outbox_routes.
func fence(ctx context.Context, tx pgx.Tx) (seen cut, err error) {
	var open string
	err = tx.QueryRow(ctx, sqlFence).Scan(&seen.head, &open)
	switch {
	case isNoRows(err):
		return cut{head: math.MinInt64}, nil
	case err != nil:
		return seen, fmt.Errorf("fence the router: %w", err)
	}
	if seen.open, err = ParseRanges(open); err != nil {
		return seen, fmt.Errorf("fence the router: %w", err)
	}
	return seen, nil
}

// note notes the routes of the destination, if they are others than before, and
// remembers those by which it has yet to read.
func (u *unit) note(ctx context.Context, conn *pgx.Conn) error {
	wanted := u.e.wantedOf(u.name)
	changed := false
	err := u.owned(ctx, conn, func(tx pgx.Tx) error {
		all, err := readRoutes(ctx, tx, &u.name)
		if err != nil {
			return err
		}
		// What is open for this unit it will read itself, with the routes of now.
		head, open := u.account(true)
		head, open = bound(head, open)
		at := cut{head, open}
		newest := len(all) - 1
		var last *span
		if newest >= 0 && all[newest].since != expected {
			last = &all[newest]
		}
		if changed = last == nil || !last.Routes.equal(&wanted.Routes); changed {
			if err := changeRoutes(ctx, tx, change{u.e.wanted, &wanted, last, at}); err != nil {
				return err
			}
			if all, err = readRoutes(ctx, tx, &u.name); err != nil {
				return err
			}
		}
		u.types.former = slices.DeleteFunc(all, func(s span) bool { return !s.ended || s.until.within(head, open) })
		return noted(ctx, tx, u.name)
	})
	if err == nil && changed {
		return u.e.announce(ctx, conn)
	}
	return err
}

const (
	// sqlUntil ends a span where the destination or the router is: what either has seen has
	// these routes.
	sqlUntil = `UPDATE outbox_routes SET until_head = greatest($3::bigint, $5::bigint),
		until_open = ($4::text::int8multirange + int8multirange(int8range($3, greatest($3::bigint, $5::bigint), '(]')))
			* ($6::text::int8multirange + int8multirange(int8range($5, greatest($3::bigint, $5::bigint), '(]')))
		WHERE destination = $1 AND since = $2`

	// sqlSpan begins one. Where it brings nothing new nothing has to be handed.
	sqlSpan = `INSERT INTO outbox_routes (destination, since, patterns, others, head, open, handed)
		SELECT $1::text, 1 + coalesce((SELECT max(since) FROM outbox_routes WHERE destination = $1), 0), $2::text[], $3::text[], $4::bigint, $5::text::int8multirange, $6::boolean`
)

// change is one of the routes of a destination.
type change struct {
	all  []Wanted // that the relay would own
	to   *Wanted  // the destination
	last *span    // by which it has read; nil if there is none
	at   cut      // what it has seen
}

// changeRoutes ends the last span of a destination, if it has any, and begins another one.
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
		if _, err := tx.Exec(ctx, sqlUntil, w.Destination, last.since, at.head, at.open.String(), router.head, router.open.String()); err != nil {
			return fmt.Errorf("end routes: %w", err)
		}
	}
	if err := dropSpans(ctx, tx, w.Destination, at, router); err != nil {
		return err
	}
	patterns, others := w.lists()
	if _, err := tx.Exec(ctx, sqlSpan, w.Destination, patterns, others, at.head, at.open.String(), handed); err != nil {
		return fmt.Errorf("begin routes: %w", err)
	}
	return noted(ctx, tx, w.Destination)
}

// noted ends what was expected of a destination: its owner has told its routes.
func noted(ctx context.Context, tx pgx.Tx, destination string) error {
	if _, err := tx.Exec(ctx, `DELETE FROM outbox_routes WHERE destination = $1 AND since = 0`, destination); err != nil {
		return fmt.Errorf("forget expected routes: %w", err)
	}
	return nil
}

// firstRoutes begins the routes of a destination that is new, or was forgotten.
func firstRoutes(ctx context.Context, tx pgx.Tx, all []Wanted, w *Wanted, at cut) error {
	if _, err := tx.Exec(ctx, `DELETE FROM outbox_routes WHERE destination = $1 AND since > 0`, w.Destination); err != nil {
		return fmt.Errorf("forget routes: %w", err)
	}
	return changeRoutes(ctx, tx, change{all: all, to: w, at: at})
}

// dropSpans deletes what has ended for the destination and for the router.
func dropSpans(ctx context.Context, tx pgx.Tx, destination string, at, router cut) error {
	all, err := readRoutes(ctx, tx, &destination)
	if err != nil {
		return err
	}
	for i := range all {
		if s := &all[i]; s.ended && s.until.within(at.head, at.open) && s.until.within(router.head, router.open) {
			if _, err := tx.Exec(ctx, `DELETE FROM outbox_routes WHERE destination = $1 AND since = $2`, destination, s.since); err != nil {
				return fmt.Errorf("forget routes: %w", err)
			}
		}
	}
	return nil
}

// gains reports whether there may be event types that the destination gets now and did
// not get by the routes before. The routes of any type are told by the most specific pattern of
// both that it matches, and by a name that matches no more than that.
func (r *Routes) gains(before *Routes) bool {
	const unheard = "\x00"
	for _, p := range slices.Concat(r.Patterns, r.Others, before.Patterns, before.Others) {
		name := p
		if prefix, is := strings.CutSuffix(p, "*"); is {
			name = prefix + unheard
		}
		if r.way(name) == here && before.way(name) != here {
			return true
		}
	}
	return false
}

const (
	// sqlExpect notes routes of a destination that its owner has yet to note: what it passes
	// over until then is kept for it. Who notes other routes for it ends that.
	sqlExpect = `INSERT INTO outbox_routes (destination, since, patterns, others, head)
		SELECT $1::text, 0, $2::text[], $3::text[], 9223372036854775807 WHERE NOT EXISTS (` + sqlAsNoted + `)
		ON CONFLICT (destination, since) DO UPDATE SET patterns = excluded.patterns, others = excluded.others
		WHERE (outbox_routes.patterns, outbox_routes.others) IS DISTINCT FROM (excluded.patterns, excluded.others)`
	// sqlExpected ends what others expected, if the routes are as they are noted.
	sqlExpected = `DELETE FROM outbox_routes WHERE destination = $1 AND since = 0 AND EXISTS (` + sqlAsNoted + `)`
	sqlAsNoted  = `SELECT FROM outbox_routes AS n WHERE n.destination = $1 AND n.since > 0 AND n.until_head IS NULL AND n.patterns = $2 AND n.others = $3`
)

// expect notes the routes of all destinations that have yet to note them: what had no
// route is handed to all who get it, so that none comes too late for it.
func expect(ctx context.Context, tx pgx.Tx, all []Wanted) error {
	all = slices.SortedFunc(slices.Values(all), func(a, b Wanted) int { return cmp.Compare(a.Destination, b.Destination) })
	var batch pgx.Batch
	for i := range all {
		patterns, others := all[i].lists()
		batch.Queue(sqlExpect, all[i].Destination, patterns, others)
		batch.Queue(sqlExpected, all[i].Destination, patterns, others)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("note which routes are to come: %w", err)
	}
	return nil
}
