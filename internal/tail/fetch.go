package tail

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

// fetch is one read. The reader applies its result once it is complete.
type fetch struct {
	query Query
	began uint64 // count of the WriterScanner
	limit int
	above int64 // rows above the head begin after this id
	upto  int64
	every []gap   // gaps that the query reaches
	gaps  []gap   // gaps that are read
	xids  []int64 // transactions for which the other ids wait
	head  int64   // the highest id so far
	ended bool    // one of these transactions has ended
	took  time.Duration

	decoder   wire.Events
	batch     Batch
	hits      []int64       // ids in gaps, in order
	missing   []idset.Range // new gaps
	last      int64         // id of the last row that was processed
	rows      int           // rows received
	size      int           // bytes received
	truncated bool          // rows were received and not processed
	holds     bool          // the transaction holds the table: no partition is detached or rewritten meanwhile
	detached  idset.Set     // ids that lie in no partition, if holds
	refused   error         // why the only event was read without its payload, and must not be delivered
}

// Each statement reads the primary key from a bound, and no more rows than it returns.
const (
	// LIMIT stops the planner from flattening the inner query, so that each type is searched once. Unwanted values are
	// not even fetched from TOAST.
	sqlSkip = wire.EventSource + `, event_type = ANY($4::text[]) AS skip`

	sqlHead  = ` FROM outbox_events WHERE id > $1::bigint AND id <= $2::bigint`
	sqlOrder = ` ORDER BY id LIMIT $3::bigint`
	// An id that the sequence has not assigned was chosen by a writer. Ids below it are still to come, so the head must
	// not pass it. The statement reads the sequence once, after its snapshot, and only if there is a row: the condition
	// does not bound a scan of the index. So the last id covers all ids of visible rows.
	sqlAssigned = ` AND CASE WHEN id > $1::bigint THEN id <= (SELECT id FROM outbox_last_id) END`
	// One statement, because it has one snapshot. With two, two events of an aggregate may be committed between them,
	// the first in a gap and the second above the head: the second would come alone. The gaps are below the head and
	// come first; nothing is sorted.
	sqlGaps = `SELECT e.* FROM unnest($%[2]d::bigint[], $%[3]d::bigint[]) AS g(low, high)
		CROSS JOIN LATERAL (SELECT %[1]s FROM outbox_events WHERE id >= g.low AND id <= g.high ORDER BY id LIMIT $3::bigint) AS e
		UNION ALL (SELECT %[1]s`
)

// shape distinguishes the statements of a reader: with or without gaps, skipped types, and a shard; whether the read
// may pass the ids known to be assigned (beyond), and leaves out ids that wait for transactions (waits); and up to which
// size events are read.
type shape struct {
	gaps, skip, shard, beyond, waits bool
	limit                            int
}

// name returns the name of the prepared statement. All reads of a connection have one limit, except reads of events
// that cannot be read.
func (s shape) name() string {
	name := "stream"
	if s.gaps {
		name += "_gaps"
	}
	if s.skip {
		name += "_skip"
	}
	if s.shard {
		name += "_shard"
	}

	if s.beyond {
		name += "_beyond"
	}
	if s.waits {
		name += "_waits"
	}
	if s.limit < 0 {
		name += fmt.Sprint("_careful", -s.limit)
	}

	return name
}

// firstParam returns the number of the first parameter after those that select the events.
func (s shape) firstParam() int {
	switch {
	case s.shard:
		return 7
	case s.skip:
		return 5
	default:
		return 4
	}
}

// ended returns the begin of the rows: a row without an id if one of the transactions has ended in the snapshot of the
// statement. Then the events that it has committed are visible to the statement, but among the ids that it leaves out.
func (s shape) ended(source string) string {
	if !s.waits {
		return ""
	}

	n := s.firstParam()
	if s.gaps {
		n += 2
	}

	return `SELECT ` + source + fmt.Sprintf(` FROM (SELECT WHERE EXISTS
		(SELECT FROM pg_current_snapshot() AS now, unnest($%d::bigint[]) AS x
			WHERE pg_visible_in_snapshot(x::text::xid8, now))) AS ended LEFT JOIN outbox_events ON false
		UNION ALL `, n)
}

// rows returns the rows of the statement.
func (s shape) rows(source string) string {
	head := sqlHead + sqlOrder
	if s.beyond {
		head = sqlHead + sqlAssigned + sqlOrder
	}

	first := s.firstParam()
	switch {
	case s.gaps:
		return s.ended(source) + fmt.Sprintf(sqlGaps, source, first, first+1) + head + `) LIMIT $3::bigint`
	case s.waits:
		return s.ended(source) + `(SELECT ` + source + head + `)`
	default:
		return `SELECT ` + source + head
	}
}

