package stream

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/aggregates"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

const (
	// walkPage is how many rows one statement walks over, and headsPage how many lines one skips
	// through: some milliseconds each, and some seconds if each row has to be fetched from a slow
	// disk.
	walkPage  = 5000
	headsPage = 2000
	// longLine is the average number of rows of a line from which on skipping from line to line is
	// faster, with two index descents for each.
	longLine = 16
)

// The rows of a line are in two indexes: those that wait, and the dead letters, of which there may be
// any number. Each statement says which it reads, in the words of the index.
const (
	whichLive = `state IN ('retry', 'parked')`
	whichDead = `state = 'dead'`
)

// sqlWalk reads the first row of each line after a name, among the next $3 rows in the order of lines.
func sqlWalk(which string) string {
	return `SELECT key, state, shard
FROM (SELECT DISTINCT ON (key) key, state, shard
	FROM (SELECT ordering_key AS key, event_id, state, shard FROM outbox_deliveries
		WHERE destination = $1 AND ordering_key > $2 AND ` + which + ` ORDER BY ordering_key, event_id LIMIT $3) AS page
	ORDER BY key, event_id) AS line
ORDER BY key`
}

// sqlHeads reads the first row of each line after a name, up to $3 lines, by skipping from name to
// name in the index.
func sqlHeads(which string) string {
	return `WITH RECURSIVE line(key, state, shard, n) AS (
	(SELECT ordering_key, state, shard, 1 FROM outbox_deliveries WHERE destination = $1 AND ordering_key > $2 AND ` + which + ` ORDER BY ordering_key, event_id LIMIT 1)
	UNION ALL
	SELECT d.ordering_key, d.state, d.shard, line.n + 1
	FROM line CROSS JOIN LATERAL (SELECT ordering_key, state, shard FROM outbox_deliveries
		WHERE destination = $1 AND ordering_key > line.key AND ` + which + ` ORDER BY ordering_key, event_id LIMIT 1) AS d
	WHERE line.n < $3)
SELECT key, state, shard FROM line`
}

// loader finds what is stored of a destination when its unit is taken over. It owns nothing: what it finds
// goes on the shelf and into the lane, and what it writes through the unit. It lives for one call, on the
// unit's goroutine.
type loader struct {
	*common

	order  *order
	shelf  *shelf
	reader *tail.Reader // where the unit begins
	write  func(ctx context.Context, conn *session.Conn, f func(pgx.Tx) error) error
}

// load blocks the aggregates with stored deliveries, before any later event of them is read.
// Some lines wait behind nothing that is stored: the previous relay did not get to them, or the
// event in front was in its memory, and is open. So they continue only when all events that are
// open, or come before them, have been read.
//
// Dead letters come first where they block: one that a person replays meanwhile is found by the
// second search. Where they do not block, none is read.
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
		if err := l.loadLines(ctx, conn, whichDead); err != nil {
			return err
		}
	}
	return l.loadLines(ctx, conn, whichLive)
}

// loadLines walks over all rows of one kind, which is some five times as fast as skipping from line to
// line if lines are short. After a page of long ones it skips through a page, and tries again.
func (l *loader) loadLines(ctx context.Context, conn *session.Conn, which string) error {
	for after, walks := "", true; ; {
		query, page := sqlHeads(which), headsPage
		if walks {
			query, page = sqlWalk(which), walkPage
		}
		lines, last, err := l.loadPage(ctx, conn, query, after, page)
		switch {
		case err != nil:
			return fmt.Errorf("load the stored lines of %q: %w", l.name, err)
		case lines == 0, !walks && lines < headsPage:
			return nil
		}
		after, walks = last, !walks || lines > walkPage/longLine
	}
}

