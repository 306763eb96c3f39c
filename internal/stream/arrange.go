package stream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// A destination with several shards has a layout: their number and its routes. Only relays with the layout in force take its
// shards, so all shards read by the same routes, and each event has one. While any relay has it, it stays. When none has, and
// no shard is held any more, another relay writes its own layout. This file does so, in three steps:
//
//  1. mark: no relay takes the destination, and the router gives new rows to the new shards.
//  2. move: the stored rows get their new shards, page by page.
//  3. begin: the new positions. Each begins at the lowest of the former heads, and has those in former: it passes over what the
//     former shard of an event has done. So a shard that was behind holds no other back.
//
// A relay that dies on the way leaves the mark, and the next one begins again.

// layoutMoving is the layout of a destination whose rows are being moved: no relay has it.
const layoutMoving = "moving"

// layout returns the layout by which relays with this configuration know each other, empty for a destination with one shard: each
// of its owners stores its own routes.
func (w *Wanted) layout() string {
	if w.Shards <= 1 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(slices.Concat(w.Patterns, []string{"\x00"}, w.Others, []string{"\x00"}, w.Drops), "\x00")))
	return fmt.Sprintf("%d %s", w.Shards, hex.EncodeToString(sum[:8]))
}

// errNotNow ends an arrangement that another relay has begun, or made needless.
var errNotNow = errors.New("another relay has the destination")

// arrangement is the change of one destination's layout.
type arrangement struct {
	e      *Engine
	w      *Wanted
	server string
	marked []standing // after the mark
	head   int64      // where the new shards begin
}

func (a *arrangement) run(ctx context.Context) error {
	if err := a.tx(ctx, a.mark); err != nil {
		return err
	}
	if err := a.adopt(ctx); err != nil {
		return err
	}
	for _, page := range movePages() {
		for p := newMovePlace(); !p.over; {
			if err := a.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				if _, err := a.lock(ctx, tx); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, sqlMoves, a.w.Destination); err != nil {
					return err
				}
				return a.move(ctx, tx, page, &p)
			}); err != nil {
				return err
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	if err := a.tx(ctx, a.begin); err != nil {
		return err
	}
	return a.use(ctx, func(ctx context.Context, conn *session.Conn) error { return a.e.announce(ctx, conn) })
}

// use runs f on a connection, within the time for one round trip.
func (a *arrangement) use(ctx context.Context, f func(context.Context, *session.Conn) error) error {
	return a.e.own(ctx, a.server, func(conn *session.Conn) error {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), position.RoundTrip, position.ErrSlow)
		defer cancel()
		return f(ctx, conn)
	})
}

func (a *arrangement) tx(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	return a.use(ctx, func(ctx context.Context, conn *session.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return f(ctx, tx) })
	})
}

// standing is the position of one shard.
type standing struct {
	tail.Watermark

	unit   int32
	epoch  int64
	layout string
	former position.Former
}

const sqlStandings = `SELECT p.unit, p.epoch, p.layout, p.head, p.open::text, p.former::text
	FROM outbox_positions AS p WHERE p.destination = $1 ORDER BY p.part FOR UPDATE OF p`

// standings reads and locks the positions of the destination, by their parts.
func (a *arrangement) standings(ctx context.Context, tx pgx.Tx) ([]standing, error) {
	rows, err := tx.Query(ctx, sqlStandings, a.w.Destination)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s standing, err error) {
		var open, former string
		if err := row.Scan(&s.unit, &s.epoch, &s.layout, &s.Head, &open, &former); err != nil {
			return s, err
		}
		if s.Open, err = tail.ParseRanges(open); err != nil {
			return s, err
		}
		s.former, err = position.ParseFormer(former)
		return s, err
	})
}

// lock locks the positions after the mark. It returns errNotNow if they have another one.
func (a *arrangement) lock(ctx context.Context, tx pgx.Tx) ([]standing, error) {
	all, err := a.standings(ctx, tx)
	if err == nil && (len(all) == 0 || all[0].layout != layoutMoving || all[0].epoch != a.marked[0].epoch) {
		err = errNotNow
	}
	return all, err
}

const (
	// sqlAgreed reports whether any relay has the layout in force.
	sqlAgreed = `SELECT EXISTS (SELECT FROM outbox_members AS m, unnest(m.wants, m.layouts) AS w(destination, layout) WHERE w.destination = $1 AND coalesce(w.layout, '') = $2)`
	// sqlMoves shows the audits of the relays that the change goes on.
	sqlMoves = `UPDATE outbox_positions SET updated_at = clock_timestamp() WHERE destination = $1`
	// sqlHeld reports whether any shard has an owner. It comes after the locks of the positions: a take may have been under way.
	sqlHeld = `SELECT EXISTS (SELECT FROM outbox_positions AS p JOIN outbox_members AS m ON m.owner = p.owner WHERE p.destination = $1)`
	sqlMark = `UPDATE outbox_positions SET layout = '` + layoutMoving + `', shards = $2, epoch = epoch + 1, owner = NULL, updated_at = clock_timestamp() WHERE destination = $1`
)

