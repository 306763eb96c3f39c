package stream

import (
	"cmp"
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
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/withheld"
)

// A destination with several shards has a layout: their number and the routes. Only relays with the layout in force
// take its shards, so all shards read by the same routes, and each event has one shard. A layout stays while any relay
// has it. When no relay has it, and no shard is leased, another relay writes its own layout, in three steps:
//
//   1. mark: no relay takes the destination, and the unrouted scanner gives new rows to the new shards.
//   2. move: the waiting rows get their new shards, page by page. A dead letter gets its shard when it is replayed.
//   3. begin: writes the new positions. Each begins at the lowest of the former heads, and stores the former heads: it
//      passes over events that their former shard has done. So a shard that was behind delays no other shard.
//
// If a relay dies in the middle, the mark stays, and the next relay begins again.

// layoutMoving is the layout of a destination whose rows are being moved: no relay has it.
const layoutMoving = "moving"

// layout returns a text that identifies the number of shards and the routes of this configuration. It is empty for a
// destination with one shard, whose owner stores its own routes.
func (w *Wanted) layout() string {
	if w.Shards <= 1 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(slices.Concat(w.Patterns, []string{"\x00"}, w.Others, []string{"\x00"}, w.Drops), "\x00")))
	return fmt.Sprintf("%d %s", w.Shards, hex.EncodeToString(sum[:8]))
}

// errConcurrentChange ends a layout change that another relay has begun, or made unnecessary.
var errConcurrentChange = errors.New("another relay has the destination")

// layoutChange is the change of one destination's layout.
type layoutChange struct {
	e         *Engine
	w         *Wanted
	server    string
	positions []shardPosition // after the mark
	head      int64           // where the new shards begin
}

func (a *layoutChange) run(ctx context.Context) error {
	if err := a.tx(ctx, a.mark); err != nil {
		return err
	}
	if err := a.adopt(ctx); err != nil {
		return err
	}

	var refused error
	for _, page := range movePages() {
		for p := newMoveCursor(); !p.done; {
			err := a.movePage(ctx, page, &p)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case session.IsOfRow(err):
				refused = cmp.Or(refused, err)
			case err != nil:
				return err
			}
		}
	}

	if refused != nil {
		return refused
	}
	if err := a.tx(ctx, a.begin); err != nil {
		return err
	}

	return a.use(ctx, func(ctx context.Context, conn *session.Conn) error { return a.e.announce(ctx, conn) })
}

// use runs f on a connection, within the time for one round trip.
func (a *layoutChange) use(ctx context.Context, f func(context.Context, *session.Conn) error) error {
	return a.e.own(ctx, a.server, func(conn *session.Conn) error {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), position.RoundTrip, position.ErrSlow)
		defer cancel()
		return f(ctx, conn)
	})
}

func (a *layoutChange) tx(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	return a.use(ctx, func(ctx context.Context, conn *session.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return f(ctx, tx) })
	})
}

// shardPosition is the position of one shard.
type shardPosition struct {
	idset.Watermark

	id     int32
	epoch  int64
	layout string
	former position.Former
}

const sqlPositions = `SELECT p.number, p.epoch, p.layout, p.head, p.open::text, p.former::text
	FROM outbox_positions AS p WHERE p.destination = $1 ORDER BY p.shard FOR UPDATE OF p`

// lockPositions reads and locks the positions of the destination, by shard number.
func (a *layoutChange) lockPositions(ctx context.Context, tx pgx.Tx) ([]shardPosition, error) {
	rows, err := tx.Query(ctx, sqlPositions, a.w.Destination)
	if err != nil {
		return nil, err
	}

	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s shardPosition, err error) {
		var former string
		if err := row.Scan(&s.id, &s.epoch, &s.layout, &s.Head, &s.Open, &former); err != nil {
			return s, err
		}

		s.former, err = position.ParseFormer(former)
		return s, err
	})
}

