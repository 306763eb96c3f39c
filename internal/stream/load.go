package stream

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/aggregates"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/internal/withheld"
)

const (
	// walkPage is how many rows one statement walks over, and headsPage how many queues one statement skips through. A
	// page takes some milliseconds, or some seconds if each row comes from a slow disk.
	walkPage  = 5000
	headsPage = 2000
	// longQueue is the average number of rows in a queue from which skipping from queue to queue, with two index
	// descents each, is faster.
	longQueue = 16
)

// The rows of a queue are in two indexes: waiting rows, and dead letters, whose number is unbounded. Each statement
// names its rows with the condition of the index.
const (
	liveRows = `state IN ('retry', 'parked')`
	deadRows = `state = 'dead'`
)

// rowKind are the rows of queues that one statement reads.
type rowKind struct {
	which string // the condition of the index
	shard string // the number of the shard of a queue, from its first row
}

// liveKind and deadKind are the two kinds of rows. The column of a dead letter may have the number of a former shard.
func liveKind() rowKind { return rowKind{liveRows, "shard"} }

func deadKind(shards int) rowKind {
	if shards <= 1 {
		return rowKind{deadRows, "0"}
	}
	return rowKind{deadRows, pgschema.NumberOfName("key", shards)}
}

// sqlWalk reads the first row of each queue after a name, among the next $3 rows in the order of queues.
func sqlWalk(k rowKind) string {
	return `SELECT key, state, ` + k.shard + `, event_id
FROM (SELECT DISTINCT ON (key) key, event_id, state, shard
	FROM (SELECT ordering_key AS key, event_id, state, shard FROM outbox_deliveries
		WHERE destination = $1 AND ordering_key > $2 AND ` + k.which + ` ORDER BY ordering_key, event_id LIMIT $3) AS page
	ORDER BY key, event_id) AS queue
ORDER BY key`
}

// sqlHeads reads the first row of each queue after a name, up to $3 queues, by skipping from name to name in the index.
func sqlHeads(k rowKind) string {
	return `WITH RECURSIVE queue(key, state, shard, n) AS (
	(SELECT ordering_key, state, shard, 1 FROM outbox_deliveries
		WHERE destination = $1 AND ordering_key > $2 AND ` + k.which + ` ORDER BY ordering_key, event_id LIMIT 1)
	UNION ALL
	SELECT d.ordering_key, d.state, d.shard, queue.n + 1
	FROM queue CROSS JOIN LATERAL (SELECT ordering_key, state, shard FROM outbox_deliveries
		WHERE destination = $1 AND ordering_key > queue.key AND ` + k.which + ` ORDER BY ordering_key, event_id LIMIT 1) AS d
	WHERE queue.n < $3)
SELECT key, state, ` + k.shard + ` FROM queue`
}

// sqlFirstOfTotal reads the first row of a total order, with the columns of sqlWalk.
func sqlFirstOfTotal(o *order) string {
	live, _ := o.rows("ordering_key AS key, state, shard, event_id", "$1", "", "1")
	return live
}

// loader loads the stored rows of a destination when its shard is taken over. It owns nothing: it puts its findings
// into the stored deliveries and the lane, and writes through the shard. It lives for one call, on the shard's
// goroutine.
type loader struct {
	*common

	order  *order
	stored *stored
	reader *tail.Reader // where the shard begins
	write  func(ctx context.Context, conn *session.Conn, f func(pgx.Tx) error) error
}

// load blocks the aggregates with stored deliveries, before any later event of such an aggregate is read. Some queues
// wait behind no stored row: the previous relay did not reach them, or the event in front was in its memory, and is
// open. These queues continue only when all events that are open, or come earlier, have been read.
//
// Where dead letters block, they come first: the second search finds a dead letter that a person replays meanwhile.
// Where they do not block, none is read.
func (l *loader) load(ctx context.Context, conn *session.Conn) error {
	switch {
	case !l.order.kept:
		return l.release(ctx, conn)
	case l.order.total:
		return l.loadTotal(ctx, conn)
	}

	if err := l.release(ctx, conn); err != nil {
		return err
	}

	l.e.loading.Add(1)
	defer l.e.loading.Add(-1)

	if l.lane.Destination().Blocks() {
		if err := l.loadQueues(ctx, conn, deadKind(l.lane.Destination().Shards)); err != nil {
			return err
		}
	}

	return l.loadQueues(ctx, conn, liveKind())
}