// mark keeps all relays from the destination.
func (a *arrangement) mark(ctx context.Context, tx pgx.Tx) error {
	all, err := a.standings(ctx, tx)
	if err != nil {
		return err
	}
	if len(all) == 0 || all[0].layout == a.w.layout() {
		return errNotNow
	}
	var held, agreed bool
	if err := tx.QueryRow(ctx, sqlHeld, a.w.Destination).Scan(&held); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, sqlAgreed, a.w.Destination, all[0].layout).Scan(&agreed); err != nil {
		return err
	}
	if held || agreed {
		return errNotNow
	}
	if _, err := tx.Exec(ctx, sqlMark, a.w.Destination, a.w.Shards); err != nil {
		return err
	}
	for i := range all {
		all[i].epoch++
	}
	a.marked = all
	_, err = routes.Fence(ctx, tx) // what the router writes from now on is for the new shards
	return err
}

// adoptWithin bounds the wait for a position that the destination keeps.
const adoptWithin = 30 * time.Second

// adopt makes the positions those that the destination keeps, if it does: an owner that was killed had come further than the
// database knows. What it had under way is over then. The new shards have other positions, for which the former copies do not count.
func (a *arrangement) adopt(ctx context.Context) error {
	d := a.e.lanes[place{a.w.Destination, 0}].Destination()
	if d.Position == nil {
		return nil
	}
	defer a.e.lanes[place{a.w.Destination, 0}].Disown() // which hears of a destination that is away
	for part := range a.marked {
		if err := a.adoptPart(ctx, d, part); err != nil {
			return err
		}
	}
	return nil
}

func (a *arrangement) adoptPart(ctx context.Context, d *dispatch.Destination, part int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, adoptWithin, fmt.Errorf("the destination did not tell within %v where it is", adoptWithin))
	defer cancel()
	s := a.marked[part]
	var p position.Position
	err := a.use(ctx, func(ctx context.Context, conn *session.Conn) (err error) {
		if p, err = position.Load(ctx, conn, lease.Lease{Destination: d.Name, Part: part, Unit: s.unit, Epoch: s.epoch, Server: a.server}); err != nil {
			return err
		}
		p.Exact = true
		return p.CheckIDs(ctx, conn, tail.Watermark{Head: p.Head, Open: p.Open})
	})
	if err != nil {
		return err
	}
	x := a.e.exact(d, &p, func(ctx context.Context, f func(*session.Conn) error) error { return a.e.own(ctx, a.server, f) })
	_, err = x.Open(ctx)
	return err
}

// movePage is how many rows one transaction moves.
const movePage = 2000

// movePlace is a place among the rows of a destination.
type movePlace struct {
	at   pgtype.Timestamptz
	id   int64
	over bool
}

func newMovePlace() movePlace {
	return movePlace{at: dueStart().at, id: math.MinInt64}
}

// movePages are the rows of a destination, in the order of indexes. A dead letter that a person replays meanwhile becomes due, so
// those that wait for their time come last; and twice, because a person may have one of these tried at once.
func movePages() []string {
	byTime := `SELECT event_id, available_at FROM outbox_deliveries WHERE destination = $1 AND state = 'retry' AND (available_at, event_id) > ($3::timestamptz, $2) ORDER BY available_at, event_id`
	return []string{
		`SELECT event_id, available_at FROM outbox_deliveries WHERE destination BETWEEN $1 AND $1 AND state = 'dead' AND event_id > $2 AND $3::timestamptz IS NOT NULL ORDER BY destination, event_id`,
		`SELECT event_id, available_at FROM outbox_deliveries WHERE destination BETWEEN $1 AND $1 AND ordering_key IS NOT NULL AND state IN ('retry', 'parked')
		AND event_id > $2 AND $3::timestamptz IS NOT NULL ORDER BY destination, event_id`,
		byTime, byTime,
	}
}

// sqlMove gives the rows of a page the shards of $5, and returns the last one. All rows of an aggregate are in one shard, also those
// whose events are missing: they have its name. The aggregates of a replay stay with the first shard, which sends it.
func sqlMove(page string) string {
	return `WITH page AS MATERIALIZED (SELECT row_number() OVER () AS n, event_id, available_at FROM (` + page + ` LIMIT $4) AS p),
	moved AS (UPDATE outbox_deliveries AS d SET shard = s.shard FROM (
			SELECT p.event_id, CASE WHEN $5::int = 1 THEN 0 WHEN d.ordering_key ~ '^#[^/]*$' AND octet_length(d.ordering_key) < 190 THEN 1
				ELSE 1 + coalesce((SELECT ` + outboxsql.Hash("e.") + ` FROM outbox_events AS e WHERE e.id = p.event_id), ` + outboxsql.HashOfName("nullif(d.ordering_key, '"+totalName+"')") + `, p.event_id) % $5::int END AS shard
			FROM page AS p JOIN outbox_deliveries AS d ON d.event_id = p.event_id AND d.destination = $1) AS s
		WHERE d.event_id = s.event_id AND d.destination = $1 AND d.shard <> s.shard)
	SELECT event_id, available_at, n FROM page ORDER BY n DESC LIMIT 1`
}