// lock locks the positions after the mark. It returns errConcurrentChange if they have another mark.
func (a *layoutChange) lock(ctx context.Context, tx pgx.Tx) ([]shardPosition, error) {
	all, err := a.lockPositions(ctx, tx)
	if err != nil {
		return all, err
	}

	if len(all) == 0 || all[0].layout != layoutMoving || all[0].epoch != a.positions[0].epoch {
		return all, errConcurrentChange
	}
	return all, nil
}

const (
	// sqlAgreed reports whether any relay has the layout in force.
	sqlAgreed = `SELECT EXISTS (SELECT FROM outbox_members AS m, unnest(m.wants, m.layouts) AS w(destination, layout)
		WHERE w.destination = $1 AND coalesce(w.layout, '') = $2)`
	// sqlMoves shows the relays' audits that the change is in progress.
	sqlMoves = `UPDATE outbox_positions SET updated_at = clock_timestamp() WHERE destination = $1`
	// sqlHeld reports whether any shard has an owner. It comes after the locks of the positions: a take may have been
	// in progress.
	sqlHeld = `SELECT EXISTS (SELECT FROM outbox_positions AS p JOIN outbox_members AS m ON m.owner = p.owner WHERE p.destination = $1)`
	sqlMark = `UPDATE outbox_positions SET layout = '` + layoutMoving + `', shards = $2, epoch = epoch + 1, owner = NULL,
		updated_at = clock_timestamp() WHERE destination = $1`
)

// mark stops all relays from taking the destination.
func (a *layoutChange) mark(ctx context.Context, tx pgx.Tx) error {
	all, err := a.lockPositions(ctx, tx)
	if err != nil {
		return err
	}
	if len(all) == 0 || all[0].layout == a.w.layout() {
		return errConcurrentChange
	}

	var held, agreed bool
	if err := tx.QueryRow(ctx, sqlHeld, a.w.Destination).Scan(&held); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, sqlAgreed, a.w.Destination, all[0].layout).Scan(&agreed); err != nil {
		return err
	}
	if held || agreed {
		return errConcurrentChange
	}

	tag, err := tx.Exec(ctx, sqlMark, a.w.Destination, a.w.Shards)
	if err == nil {
		err = session.CheckChanged("mark the shards", tag.RowsAffected(), int64(len(all)))
	}
	if err != nil {
		return err
	}

	for i := range all {
		all[i].epoch++
	}

	a.positions = all
	_, err = routes.Fence(ctx, tx) // the unrouted scanner now writes rows for the new shards
	return err
}

// adoptWithin bounds the wait for the destination's copy of a position.
const adoptWithin = 30 * time.Second

// adopt moves the positions to the destination's copies, if it keeps any: a killed owner may be ahead of the database.
// Its deliveries in flight have ended then. The new shards have other positions, which the former copies do not
// concern.
func (a *layoutChange) adopt(ctx context.Context) error {
	d := a.e.lanes[shardKey{a.w.Destination, 0}].Destination()
	if d.Position == nil {
		return nil
	}
	defer a.e.lanes[shardKey{a.w.Destination, 0}].Disown() // Disown clears the report of a destination that does not answer

	for shard := range a.positions {
		if err := a.adoptShard(ctx, d, shard); err != nil {
			return err
		}
	}

	return nil
}