// loadQueues walks over all rows of one kind, which is some five times as fast as skipping from queue to queue if
// queues are short. After a page of long ones it skips through a page, and tries again.
func (l *loader) loadQueues(ctx context.Context, conn *session.Conn, k rowKind) error {
	for after, walks := "", true; ; {
		query := sqlHeads(k)
		page := headsPage
		if walks {
			query = sqlWalk(k)
			page = walkPage
		}

		queues, last, err := l.loadPage(ctx, conn, query, after, page)
		switch {
		case err != nil:
			return fmt.Errorf("load the stored queues of %q: %w", l.name, err)
		case queues == 0, !walks && queues < headsPage:
			return nil
		}

		after = last
		walks = !walks || queues > walkPage/longQueue
	}
}

// loadPage returns how many queues it has loaded, and the name of the last one.
func (l *loader) loadPage(ctx context.Context, conn *session.Conn, query, after string, page int) (queues int, last string, err error) {
	rows, err := conn.Query(ctx, query, pgx.QueryResultFormats{pgx.TextFormatCode}, l.name, after, page)
	if err != nil {
		return 0, "", err
	}
	defer rows.Close()

	for rows.Next() {
		values := rows.RawValues()
		queues++
		last = string(values[0])
		if l.order.unnamed(last) || string(values[2]) != strconv.Itoa(l.order.shard) {
			continue // a dead letter with its name from a total order, or an aggregate of another shard
		}

		key := l.order.keys.Named(last)
		l.lane.SetRows(key, dispatch.SomeRows)

		if deliveries.State(values[1]) == deliveries.Parked {
			l.stored.aggregates.Move(key, last, aggregates.Parked)
			l.stored.readThrough = max(l.stored.readThrough, l.reader.Head())
		}
	}

	return queues, last, rows.Err()
}

// sqlTotal reads whether any row of a total order waits, whether the first one is parked, and whether any row is parked
// or has no name. If more than $2 rows wait, one of them may be. Of blocking dead letters it reads the first.
func sqlTotal(o *order) string {
	live, _ := o.rows("event_id, state", "$1", "", "$2 + 1")
	_, dead := o.rows("event_id, state", "$1", "", "1")
	return `SELECT count(*) > 0, coalesce((array_agg(state ORDER BY event_id))[1] = 'parked', false),
	coalesce(bool_or(state = 'parked') OR count(*) > $2, false) OR (SELECT coalesce(bool_or(ordering_key IS NULL), false) OR count(*) > $2
		FROM (SELECT ordering_key FROM outbox_deliveries WHERE destination = $1 AND state = 'retry'
			ORDER BY available_at, event_id LIMIT $2 + 1) AS r)
FROM (` + live + ` UNION ALL (SELECT * FROM ` + dead + ` AS x WHERE $3)) AS u`
}

// findTimeout bounds one page of the search for restored rows.
const findTimeout = 200 * time.Millisecond

// findParked continues the search for queues that wait for nothing: their first rows are parked, do not run, and the lane
// knows of no stored delivery in front. A person has restored such rows while the shard was at work.
func (l *loader) findParked(ctx context.Context, conn *session.Conn) error {
	search := &l.stored.due.Restored
	began := time.Now()
	if !search.IsDue(began) {
		return nil
	}

	query := sqlWalk(liveKind())
	args := []any{l.name, search.After, walkPage}
	if l.order.total {
		query = sqlFirstOfTotal(l.order)
		args = args[:1]
	}

	found := false
	last := ""
	begin := pgx.TxOptions{BeginQuery: fmt.Sprintf("BEGIN READ ONLY; SET LOCAL statement_timeout = %d", findTimeout.Milliseconds())}
	err := pgx.BeginTxFunc(ctx, conn, begin, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, query, args...)
		if err != nil {
			return err
		}

		var name, state string
		var shard int
		var id int64
		_, err = pgx.ForEachRow(rows, []any{&name, &state, &shard, &id}, func() error {
			last = name

			isMine := !l.order.unnamed(name) && shard == l.order.shard
			_, runs := l.stored.running[id]
			if isMine && !runs && deliveries.State(state) == deliveries.Parked {
				found = l.takeUp(name) || found
			}

			return nil
		})

		return err
	})
	switch {
	case store.IsCanceled(err):
		search.Canceled()
		return nil
	case err != nil:
		return fmt.Errorf("find restored deliveries of %q: %w", l.name, err)
	}

	if l.order.total {
		last = "" // it has one queue
	}

	search.Read(time.Since(began), last)
	foundUnordered := found && !l.order.kept
	retriesRefused := last == "" && len(search.Unreleased) > 0
	if foundUnordered || retriesRefused {
		return l.release(ctx, conn)
	}

	return nil
}