// loadPage returns how many lines it has loaded, and the name of the last one.
func (l *loader) loadPage(ctx context.Context, conn *session.Conn, query, after string, page int) (lines int, last string, err error) {
	rows, err := conn.Query(ctx, query, pgx.QueryResultFormats{pgx.TextFormatCode}, l.name, after, page)
	if err != nil {
		return 0, "", err
	}
	defer rows.Close()
	for rows.Next() {
		values := rows.RawValues()
		lines, last = lines+1, string(values[0])
		if l.order.unnamed(last) || string(values[2]) != strconv.Itoa(l.order.shard) {
			continue // a dead letter that has the name from a total order, or an aggregate of another shard
		}
		key := l.order.keys.Named(last)
		l.lane.SetRows(key, dispatch.SomeRows)
		if deliveries.State(values[1]) == deliveries.Parked {
			l.shelf.aggregates.Move(key, last, aggregates.Parked)
			l.shelf.early = max(l.shelf.early, l.reader.Head())
		}
	}
	return lines, last, rows.Err()
}

// sqlTotal reads whether any row of a total order waits, whether the first one is parked, and whether any is, or any row has no
// name: where more than $2 rows wait, one of them may be. Of dead letters it reads the first one, if they block.
func sqlTotal(o *order) string {
	live, _ := o.rows("event_id, state", "$1", "", "$2 + 1")
	_, dead := o.rows("event_id, state", "$1", "", "1")
	return `SELECT count(*) > 0, coalesce((array_agg(state ORDER BY event_id))[1] = 'parked', false),
	coalesce(bool_or(state = 'parked') OR count(*) > $2, false) OR (SELECT coalesce(bool_or(ordering_key IS NULL), false) OR count(*) > $2
		FROM (SELECT ordering_key FROM outbox_deliveries WHERE destination = $1 AND state = 'retry' ORDER BY available_at, event_id LIMIT $2 + 1) AS r)
FROM (` + live + ` UNION ALL (SELECT * FROM ` + dead + ` AS x WHERE $3)) AS u`
}

// loadTotal holds a total order if anything is stored of it. A parked row may come from another order, and
// may have to wait for events that are open; so may a row without a name, which joins the queue when it is due.
func (l *loader) loadTotal(ctx context.Context, conn *session.Conn) error {
	var waits, first, joins bool
	if err := conn.QueryRow(ctx, sqlTotal(l.order), l.name, walkPage, l.lane.Destination().Blocks()).Scan(&waits, &first, &joins); err != nil {
		return fmt.Errorf("load the stored deliveries of %q: %w", l.name, err)
	}
	if joins && l.reader.Gaps().Len() > 0 {
		l.shelf.early = l.reader.Head()
	}
	if !waits {
		return nil
	}
	l.lane.SetRows(l.order.line, dispatch.SomeRows)
	if first {
		l.shelf.aggregates.Move(l.order.line, totalName, aggregates.Parked)
	}
	return nil
}

// sqlUnpark makes the parked rows due among the next $4 that wait in the order of names after a place: order is not kept any
// more. It returns the place where it has ended, NULL at the end.
const sqlUnpark = `WITH page AS MATERIALIZED (SELECT ordering_key, event_id, state FROM outbox_deliveries
	WHERE destination = $1 AND (ordering_key, event_id) > ($2, $3) AND ` + whichLive + ` ORDER BY ordering_key, event_id LIMIT $4),
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

// sqlUnname frees up to $2 rows of events without an aggregate from the queue of a total order, which is not kept any more:
// each of them waits for none. A dead letter keeps its name, which says nothing in another order.
const sqlUnname = `UPDATE outbox_deliveries SET ordering_key = NULL, updated_at = now(),
	available_at = CASE state WHEN 'parked' THEN now() ELSE available_at END, state = 'retry'
WHERE (event_id, destination) IN (SELECT event_id, destination FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key = '` + totalName + `' AND ` + whichLive + ` ORDER BY event_id LIMIT $2) AND ` + whichLive

func (l *loader) unname(ctx context.Context, conn *session.Conn) error {
	if l.order.shard > 1 {
		return nil // the first shard does, for all
	}
	for n := int64(walkPage); n == walkPage; {
		var is bool
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE destination = $1 AND ordering_key = '`+totalName+`' AND `+whichLive+`)`, l.name).Scan(&is)
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