// move moves the next rows of a page.
func (a *arrangement) move(ctx context.Context, tx pgx.Tx, page string, p *movePlace) error {
	n := 0
	err := tx.QueryRow(ctx, sqlMove(page), a.w.Destination, p.id, p.at, movePage, a.w.Shards).Scan(&p.id, &p.at, &n)
	if err != nil && !isNoRows(err) {
		return err
	}
	p.over = n < movePage
	return nil
}

const (
	sqlFewer = `DELETE FROM outbox_positions WHERE destination = $1 AND part >= $2`
	// sqlBegin writes the position of one shard. What the position relies on is that of the one with the lowest head.
	sqlBegin = `INSERT INTO outbox_positions AS p (destination, part, shards, layout, head, open, former, delivered, sealed, void, sequence, seen, seen_at, reused, epoch)
		SELECT destination, $2::int, $3::int, $4, $5::bigint, $6::text::int8multirange, $7::text::jsonb, CASE WHEN $2::int = 0 THEN $8::bigint ELSE 0 END, 0, 0, sequence, seen, seen_at, $9::bigint, $10::bigint FROM outbox_positions WHERE unit = $1
		ON CONFLICT (destination, part) DO UPDATE SET shards = excluded.shards, layout = excluded.layout, head = excluded.head, open = excluded.open, former = excluded.former,
			delivered = excluded.delivered, sequence = excluded.sequence, seen = excluded.seen, seen_at = excluded.seen_at, reused = excluded.reused,
			id = gen_random_uuid(), sealed = 0, void = 0, epoch = excluded.epoch, updated_at = clock_timestamp()`
)

// begin writes the positions of the new shards, and their routes.
func (a *arrangement) begin(ctx context.Context, tx pgx.Tx) error {
	all, err := a.lock(ctx, tx)
	if err != nil {
		return err
	}
	read, passed, former := together(all)
	a.head = passed.Head
	var delivered, epoch int64
	var reused *int64
	err = tx.QueryRow(ctx, `SELECT sum(delivered)::bigint, min(reused), max(epoch) + 1 FROM outbox_positions WHERE destination = $1`, a.w.Destination).Scan(&delivered, &reused, &epoch)
	if err != nil {
		return err
	}
	lowest := 0
	for part := range all {
		if all[part].Head < all[lowest].Head {
			lowest = part
		}
	}
	// All rows take something from that of the lowest, so its own part, if it stays, is written last.
	for i := range a.w.Shards {
		part := (lowest + 1 + i) % max(a.w.Shards, lowest+1)
		_, err := tx.Exec(ctx, sqlBegin, all[lowest].unit, part, a.w.Shards, a.w.layout(), passed.Head, passed.Open.String(), former.String(), delivered, reused, epoch)
		if err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, sqlFewer, a.w.Destination, a.w.Shards); err != nil {
		return err
	}
	return a.route(ctx, tx, read, passed)
}

// route stores the routes, if they have changed. What any shard has read keeps those by which it was read, also for the shard that
// still has to read it.
func (a *arrangement) route(ctx context.Context, tx pgx.Tx, read, passed tail.Watermark) error {
	stored, err := routes.Read(ctx, tx, &a.w.Destination)
	if err != nil {
		return err
	}
	last := routes.Newest(stored)
	if last != nil && last.Equal(&a.w.Routes) {
		return routes.Noted(ctx, tx, a.w.Destination)
	}
	change := routes.Change{All: a.e.routes, To: a.w.Wanted, Last: last, At: read, Passed: passed}
	return change.Store(ctx, tx)
}

// together returns the ids that any of the shards has read, those that all have passed, from which the new ones go on, and what is
// done beyond these.
func together(all []standing) (read, passed tail.Watermark, former position.Former) {
	read, passed = all[0].Watermark, all[0].Watermark
	for _, s := range all[1:] {
		read, passed = read.Or(s.Watermark), passed.And(s.Watermark)
	}
	passed.Head, passed.Open = position.Bound(passed.Head, passed.Open)
	for _, s := range all {
		if len(s.former) > len(former) {
			former = s.former
		}
	}
	read = former.Passed(read)
	former = slices.Clone(former)
	if len(all) > 1 || passed.Head < all[0].Head { // bounded: what is above is not read again
		stand := make(position.Stand, len(all))
		for i, s := range all {
			stand[i] = s.Watermark
		}
		former = append(former, stand)
	}
	former = slices.DeleteFunc(former, func(s position.Stand) bool { return position.Former{s}.Over(passed.Head, passed.Open) })
	return read, passed, former
}