// takeUp makes the shard check a queue whose first row is parked, unless the lane knows of stored deliveries in it.
func (l *loader) takeUp(name string) bool {
	if !l.order.kept {
		return true
	}

	key := l.order.keyOf(name)
	if l.lane.Order(key).Blocked {
		return false
	}

	l.lane.SetRows(key, dispatch.SomeRows)
	l.stored.aggregates.Move(key, l.order.queue(name), aggregates.Parked)
	l.stored.progress.dirty = true // the next write checks the queue

	return true
}

// loadTotal blocks a total order if any of its rows is stored. A parked row may come from another order, and may have
// to wait for open events. The same holds for a row without a name, which joins the queue when it is due.
func (l *loader) loadTotal(ctx context.Context, conn *session.Conn) error {
	var waits, first, joins bool
	row := conn.QueryRow(ctx, sqlTotal(l.order), l.name, walkPage, l.lane.Destination().Blocks())
	if err := row.Scan(&waits, &first, &joins); err != nil {
		return fmt.Errorf("load the stored deliveries of %q: %w", l.name, err)
	}
	if joins && l.reader.Gaps().Len() > 0 {
		l.stored.readThrough = l.reader.Head()
	}
	if !waits {
		return nil
	}

	l.lane.SetRows(l.order.totalKey, dispatch.SomeRows)

	if first {
		l.stored.aggregates.Move(l.order.totalKey, totalName, aggregates.Parked)
	}

	return nil
}

// parkedPage are the next $4 waiting rows after a place in the order of names, and the parked ones of a shard among them.
// CASE hides the condition from the partial indexes: by one of them a plan may read all parked rows for each row.
const parkedPage = `WITH page AS MATERIALIZED (SELECT ordering_key, event_id, state, shard FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key IS NOT NULL AND (ordering_key, event_id) > ($2, $3)
		AND ` + liveRows + ` ORDER BY ordering_key, event_id LIMIT $4),
parked AS MATERIALIZED (SELECT d.event_id FROM page AS p JOIN outbox_deliveries AS d ON d.destination = $1 AND d.event_id = p.event_id
	WHERE p.state = 'parked' AND p.shard = $5 AND CASE WHEN d.state = 'parked' AND d.shard = $5 THEN true END
		AND ($6::bigint[] IS NULL OR d.event_id = ANY($6))`

const (
	// sqlUnpark makes the parked rows of a page due, or some of them: the destination no longer keeps an order. It returns
	// the place where the page ends, NULL at the end, and how many rows it has locked and changed.
	sqlUnpark = parkedPage + ` FOR UPDATE OF d),
freed AS (UPDATE outbox_deliveries AS d SET state = 'retry', available_at = now(), updated_at = now()
	FROM parked AS p WHERE d.destination = $1 AND d.event_id = p.event_id RETURNING 1)
SELECT ` + endOfPage + `, (SELECT count(*) FROM parked), (SELECT count(*) FROM freed) FROM page`
	sqlParked = parkedPage + `) SELECT ` + endOfPage + `,
		(SELECT coalesce(array_agg(event_id ORDER BY event_id), '{}') FROM parked) FROM page`
	endOfPage = `(array_agg(ordering_key ORDER BY ordering_key DESC, event_id DESC))[1],
	coalesce((array_agg(event_id ORDER BY ordering_key DESC, event_id DESC))[1], 0)`
)

// release makes rows due that waited in another order, and reports those whose write the database refuses or ignores. They
// stay until a search for restored rows releases them.
func (l *loader) release(ctx context.Context, conn *session.Conn) error {
	release := l.unname
	if !l.order.kept {
		release = l.unpark
	}

	refused, err := release(ctx, conn)
	if err != nil {
		return err
	}

	before := l.stored.due.Restored.Unreleased
	part := l.reportAs + ", former order"
	now := make(map[int64]bool, len(refused))
	for _, r := range refused {
		now[r.Item] = true
		if !before[r.Item] {
			withheld.Log(ctx, l.e.log, r.Item, l.name, r.Err)
		}
	}

	l.stored.due.Restored.Unreleased = now

	switch {
	case len(refused) > 0:
		l.e.report(part, &withheld.Error{Event: refused[0].Item, N: len(refused), Err: refused[0].Err})
	case len(before) > 0:
		l.e.accepted(part)
	}

	return nil
}

