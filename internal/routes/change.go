package routes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/session"
)

// sqlFence raises the scanner's epoch: events in its memory were found by routes that change now, and can no longer be
// written. A scanner that no relay has held yet has nothing in memory. The statement returns the scanner's position.
const sqlFence = `UPDATE outbox_positions SET epoch = CASE epoch WHEN 0 THEN 0 ELSE epoch + 1 END
	WHERE destination = '' AND shard = 0 RETURNING head, open::text`

// Fence returns the ids that the unrouted scanner has read, and makes the scanner use the new routes for all other ids.
// It comes before every statement on outbox_routes.
func Fence(ctx context.Context, tx pgx.Tx) (seen idset.Watermark, err error) {
	err = tx.QueryRow(ctx, sqlFence).Scan(&seen.Head, &seen.Open)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // there is no scanner yet
		return idset.Watermark{Head: math.MinInt64}, checkFence(ctx, tx)
	case err != nil:
		return seen, fmt.Errorf("fence the unrouted scanner: %w", err)
	}

	return seen, nil
}

// checkFence returns an error if there is a scanner: then a trigger or a rule has ignored its fence.
func checkFence(ctx context.Context, tx pgx.Tx) error {
	var scanners int64
	err := tx.QueryRow(ctx, `SELECT count(*) FROM outbox_positions WHERE destination = '' AND shard = 0`).Scan(&scanners)
	if err == nil {
		err = session.CheckChanged("fence", 0, scanners)
	}
	if err != nil {
		return fmt.Errorf("fence the unrouted scanner: %w", err)
	}

	return nil
}

// changeOne runs a statement that changes one row, which no other session can change meanwhile.
func changeOne(ctx context.Context, tx pgx.Tx, purpose, sql string, args ...any) error {
	tag, err := tx.Exec(ctx, sql, args...)
	if err == nil {
		err = session.CheckChanged("routes", tag.RowsAffected(), 1)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", purpose, err)
	}

	return nil
}

const (
	sqlUntil = `UPDATE outbox_routes SET until_head = $3, until_open = $4::text::int8multirange WHERE destination = $1 AND since = $2`

	// sqlRange begins a range. It is handed at once if it brings no new events.
	sqlRange = `INSERT INTO outbox_routes (destination, since, patterns, others, head, open, handed, drops)
		SELECT $1::text, 1 + coalesce((SELECT max(since) FROM outbox_routes WHERE destination = $1), 0),
			$2::text[], $3::text[], $4::bigint, $5::text::int8multirange, $6::boolean, $7::text[]`

	// sqlDrops adds settings to earlier ranges, if they may still apply to stored deliveries of these.
	sqlDrops = `UPDATE outbox_routes AS r SET drops = ARRAY(SELECT DISTINCT d FROM unnest(r.drops || $2::text[]) AS d ORDER BY d)
		WHERE r.destination = $1 AND r.since > 0 AND NOT r.drops @> $2::text[] AND (
			EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.destination = $1 AND d.state = 'retry')
			OR EXISTS (SELECT FROM outbox_deliveries AS d
				WHERE d.destination = $1 AND d.ordering_key IS NOT NULL AND d.state IN ('retry', 'parked')))`
)

// Change is a change of the routes of a destination.
type Change struct {
	// All are the destinations of the relay.
	All []Wanted
	// To are the new routes.
	To Wanted
	// Last is the range by which the destination has read: see [Newest].
	Last *Range
	// At has the ids that any shard of the destination has read.
	At idset.Watermark
	// Passed has the ids that all its shards have read. A range that ends above it stays in force.
	Passed idset.Watermark
}

