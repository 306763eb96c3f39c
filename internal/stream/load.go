package stream

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/aggregates"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	outboxsql "github.com/notifyd/notifyd/sql"
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
	return rowKind{deadRows, outboxsql.NumberOfName("key", shards)}
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
	(SELECT ordering_key, state, shard, 1 FROM outbox_deliveries WHERE destination = $1 AND ordering_key > $2 AND ` + k.which + ` ORDER BY ordering_key, event_id LIMIT 1)
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
		return l.unpark(ctx, conn)
	case l.order.total:
		return l.loadTotal(ctx, conn)
	}
	if err := l.unname(ctx, conn); err != nil {
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
		query, page := sqlHeads(k), headsPage
		if walks {
			query, page = sqlWalk(k), walkPage
		}
		queues, last, err := l.loadPage(ctx, conn, query, after, page)
		switch {
		case err != nil:
			return fmt.Errorf("load the stored queues of %q: %w", l.name, err)
		case queues == 0, !walks && queues < headsPage:
			return nil
		}
		after, walks = last, !walks || queues > walkPage/longQueue
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
		queues, last = queues+1, string(values[0])
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
		FROM (SELECT ordering_key FROM outbox_deliveries WHERE destination = $1 AND state = 'retry' ORDER BY available_at, event_id LIMIT $2 + 1) AS r)
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

	query, args := sqlWalk(liveKind()), []any{l.name, search.After, walkPage}
	if l.order.total {
		query, args = sqlFirstOfTotal(l.order), args[:1]
	}
	found, last := false, ""
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
	if found && !l.order.kept {
		return l.unpark(ctx, conn)
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
	if err := conn.QueryRow(ctx, sqlTotal(l.order), l.name, walkPage, l.lane.Destination().Blocks()).Scan(&waits, &first, &joins); err != nil {
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

// sqlUnpark makes the parked rows due among the next $4 waiting rows after a place in the order of names: the
// destination no longer keeps an order. It returns the place where it has ended, NULL at the end.
const sqlUnpark = `WITH page AS MATERIALIZED (SELECT ordering_key, event_id, state FROM outbox_deliveries
	WHERE destination = $1 AND (ordering_key, event_id) > ($2, $3) AND ` + liveRows + ` ORDER BY ordering_key, event_id LIMIT $4),
freed AS (UPDATE outbox_deliveries AS d SET state = 'retry', available_at = now(), updated_at = now()
	FROM page AS p WHERE p.state = 'parked' AND d.destination = $1 AND d.event_id = p.event_id AND d.shard = $5)
SELECT (array_agg(ordering_key ORDER BY ordering_key DESC, event_id DESC))[1],
	coalesce((array_agg(event_id ORDER BY ordering_key DESC, event_id DESC))[1], 0) FROM page`

func (l *loader) unpark(ctx context.Context, conn *session.Conn) error {
	key, id := new(string), int64(math.MinInt64)
	for key != nil {
		err := l.write(ctx, conn, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, sqlUnpark, l.name, *key, id, walkPage, l.order.shard).Scan(&key, &id)
		})
		if err != nil {
			return fmt.Errorf("release the parked deliveries of %q: %w", l.name, err)
		}
	}
	return nil
}

// sqlUnname takes up to $2 rows of events without an aggregate out of the queue of a former total order. These rows no
// longer wait for each other. A dead letter keeps its name, which means nothing in another order.
const sqlUnname = `UPDATE outbox_deliveries SET ordering_key = NULL, updated_at = now(),
	available_at = CASE state WHEN 'parked' THEN now() ELSE available_at END, state = 'retry'
WHERE (event_id, destination) IN (SELECT event_id, destination FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key = '` + totalName + `' AND ` + liveRows + ` ORDER BY event_id LIMIT $2) AND ` + liveRows

func (l *loader) unname(ctx context.Context, conn *session.Conn) error {
	if l.order.shard > 1 {
		return nil // the first shard unnames the rows of all shards
	}
	for n := int64(walkPage); n == walkPage; {
		var is bool
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE destination = $1 AND ordering_key = '`+totalName+`' AND `+liveRows+`)`, l.name).Scan(&is)
		if err == nil && !is {
			return nil
		}
		if err == nil {
			err = l.write(ctx, conn, func(tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, sqlUnname, l.name, walkPage)
				n = tag.RowsAffected()
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("release the deliveries of %q that have no aggregate: %w", l.name, err)
		}
	}
	return nil
}