// inHalves writes some rows after a write of all of them was refused.
func (l *loader) inHalves(ctx context.Context, conn *session.Conn, ids []int64, write func(tx pgx.Tx, some []int64) error) ([]session.Refused[int64], error) {
	if err := l.write(ctx, conn, func(pgx.Tx) error { return nil }); err != nil {
		return nil, err // the position is refused
	}
	return session.InHalves(ids, func(some []int64) error {
		return l.write(ctx, conn, func(tx pgx.Tx) error { return write(tx, some) })
	})
}

func (l *loader) unpark(ctx context.Context, conn *session.Conn) (refused []session.Refused[int64], err error) {
	type place struct {
		key *string
		id  int64
	}

	var next place
	for at := (place{new(string), math.MinInt64}); at.key != nil; at = next {
		page := []any{l.name, *at.key, at.id, walkPage, l.order.shard}
		write := func(tx pgx.Tx, some []int64) error {
			var locked, changed int64
			err := tx.QueryRow(ctx, sqlUnpark, append(slices.Clone(page), some)...).Scan(&next.key, &next.id, &locked, &changed)
			return cmp.Or(err, session.CheckChanged("unpark", changed, locked))
		}

		err := l.write(ctx, conn, func(tx pgx.Tx) error { return write(tx, nil) })
		if session.IsOfRow(err) {
			var ids []int64
			var end place
			var some []session.Refused[int64]
			err = conn.QueryRow(ctx, sqlParked, append(slices.Clone(page), []int64(nil))...).Scan(&end.key, &end.id, &ids)
			if err == nil {
				some, err = l.inHalves(ctx, conn, ids, write)
			}

			refused = append(refused, some...)
			next = end
		}

		if err != nil {
			return nil, fmt.Errorf("release the parked deliveries of %q: %w", l.name, err)
		}
	}

	return refused, nil
}

// totalPage are the next $2 waiting rows of a former total order after an event.
const totalPage = `SELECT event_id FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key = '` + totalName + `' AND ` + liveRows + ` AND event_id > $3
		AND ($4::bigint[] IS NULL OR event_id = ANY($4)) ORDER BY event_id LIMIT $2`

// sqlUnname takes a page of rows of events without an aggregate, or some of them, out of the queue of a former total order.
// These rows no longer wait for each other. A dead letter keeps its name, which means nothing in another order. It returns
// how many rows it has locked and changed.
const sqlUnname = `WITH page AS MATERIALIZED (` + totalPage + ` FOR UPDATE),
freed AS (UPDATE outbox_deliveries AS d SET ordering_key = NULL, updated_at = now(),
		available_at = CASE state WHEN 'parked' THEN now() ELSE available_at END, state = 'retry'
	FROM page AS p WHERE d.destination = $1 AND d.event_id = p.event_id RETURNING 1)
SELECT count(*), (SELECT count(*) FROM freed) FROM page`

func (l *loader) unname(ctx context.Context, conn *session.Conn) (refused []session.Refused[int64], err error) {
	if l.order.shard > 1 {
		return nil, nil // the first shard unnames the rows of all shards
	}

	after := int64(math.MinInt64)
	for {
		var ids []int64
		rows, err := conn.Query(ctx, totalPage, l.name, walkPage, after, []int64(nil))
		if err == nil {
			ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		}

		if err == nil && len(ids) > 0 {
			from := after
			write := func(tx pgx.Tx, some []int64) error {
				var locked, changed int64
				err := tx.QueryRow(ctx, sqlUnname, l.name, walkPage, from, some).Scan(&locked, &changed)
				return cmp.Or(err, session.CheckChanged("unname", changed, locked))
			}

			err = l.write(ctx, conn, func(tx pgx.Tx) error { return write(tx, ids) })
			if session.IsOfRow(err) {
				var some []session.Refused[int64]
				some, err = l.inHalves(ctx, conn, ids, write)
				refused = append(refused, some...)
			}

			after = ids[len(ids)-1]
		}

		if err != nil {
			return nil, fmt.Errorf("release the deliveries of %q that have no aggregate: %w", l.name, err)
		}
		if len(ids) < walkPage {
			return refused, nil
		}
	}
}