// Store ends the last range of the destination, if there is one, and begins another. The transaction must hold the
// position of the destination.
func (c *Change) Store(ctx context.Context, tx pgx.Tx) error {
	w := &c.To
	last := c.Last
	at := c.At

	scanner, err := Fence(ctx, tx)
	if err != nil {
		return err
	}
	if err := expect(ctx, tx, c.All); err != nil {
		return err
	}

	handed := false
	if last != nil {
		handed = last.Handed && !w.Gains(&last.Routes)
		until := at.Or(scanner) // ids that either has seen have these routes
		err := changeOne(ctx, tx, "end routes", sqlUntil, w.Destination, last.since, until.Head, until.Open.String())
		if err != nil {
			return err
		}
	}

	if err := dropRanges(ctx, tx, w.Destination, c.Passed, scanner); err != nil {
		return err
	}

	patterns, others := w.lists()
	err = changeOne(ctx, tx, "begin routes", sqlRange, w.Destination, patterns, others, at.Head, at.Open.String(),
		handed, append([]string{}, w.Drops...))
	if err != nil {
		return err
	}

	if len(w.Drops) > 0 && last != nil {
		if _, err := tx.Exec(ctx, sqlDrops, w.Destination, w.Drops); err != nil {
			return fmt.Errorf("begin routes: %w", err)
		}
	}

	return Noted(ctx, tx, w.Destination)
}

// Noted removes the expected routes of a destination, after its owner has stored them.
func Noted(ctx context.Context, tx pgx.Tx, destination string) error {
	_, err := tx.Exec(ctx, `DELETE FROM outbox_routes WHERE destination = $1 AND since = 0`, destination)
	if err != nil {
		return fmt.Errorf("forget expected routes: %w", err)
	}
	return nil
}

// Begin stores the first routes of a new or forgotten destination, which does not read the ids of at.
func Begin(ctx context.Context, tx pgx.Tx, all []Wanted, to Wanted, at idset.Watermark) error {
	_, err := tx.Exec(ctx, `DELETE FROM outbox_routes WHERE destination = $1 AND since > 0`, to.Destination)
	if err != nil {
		return fmt.Errorf("forget routes: %w", err)
	}
	c := Change{All: all, To: to, At: at, Passed: at}
	return c.Store(ctx, tx)
}