// statement returns the statement.
func (s shape) statement() string {
	limit := s.limit
	columns := wire.EventColumns("", limit)
	if s.shard {
		return s.statementOfShard(append(columns, `hash`))
	}

	if s.skip {
		wanted := `SELECT id, CASE WHEN NOT skip THEN ` + strings.Join(columns, ` END, CASE WHEN NOT skip THEN `) + ` END FROM (`
		return wanted + s.rows(sqlSkip+`, `+wire.EventBytes(limit, " AND event_type <> ALL($4::text[])")+` AS bytes`) + `) AS e`
	}

	return `SELECT id, ` + strings.Join(columns, ", ") + `
		FROM (` + s.rows(wire.EventSource+`, `+wire.EventBytes(limit, "")+` AS bytes`) + `) AS e`
}

// statementOfShard returns the statement of a shard. The list of skipped types may be empty.
func (s shape) statementOfShard(columns []string) string {
	hash := pgschema.Hash("")
	source := wire.EventSource + `, event_type = ANY($4::text[]) OR ` + hash + ` % $5::bigint <> $6::bigint AS skip, ` +
		wire.EventBytes(s.limit, ` AND event_type <> ALL($4::text[])
			AND `+hash+` % $5::bigint = $6::bigint`) + ` AS bytes, ` + hash + ` AS hash`
	return `SELECT id, CASE WHEN NOT skip THEN ` + strings.Join(columns, ` END, CASE WHEN NOT skip THEN `) + ` END
		FROM (` + s.rows(source) + `) AS e`
}

// shape returns the shape of the fetch's statement.
func (p *fetch) shape() shape {
	return shape{
		gaps:   len(p.gaps) > 0,
		skip:   len(p.query.Skip) > 0,
		shard:  p.query.Shard.Of > 0,
		beyond: p.upto > max(p.head, p.query.Assigned),
		waits:  len(p.xids) > 0,
		limit:  p.query.EventBytes,
	}
}

// read runs the statement of its shape. If an event cannot be read, it reads fewer, and then that event alone without
// its payload. If ids that were left out need no longer wait, it reads again, with them.
func (p *fetch) read(ctx context.Context, conn *session.Conn, g *gaps, statement func(shape) string) error {
	began := time.Now()
	begin := *p
	retreat := func() error {
		_, err := wire.Retreat(p.limit, p.query.EventBytes, func(c wire.Care) error {
			*p = begin
			p.limit = c.Rows
			p.query.EventBytes = c.EventBytes
			p.refused = c.Why
			return p.run(ctx, conn, g, statement(p.shape()))
		})
		return err
	}

	err := retreat()
	if err == nil && p.ended {
		begin.reachEvery()
		*p = begin
		err = retreat()
		p.ended = true
	}

	p.took = time.Since(began)
	return err
}

// reachEvery makes the fetch read all that its query reaches.
func (p *fetch) reachEvery() {
	p.gaps = p.every
	p.above = p.head
	p.xids = nil
	if n := len(p.gaps); n > 0 && p.query.Reach == ReachFirstGap {
		p.upto = p.gaps[n-1].To
	}
}

// run runs the statement of its shape, within a bounded time. It does not end with ctx.
func (p *fetch) run(ctx context.Context, conn *session.Conn, g *gaps, sql string) error {
	late := fmt.Errorf("the database did not answer within %v", readTimeout)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), readTimeout, late)
	defer cancel()

	params := [][]byte{wire.Int8(p.above), wire.Int8(p.upto), wire.Int8(int64(p.limit))}
	formats := wire.EventFormats()

	if shard := p.query.Shard; shard.Of > 0 {
		params = append(params, wire.TextArray(p.query.Skip), wire.Int8(int64(shard.Of)), wire.Int8(int64(shard.Number)))
		formats = append(formats, wire.Binary)
	} else if len(p.query.Skip) > 0 {
		params = append(params, wire.TextArray(p.query.Skip))
	}

	if len(p.gaps) > 0 {
		low, high := g.params(p.gaps)
		params = append(params, low, high)
	}

	if len(p.xids) > 0 {
		params = append(params, wire.AppendInt8Array(nil, p.xids))
	}

	begin := ""
	if p.holds {
		begin = "BEGIN ISOLATION LEVEL REPEATABLE READ"
	}

	return conn.Raw(ctx, begin, p.shape().name(), func(name string) error {
		if p.holds {
			if err := p.hold(ctx, conn); err != nil {
				return err
			}
		}

		prepared, err := conn.Prepare(ctx, name, sql) // once per connection, if it is direct
		if err != nil {
			return err
		}

		rows := conn.PgConn().ExecStatement(ctx, prepared, params, wire.AllBinary(), formats)
		err = p.take(rows)
		if _, cerr := rows.Close(); cerr != nil { // it reads to the end
			return cerr
		}

		return err
	})
}

