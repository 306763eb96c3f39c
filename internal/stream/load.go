package stream

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

// sqlWalk reads the first row of each line after a name, whatever its state, among the next $3 rows
// in the order of lines.
const sqlWalk = `SELECT key, event_id, state
FROM (SELECT DISTINCT ON (key) key, event_id, state
	FROM (SELECT ordering_key AS key, event_id, state FROM outbox_deliveries
		WHERE destination = $1 AND ordering_key > $2 ORDER BY ordering_key, event_id LIMIT $3) AS page
	ORDER BY key, event_id) AS line
ORDER BY key`

// sqlHeads reads the first row of each line after a name, up to $3 lines, by skipping from name to
// name in the index. Lines of only non-blocking dead letters have none.
const sqlHeads = `WITH RECURSIVE line(key, n) AS (
	(SELECT ordering_key, 1 FROM outbox_deliveries WHERE destination = $1 AND ordering_key > $2 ORDER BY ordering_key LIMIT 1)
	UNION ALL
	SELECT (SELECT ordering_key FROM outbox_deliveries WHERE destination = $1 AND ordering_key > line.key ORDER BY ordering_key LIMIT 1), n + 1
	FROM line WHERE line.key IS NOT NULL AND n < $3)
SELECT line.key, d.event_id, d.state FROM line
LEFT JOIN LATERAL (SELECT event_id, state FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key = line.key AND (state IN ('retry', 'parked') OR $4 AND state = 'dead')
	ORDER BY event_id LIMIT 1) AS d ON true
WHERE line.key IS NOT NULL`

// loader finds what is stored of a destination when its unit is taken over. It owns nothing: what it finds
// goes on the shelf and into the lane, and what it writes through the unit. It lives for one call, on the
// unit's goroutine.
type loader struct {
	*common

	order  *order
	shelf  *shelf
	reader *Reader // where the unit begins
	write  owned
}

// load blocks the aggregates with stored deliveries, before any later event of them is read.
// Some lines wait behind nothing that is stored: the previous relay did not get to them, or the
// event in front was in its memory, and is open. So they continue only when all events that are
// open, or come before them, have been read.
//
// It walks over all rows, which is some five times as fast as skipping from line to line if lines
// are short. After a page of long ones, and where a line begins with a non-blocking dead letter, it
// skips through a page, and tries again.
func (l *loader) load(ctx context.Context, conn *pgx.Conn) error {
	if !l.lane.Ordered() {
		return l.unpark(ctx, conn)
	}
	if err := l.rekey(ctx, conn); err != nil {
		return err
	}
	if l.order.total {
		return l.loadLine(ctx, conn)
	}
	l.e.loading.Add(1)
	defer l.e.loading.Add(-1)
	for after, walks := "", true; ; {
		l.round.Begin()
		query, args := sqlHeads, []any{l.name, after, headsPage, l.lane.Blocks()}
		if walks {
			query, args = sqlWalk, []any{l.name, after, walkPage}
		}
		p, err := l.loadPage(ctx, conn, query, args...)
		switch {
		case err != nil:
			return fmt.Errorf("load the stored lines of %q: %w", l.name, err)
		case walks && p.lines == 0 && !p.dead, !walks && p.lines < headsPage:
			return nil
		case p.lines > 0:
			after = p.last
		}
		walks = !walks || !p.dead && p.lines > walkPage/longLine
	}
}

// linePage is a page of loaded lines.
type linePage struct {
	lines int
	last  string // name of the last of them
	dead  bool   // the next line begins with a non-blocking dead letter
}

func (l *loader) loadPage(ctx context.Context, conn *pgx.Conn, query string, args ...any) (p linePage, err error) {
	rows, err := conn.Query(ctx, query, args...)
	if err != nil {
		return p, err
	}
	defer rows.Close()
	for rows.Next() {
		values := rows.RawValues() // name, id, state: text is the same in both formats
		name, state := values[0], values[2]
		if string(state) == stateDead && !l.lane.Blocks() {
			p.dead = true
			return p, nil
		}
		p.lines, p.last = p.lines+1, string(name)
		if state == nil {
			continue
		}
		key := l.order.keys.Named(p.last)
		l.lane.Block(key)
		if string(state) == stateParked {
			var id int64
			if err := rows.Scan(nil, &id, nil); err != nil {
				return p, err
			}
			l.shelf.doubtful[key], l.shelf.early = p.last, max(l.shelf.early, id)
		}
	}
	return p, rows.Err()
}

// sqlLine reads the first row of a line, and whether any is parked.
const sqlLine = `SELECT state = 'parked' OR EXISTS (SELECT FROM outbox_deliveries WHERE destination = $1 AND ordering_key = $2 AND state = 'parked'), state = 'parked'
FROM outbox_deliveries WHERE destination = $1 AND ordering_key = $2 AND (state IN ('retry', 'parked') OR $3 AND state = 'dead')
ORDER BY event_id LIMIT 1`

// loadLine holds the line of all events if anything is stored of it. A parked row may come from another order, and
// may have to wait for events that are open.
func (l *loader) loadLine(ctx context.Context, conn *pgx.Conn) error {
	var parked, first bool
	err := conn.QueryRow(ctx, sqlLine, l.name, totalName, l.lane.Blocks()).Scan(&parked, &first)
	switch {
	case isNoRows(err):
		return nil
	case err != nil:
		return fmt.Errorf("load the stored line of %q: %w", l.name, err)
	}
	l.lane.Block(l.order.line)
	if first {
		l.shelf.doubtful[l.order.line] = totalName
	}
	if parked && l.reader.Gaps().Len() > 0 {
		l.shelf.early = l.reader.Head()
	}
	return nil
}

// sqlUnpark makes up to 5,000 parked rows due: order is not kept any more. It returns the number of
// rows read.
const sqlUnpark = `WITH page AS MATERIALIZED (SELECT event_id FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key IS NOT NULL AND state = 'parked' LIMIT 5000)
UPDATE outbox_deliveries AS d SET state = 'retry', available_at = now(), updated_at = now()
FROM page WHERE d.destination = $1 AND d.event_id = page.event_id`

func (l *loader) unpark(ctx context.Context, conn *pgx.Conn) error {
	for {
		l.round.Begin()
		var tag pgconn.CommandTag
		err := l.write(ctx, conn, func(tx pgx.Tx) (err error) {
			tag, err = tx.Exec(ctx, sqlUnpark, l.name)
			return err
		})
		if err != nil {
			return fmt.Errorf("release the parked deliveries of %q: %w", l.name, err)
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
	}
}