func (a *layoutChange) adoptShard(ctx context.Context, d *dispatch.Destination, shard int) error {
	late := fmt.Errorf("the destination did not return its position within %v", adoptWithin)
	ctx, cancel := context.WithTimeoutCause(ctx, adoptWithin, late)
	defer cancel()

	s := a.positions[shard]
	var p position.Position
	err := a.use(ctx, func(ctx context.Context, conn *session.Conn) (err error) {
		p, err = position.Load(ctx, conn, lease.Lease{
			Destination: d.Name,
			Shard:       shard,
			PositionID:  s.id,
			Epoch:       s.epoch,
			Server:      a.server,
		})
		if err != nil {
			return err
		}

		p.Exact = true
		return p.CheckIDs(ctx, conn, a.e.Log, p.Watermark)
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

// moveCursor is a place among the rows of a destination.
type moveCursor struct {
	at   pgtype.Timestamptz
	id   int64
	done bool
}

func newMoveCursor() moveCursor {
	return moveCursor{at: deliveries.BeforeAll().At, id: math.MinInt64}
}

// movePages are the waiting rows of a destination, in the order of indexes. Rows that wait for their time come twice,
// because a person may retry one of them at once.
func movePages() []string {
	byID := `SELECT event_id, available_at FROM outbox_deliveries
		WHERE destination BETWEEN $1 AND $1 AND ordering_key IS NOT NULL AND state IN ('retry', 'parked')
			AND event_id > $2 AND $3::timestamptz IS NOT NULL ORDER BY destination, event_id`
	byTime := `SELECT event_id, available_at FROM outbox_deliveries
		WHERE destination = $1 AND state = 'retry' AND (available_at, event_id) > ($3::timestamptz, $2)
		ORDER BY available_at, event_id`

	return []string{byID, byTime, byTime}
}

// sqlMove gives the rows of a page the shards of $5. It returns the last row, and how many rows have another shard and were
// changed.
func sqlMove(page string) string {
	return sqlMisplaced(page) + `,
	moved AS (UPDATE outbox_deliveries AS d SET shard = s.shard FROM misplaced AS s
		WHERE d.event_id = s.event_id AND d.destination = $1 RETURNING 1)
	SELECT event_id, available_at, n, (SELECT count(*) FROM misplaced), (SELECT count(*) FROM moved) FROM page ORDER BY n DESC LIMIT 1`
}

// sqlMisplaced begins a statement with the rows of a page, and those among them whose shard is another, or some of those.
func sqlMisplaced(page string) string {
	return `WITH page AS MATERIALIZED (SELECT row_number() OVER () AS n, event_id, available_at FROM (` + page + ` LIMIT $4) AS p),
	misplaced AS MATERIALIZED (SELECT s.event_id, s.shard
		FROM (SELECT d.event_id, d.shard AS was, ` + pgschema.NumberOfRow("outbox_events", "$5::int") + ` AS shard
			FROM page AS p JOIN outbox_deliveries AS d ON d.event_id = p.event_id AND d.destination = $1) AS s
		WHERE s.was <> s.shard AND ($6::bigint[] IS NULL OR s.event_id = ANY($6)))`
}

// movePage moves the rows of the next page. It returns the refusal of a row after it has moved the others: the shards
// cannot begin without the row, because its aggregate has another shard.
func (a *layoutChange) movePage(ctx context.Context, page string, p *moveCursor) error {
	from := *p
	move := func(some []int64) error {
		return a.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := a.lock(ctx, tx); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, sqlMoves, a.w.Destination); err != nil {
				return err
			}

			*p = from
			return a.move(ctx, tx, page, p, some)
		})
	}

	err := move(nil)
	if !session.IsOfRow(err) {
		return err
	}

	var ids []int64
	var end moveCursor
	err = a.use(ctx, func(ctx context.Context, conn *session.Conn) error {
		n := 0
		err := conn.QueryRow(ctx, sqlMisplaced(page)+` SELECT event_id, available_at, n,
			(SELECT coalesce(array_agg(event_id), '{}') FROM misplaced) FROM page ORDER BY n DESC LIMIT 1`,
			a.w.Destination, from.id, from.at, movePage, a.w.Shards, []int64(nil)).Scan(&end.id, &end.at, &n, &ids)
		end.done = n < movePage
		return err
	})
	if err != nil {
		return err
	}

	refused, err := session.InHalves(ids, move)
	*p = end
	if err == nil && len(refused) > 0 {
		err = &withheld.Error{Event: refused[0].Item, N: len(refused), Err: refused[0].Err}
	}

	return err
}

// move moves the next rows of a page, or some of them.
func (a *layoutChange) move(ctx context.Context, tx pgx.Tx, page string, p *moveCursor, some []int64) error {
	n := 0
	var misplaced, moved int64

	err := tx.QueryRow(ctx, sqlMove(page), a.w.Destination, p.id, p.at, movePage, a.w.Shards, some).
		Scan(&p.id, &p.at, &n, &misplaced, &moved)
	if err != nil && !isNoRows(err) {
		return err
	}

	p.done = n < movePage
	return session.CheckChanged("move", moved, misplaced)
}

