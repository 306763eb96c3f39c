package stream

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// walkPage is how many rows one statement walks over, and headsPage how many lines one
	// skips through: some milliseconds each, and some seconds where each row has to be
	// fetched from a slow disk.
	walkPage  = 5000
	headsPage = 2000
	// longLine is how many rows a line has on average from where on to skip from line to line,
	// with two descents in the index for each, is the shorter way.
	longLine = 16
)

// sqlWalk reads the first row of each line behind a name, whatever its state, among the
// next $3 rows in the order of lines.
const sqlWalk = `SELECT key, event_id, state
FROM (SELECT DISTINCT ON (key) key, event_id, state
	FROM (SELECT ordering_key AS key, event_id, state FROM outbox_deliveries
		WHERE destination = $1 AND ordering_key > $2 ORDER BY ordering_key, event_id LIMIT $3) AS page
	ORDER BY key, event_id) AS line
ORDER BY key`

// sqlHeads reads the first row of each line behind a name, up to $3 lines, skipping
// from name to name in the index. Lines of dead letters that block nobody have none.
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

// loadLines blocks the aggregates of which something is stored, before anything is
// read that comes after it. Some lines wait behind nothing that is stored: the relay
// before did not come to it, or what is in front was in its memory, and is open. So they are
// gone on with only when everything that is open, or comes before them, was read.
//
// It walks over all rows, which is some five times as fast as to skip from line to line where
// lines are short. Behind a page of long ones, and where a line begins with a dead letter
// that blocks nobody, it skips through a page, and tries again.
func (u *unit) loadLines(ctx context.Context, conn *pgx.Conn) error {
	if !u.lane.Ordered() {
		return u.unpark(ctx, conn)
	}
	u.e.loading.Add(1)
	defer u.e.loading.Add(-1)
	for after, walks := "", true; ; {
		query, args := sqlHeads, []any{u.name, after, headsPage, u.lane.Blocks()}
		if walks {
			query, args = sqlWalk, []any{u.name, after, walkPage}
		}
		p, err := u.loadPage(ctx, conn, query, args...)
		switch {
		case err != nil:
			return fmt.Errorf("read what is stored of %q: %w", u.name, err)
		case walks && p.lines == 0 && !p.dead, !walks && p.lines < headsPage:
			return nil
		case p.lines > 0:
			after = p.last
		}
		walks = !walks || !p.dead && p.lines > walkPage/longLine
	}
}

// linePage is a page of lines that was loaded.
type linePage struct {
	lines int
	last  string // name of the last of them
	dead  bool   // the one behind it begins with a dead letter that blocks nobody
}

func (u *unit) loadPage(ctx context.Context, conn *pgx.Conn, query string, args ...any) (p linePage, err error) {
	rows, err := conn.Query(ctx, query, args...)
	if err != nil {
		return p, err
	}
	defer rows.Close()
	for rows.Next() {
		values := rows.RawValues() // name, id, state: text is the same in both formats
		name, state := values[0], values[2]
		if string(state) == stateDead && !u.lane.Blocks() {
			p.dead = true
			return p, nil
		}
		p.lines, p.last = p.lines+1, string(name)
		if state == nil {
			continue
		}
		key := u.e.keys.Named(p.last)
		u.lane.Block(key)
		if string(state) == stateParked {
			var id int64
			if err := rows.Scan(nil, &id, nil); err != nil {
				return p, err
			}
			u.shelf.doubtful[key], u.early = p.last, max(u.early, id)
		}
	}
	return p, rows.Err()
}

// sqlUnpark makes up to 5,000 rows due that wait behind others of their aggregate: order
// is not kept any more. It returns as many rows as there were.
const sqlUnpark = `WITH page AS MATERIALIZED (SELECT event_id FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key IS NOT NULL AND state = 'parked' LIMIT 5000)
UPDATE outbox_deliveries AS d SET state = 'retry', available_at = now(), updated_at = now()
FROM page WHERE d.destination = $1 AND d.event_id = page.event_id`

func (u *unit) unpark(ctx context.Context, conn *pgx.Conn) error {
	for {
		var tag pgconn.CommandTag
		err := u.owned(ctx, conn, func(tx pgx.Tx) (err error) {
			tag, err = tx.Exec(ctx, sqlUnpark, u.name)
			return err
		})
		if err != nil {
			return fmt.Errorf("let go what waits at %q: %w", u.name, err)
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
	}
}