// sqlHold locks outbox_events and its partitions until the end of the transaction, and reports whether it has any. The
// snapshot is taken while the locks are held. DETACH ... CONCURRENTLY does not wait for the lock, but an older snapshot
// still has the partition. pg_repack rewrites a table as a new transaction: a snapshot from before its end lacks rows. A
// read of gaps locks all partitions anyway.
const sqlHold = `LOCK TABLE outbox_events IN ACCESS SHARE MODE; SELECT relkind = 'p' FROM pg_class WHERE oid = 'outbox_events'::regclass`

// hold locks the table, and finds the ids that lie in no partition at the moment of the transaction. It asks each time
// whether there are partitions, because a table may be partitioned while relays use it.
func (p *fetch) hold(ctx context.Context, conn *session.Conn) error {
	results, err := conn.PgConn().Exec(ctx, sqlHold).ReadAll()
	if err != nil || string(results[len(results)-1].Rows[0][0]) == "f" {
		return err
	}

	results, err = conn.PgConn().Exec(ctx, `SELECT outbox_away()`).ReadAll()
	if err != nil {
		return err
	}

	p.detached, err = idset.Parse(string(results[0].Rows[0][0]))
	return err
}

func (p *fetch) take(rows *pgconn.ResultReader) error {
	for rows.NextRow() {
		row := rows.Values()

		p.ended = p.ended || row[wire.ColumnID] == nil
		if p.ended {
			continue
		}

		n := wire.Size(row)
		p.rows++
		p.size += n

		p.truncated = p.truncated || p.full(row, n)
		if p.truncated {
			continue // read the rest without processing it
		}

		id, err := wire.DecodeInt8(row[wire.ColumnID])
		if err != nil {
			return err
		}
		if err := p.place(id); err != nil {
			return err
		}

		p.batch.Seen++
		if row[wire.ColumnType] == nil {
			continue
		}

		p.batch.Bytes += n
		if err := p.keep(id, row); err != nil {
			return err
		}
	}
	return nil
}

// full reports whether a row of this size exceeds the bound.
func (p *fetch) full(row [][]byte, n int) bool {
	return len(p.batch.Events) >= max(1, p.query.Limit) && row[wire.ColumnType] != nil ||
		p.query.Bytes > 0 && len(p.batch.Events) > 0 && p.batch.Bytes+n > p.query.Bytes
}

// place puts an id into its gap, or above the head.
func (p *fetch) place(id int64) error {
	if id <= p.last {
		return fmt.Errorf("%w: %d came after %d", ErrOrder, id, p.last)
	}

	p.last = id
	if id > p.head {
		if id > p.head+1 {
			p.missing = append(p.missing, idset.Range{From: p.head + 1, To: id - 1})
		}
		p.head = id
		return nil
	}

	for len(p.gaps) > 0 && p.gaps[0].To < id {
		p.gaps = p.gaps[1:]
	}
	if len(p.gaps) == 0 || p.gaps[0].From > id {
		return fmt.Errorf("%w: %d is in no gap", ErrOrder, id)
	}

	p.hits = append(p.hits, id)
	return nil
}

func (p *fetch) keep(id int64, row [][]byte) error {
	b := &p.batch
	b.Events = append(b.Events, delivery.Event{ID: id})
	if err := p.decoder.Decode(&b.Events[len(b.Events)-1], row); err != nil {
		return err
	}

	b.Clock = p.decoder.Clock
	if err := cmp.Or(p.refused, wire.TooLarge(row[wire.ColumnBytes], p.query.EventBytes)); err != nil {
		if b.Refused == nil {
			b.Refused = make(map[int64]error)
		}
		b.Refused[id] = err
	}

	if p.query.Shard.Of > 0 {
		hash, err := wire.DecodeInt8(row[wire.EventWidth])
		if err != nil {
			return err
		}
		b.Hashes = append(b.Hashes, hash)
	}

	if row[wire.ColumnDelay] != nil {
		wait, err := wire.DecodeDelay(row[wire.ColumnDelay])
		if err != nil {
			return err
		}
		if b.Delays == nil {
			b.Delays = make([]time.Duration, len(b.Events)-1, cap(b.Events))
		}

		b.Delays = append(b.Delays, wait)
	} else if b.Delays != nil {
		b.Delays = append(b.Delays, 0)
	}

	return nil
}