const (
	sqlFewer = `DELETE FROM outbox_positions WHERE destination = $1 AND shard >= $2`
	// sqlBegin writes the position of one shard. It copies the sequence and anchor of the position with the lowest
	// head.
	sqlBegin = `INSERT INTO outbox_positions AS p (destination, shard, shards, layout, head, open, former, delivered, sealed,
		void, sequence, seen, seen_at, reused, epoch)
		SELECT destination, $2::int, $3::int, $4, $5::bigint, $6::text::int8multirange, $7::text::jsonb,
			CASE WHEN $2::int = 0 THEN $8::bigint ELSE 0 END, 0, 0, sequence, seen, seen_at, $9::bigint, $10::bigint
			FROM outbox_positions WHERE number = $1
		ON CONFLICT (destination, shard) DO UPDATE SET shards = excluded.shards, layout = excluded.layout,
			head = excluded.head, open = excluded.open, former = excluded.former,
			delivered = excluded.delivered, sequence = excluded.sequence, seen = excluded.seen, seen_at = excluded.seen_at,
				reused = excluded.reused,
			id = gen_random_uuid(), sealed = 0, void = 0, epoch = excluded.epoch, updated_at = clock_timestamp()`
)

// begin writes the positions of the new shards, and their routes.
func (a *layoutChange) begin(ctx context.Context, tx pgx.Tx) error {
	all, err := a.lock(ctx, tx)
	if err != nil {
		return err
	}

	read, passed, former := combine(all)
	a.head = passed.Head
	var delivered, epoch int64
	var reused *int64

	err = tx.QueryRow(ctx, `SELECT sum(delivered)::bigint, min(reused), max(epoch) + 1 FROM outbox_positions
		WHERE destination = $1`, a.w.Destination).Scan(&delivered, &reused, &epoch)
	if err != nil {
		return err
	}

	lowest := 0
	for shard := range all {
		if all[shard].Head < all[lowest].Head {
			lowest = shard
		}
	}

	// All rows copy from the position with the lowest head, so the row of that position, if it stays, is written last.
	for i := range a.w.Shards {
		shard := (lowest + 1 + i) % max(a.w.Shards, lowest+1)

		tag, err := tx.Exec(ctx, sqlBegin, all[lowest].id, shard, a.w.Shards, a.w.layout(), passed.Head,
			passed.Open.String(), former.String(), delivered, reused, epoch)
		if err == nil {
			err = session.CheckChanged("begin a shard", tag.RowsAffected(), 1)
		}
		if err != nil {
			return err
		}
	}

	tag, err := tx.Exec(ctx, sqlFewer, a.w.Destination, a.w.Shards)
	if err == nil {
		err = session.CheckChanged("remove the former shards", tag.RowsAffected(), int64(len(all)-a.w.Shards))
	}
	if err != nil {
		return err
	}

	return a.route(ctx, tx, read, passed)
}

// route stores the routes, if they have changed. Ids that any shard has read keep their routes, also for a shard that
// has yet to read them.
func (a *layoutChange) route(ctx context.Context, tx pgx.Tx, read, passed idset.Watermark) error {
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

// combine returns three sets. read has the ids that any shard has read. passed has the ids that all shards have passed:
// the new shards continue there. former has the ids above passed that former shards have done.
func combine(all []shardPosition) (read, passed idset.Watermark, former position.Former) {
	read = all[0].Watermark
	passed = all[0].Watermark
	for _, s := range all[1:] {
		read = read.Or(s.Watermark)
		passed = passed.And(s.Watermark)
	}

	for _, s := range all {
		if len(s.former) > len(former) {
			former = s.former
		}
	}

	read = former.Passed(read)
	former = slices.Clone(former)

	if len(all) > 1 {
		stand := make(position.ShardPositions, len(all))
		for i, s := range all {
			stand[i] = s.Watermark
		}
		former = append(former, stand)
	}

	former = slices.DeleteFunc(former, func(s position.ShardPositions) bool {
		return position.Former{s}.Finished(passed)
	})
	return read, passed, former
}