// Unhanded reports whether the destination waits for stored events that had no route before.
func Unhanded(ctx context.Context, db querier, destination string) (is bool, err error) {
	err = db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox_routes
		WHERE destination = $1 AND since > 0 AND until_head IS NULL AND NOT handed)`, destination).Scan(&is)
	if err != nil {
		return false, fmt.Errorf("find events that had no route: %w", err)
	}
	return is, nil
}

// Handed records that the events from before a range are stored deliveries of its destination. The transaction must hold
// the position of the scanner. The caller sets Range.Handed after the commit.
func Handed(ctx context.Context, tx pgx.Tx, s *Range) error {
	return changeOne(ctx, tx, "record handed routes", `UPDATE outbox_routes SET handed = true
		WHERE destination = $1 AND since = $2`, s.Destination, s.since)
}

// sqlPast keeps a range for people who ask why an event was not delivered. sqlTidy bounds the past ranges: none about
// deleted events, and the newest 100 of a destination.
const (
	sqlPast = `UPDATE outbox_routes SET past = 'read' WHERE destination = $1 AND since = $2`
	sqlTidy = `DELETE FROM outbox_routes WHERE destination = $1 AND past IS NOT NULL AND (
		until_head < (SELECT id FROM outbox_events ORDER BY id LIMIT 1)
		OR since <= (SELECT since FROM outbox_routes WHERE destination = $1 AND past IS NOT NULL ORDER BY since DESC OFFSET 100 LIMIT 1))`
)

// dropRanges marks ranges as past that have ended for both the destination and the scanner.
func dropRanges(ctx context.Context, tx pgx.Tx, destination string, at, scanner idset.Watermark) error {
	all, err := Read(ctx, tx, &destination)
	if err != nil {
		return err
	}

	for i := range all {
		s := &all[i]
		isPast := s.Ended && s.Until.Within(at) && s.Until.Within(scanner)
		if isPast {
			if err := changeOne(ctx, tx, "archive routes", sqlPast, destination, s.since); err != nil {
				return err
			}
		}
	}

	return tidy(ctx, tx, destination)
}

// tidy removes past ranges about deleted events, and old ones beyond a bound.
func tidy(ctx context.Context, tx pgx.Tx, destination string) error {
	if _, err := tx.Exec(ctx, sqlTidy, destination); err != nil {
		return fmt.Errorf("forget routes: %w", err)
	}
	return nil
}

const (
	// sqlExpect stores routes that a destination's owner has not stored yet: events that the owner passes until then
	// are kept for the destination. Storing other routes for the destination ends that.
	sqlExpect = `INSERT INTO outbox_routes (destination, since, patterns, others, head)
		SELECT $1::text, 0, $2::text[], $3::text[], 9223372036854775807 WHERE NOT EXISTS (` + sqlAsNoted + `)
		ON CONFLICT (destination, since) DO UPDATE SET patterns = excluded.patterns, others = excluded.others
		WHERE (outbox_routes.patterns, outbox_routes.others) IS DISTINCT FROM (excluded.patterns, excluded.others)`
	// sqlExpected removes expected routes that equal the stored ones.
	sqlExpected = `DELETE FROM outbox_routes WHERE destination = $1 AND since = 0 AND EXISTS (` + sqlAsNoted + `)`
	sqlAsNoted  = `SELECT FROM outbox_routes AS n WHERE n.destination = $1 AND n.since > 0 AND n.until_head IS NULL
		AND n.patterns = $2 AND n.others = $3`
)

// expect stores the routes of all destinations whose owners have not stored them. Events without a route are handed to
// all destinations that get them, so no destination comes too late.
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

const (
	// sqlCopy copies the range $3 for the ids that a watermark does not have.
	sqlCopy = `INSERT INTO outbox_routes (destination, since, patterns, others, head, open, until_head, until_open, handed, drops)
		SELECT destination, $2, patterns, others, $4, $5::text::int8multirange, until_head, until_open, handed, drops
		FROM outbox_routes WHERE destination = $1 AND since = $3`
	sqlEndRanges = `UPDATE outbox_routes SET until_head = $2, until_open = $3::text::int8multirange
		WHERE destination = $1 AND since > 0 AND head < $2 AND (until_head IS NULL OR until_head > $2) AND since <> ALL($4)`
	sqlDropRanges = `DELETE FROM outbox_routes WHERE destination = $1 AND since > 0 AND head >= $2 AND since <> ALL($3)`
	sqlSkipped    = `INSERT INTO outbox_routes (destination, since, patterns, head, until_head, past)
		SELECT $1, 1 + coalesce((SELECT max(since) FROM outbox_routes WHERE destination = $1), 0), '{}', $2, $3, 'skipped'`
)

// Rewind applies the current routes from a position that was moved back. Ids below it keep the routes by which the
// destination has read them. Ended routes stay in force for ids that the destination had not passed.
func Rewind(ctx context.Context, tx pgx.Tx, destination string, to, passed idset.Watermark) error {
	all, err := Read(ctx, tx, &destination)
	if err != nil {
		return err
	}

	last := Newest(all)
	if last == nil || last.Ended { // no relay has read by it yet
		return nil
	}

	var newest int64
	err = tx.QueryRow(ctx, `SELECT max(since) FROM outbox_routes WHERE destination = $1`, destination).Scan(&newest)
	if err != nil {
		return fmt.Errorf("begin routes again: %w", err)
	}

	var copies []int64 // the next two statements spare them
	again := func(s *Range, from idset.Watermark) error {
		newest++
		copies = append(copies, newest)
		return changeOne(ctx, tx, "begin routes again", sqlCopy, destination, newest, s.since, from.Head, from.Open.String())
	}

	// The original ranges end at the new head, and keep the history below it.
	for i := range all {
		s := &all[i]
		isOwed := s.since != expected && s.Ended && !s.Until.Within(passed)
		if isOwed {
			if err := again(s, s.From.Or(passed)); err != nil {
				return err
			}
		}
	}
	if err := again(last, to); err != nil {
		return err
	}

	if _, err := tx.Exec(ctx, sqlEndRanges, destination, to.Head, to.Open.String(), copies); err != nil {
		return fmt.Errorf("end routes: %w", err)
	}
	if _, err := tx.Exec(ctx, sqlDropRanges, destination, to.Head, copies); err != nil {
		return fmt.Errorf("drop routes: %w", err)
	}

	return tidy(ctx, tx, destination)
}

// Skip records which ids a move of a position has skipped. Only people read the record, to learn why an event was not
// delivered.
func Skip(ctx context.Context, tx pgx.Tx, destination string, from, to int64) error {
	if err := changeOne(ctx, tx, "record skipped ids", sqlSkipped, destination, from, to); err != nil {
		return err
	}
	return tidy(ctx, tx, destination)
}
