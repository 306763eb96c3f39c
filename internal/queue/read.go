package queue

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/wire"
)

// sqlSnapshot must run before the sweep in the same flight: the sweep then sees the writes of all transactions that
// had ended in the snapshot.
const sqlSnapshot = `SELECT pg_snapshot_xmin(s), pg_snapshot_xmax(s) FROM pg_current_snapshot() AS s`

// sqlOpenWriters is sqlSnapshot with all open transactions and the last id of the sequence.
const sqlOpenWriters = `SELECT pg_snapshot_xmin(s), pg_snapshot_xmax(s), s::text,
	(SELECT id FROM outbox_last_id) FROM pg_current_snapshot() AS s`

// sqlHighest must also run before the sweep: the sweep then sees every row that sqlHighest saw.
const sqlHighest = `SELECT id FROM outbox_events WHERE state = 'fresh' ORDER BY id DESC LIMIT 1`

// sqlFresh returns the statement that locks and reads fresh events of up to limit bytes. which has the rest of the
// condition, the order and the limit. The condition repeats the condition of the index verbatim, so the index always
// matches. The lock prevents the planner from flattening the inner query.
func sqlFresh(limit int, which, lock string) string {
	return `SELECT id, ` + strings.Join(wire.EventColumns("", limit), ", ") + `
FROM (SELECT ` + wire.EventSource + `, ` + wire.EventBytes(limit, "") + ` AS bytes
	FROM outbox_events WHERE state = 'fresh'` + which + lock + ` SKIP LOCKED) AS e`
}

// sqlDue claims due deliveries of each destination within its capacity, longest due first. The index of due
// deliveries has this order, so the statement reads no rows of other destinations. It reads none that were due before
// want.since, where earlier claims left millions of dead entries.
//
// The outer join returns a delivery whose event is missing, so that the relay makes it due later. The time is the
// time of BEGIN, as in sqlNextDue: a delivery that becomes due between the two statements must not escape both.
func sqlDue(limit int) string {
	return `SELECT ` + deliveries.Columns(limit) + `, true
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS want(destination, room, since)
CROSS JOIN LATERAL (
	SELECT * FROM outbox_deliveries
	WHERE state = 'retry' AND destination = want.destination AND available_at <= now() AND event_id <> ALL($5::bigint[])
		AND available_at >= CASE want.since WHEN 0 THEN '-infinity' ELSE 'epoch'::timestamptz + want.since * interval '1 microsecond' END
	ORDER BY available_at LIMIT want.room FOR UPDATE SKIP LOCKED) AS d
` + deliveries.Event(limit) + `
LIMIT $4::bigint`
}

// sqlNextDue returns the time until the next delivery is due, in microseconds; NULL without one.
const sqlNextDue = `SELECT (extract(epoch FROM min(least(d.available_at, clock_timestamp() + interval '100 years')) - clock_timestamp()) * 1000000)::bigint
FROM unnest($1::text[]) AS want(destination)
CROSS JOIN LATERAL (
	SELECT available_at FROM outbox_deliveries
	WHERE state = 'retry' AND destination = want.destination AND available_at > now()
	ORDER BY available_at LIMIT 1) AS d`

// Claim implements [Claimer]. It begins the transaction that Settle ends. An empty claim ends it at once.
func (s *Session) Claim(ctx context.Context, q Query) (Claimed, error) {
	if err := s.connect(ctx); err != nil {
		return Claimed{}, err
	}

	var claimed Claimed
	retreated, err := wire.Retreat(q.most(), s.options.EventBytes, func(c wire.Care) error {
		err := s.connect(ctx)
		if err == nil && c.Why != nil && !s.careful[c.EventBytes] {
			err = prepareAll(ctx, s.conn.PgConn(), s.claims(c.EventBytes))
			if err != nil {
				return s.abandon(ctx, "claim", err)
			}
			s.careful[c.EventBytes] = true
		}

		if err == nil {
			claimed, err = s.claim(ctx, q.atMost(c.Rows), c)
			if err != nil && !s.undone(ctx, err) {
				err = s.abandon(ctx, "claim", err)
			}
		}
		return err
	})
	if err != nil {
		return Claimed{}, err
	}
	claimed.Cut = claimed.Cut || retreated

	if len(claimed.Work) == 0 {
		if err := s.settle(ctx, &Settlement{}, false); err != nil {
			return Claimed{}, s.abandon(ctx, "end an empty claim", err)
		}
	}
	return claimed, nil
}

// undone rolls a claim back that failed over an unreadable event, and reports whether the session may claim again.
func (s *Session) undone(ctx context.Context, err error) bool {
	return wire.IsUnreadable(err) && !s.conn.IsClosed() && s.send(ctx, func(send sendFunc) { send(stmtRollback, anyRows) }) == nil
}

func (s *Session) claim(ctx context.Context, q Query, c wire.Care) (claimed Claimed, err error) {
	f, err := s.fly(ctx, func(f *flight) { s.queueClaim(f, q, c) })
	if err != nil {
		return claimed, err
	}
	defer func() {
		if cerr := f.close(); err == nil {
			err = cerr
		}
	}()

	if err := f.skip(); err != nil { // BEGIN
		return claimed, err
	}
	if q.Source == SourceSweep {
		err = readSnapshot(f, &claimed)
		if err != nil {
			return claimed, err
		}
	}

	if q.Highest {
		claimed.Highest, err = f.number(math.MinInt64)
		if err != nil {
			return claimed, err
		}
	}

	d := deliveries.Decoder{Events: wire.Events{Names: &s.names}, EventBytes: s.options.EventBytes, Why: c.Why}
	claimed.Work = make([]Work, 0, s.expected)
	defer func() { s.expected = len(claimed.Work) }()

	err = f.each(func(values [][]byte) (err error) {
		size := wire.Size(values)
		if len(claimed.Work) > 0 && claimed.Bytes+size > q.Bytes && q.Bytes > 0 {
			claimed.Cut = true // read on, but drop the rest
			return nil
		}
		claimed.Work = append(claimed.Work, Work{Fresh: q.Source != SourceDue})
		claimed.Bytes += size
		w := &claimed.Work[len(claimed.Work)-1]
		if w.Fresh {
			return d.Event(&w.Row, values)
		}
		w.Row, err = d.Row(values)
		return err
	})
	if err != nil || q.Source != SourceDue {
		return claimed, err
	}

	claimed.NextDue = -1
	us, err := f.number(math.MinInt64)
	if us != math.MinInt64 {
		claimed.NextDue = max(0, time.Duration(us)*time.Microsecond)
	}
	return claimed, err
}

func (s *Session) queueClaim(f *flight, q Query, c wire.Care) {
	f.send(stmtBegin, nil, nil, nil)
	if q.Source == SourceSweep {
		name := stmtSnapshot
		if q.OpenWriters {
			name = stmtOpenWriters
		}
		f.send(name, nil, nil, wire.AllBinary())
	}

	send := func(name string, args [][]byte, formats []int16) {
		f.send(named(name, c.EventBytes), args, wire.AllBinary(), formats)
	}

	switch q.Source {
	case SourceIDs:
		s.params = wire.AppendInt8Array(s.params[:0], q.IDs)
		send(stmtByIDs, s.byID(s.params, q.IDs), wire.EventFormats())
	case SourceSweep:
		if q.Highest {
			f.send(stmtHighest, nil, nil, wire.AllBinary())
		}
		name := stmtSweep
		args := [][]byte{wire.Int8(q.After), wire.Int8(int64(q.Limit)), wire.Int8(q.Upto)}
		if len(q.Skip)+len(q.Except) > 0 {
			name = stmtSweepSkip
			args = append(args, wire.TextArray(q.Skip), wire.AppendInt8Array(nil, q.Except))
		}
		send(name, args, wire.EventFormats())
	case SourceDue:
		names := make([]string, 0, len(q.Wanted))
		capacities := make([]int64, 0, len(q.Wanted))
		since := make([]int64, 0, len(q.Wanted))
		for name, capacity := range q.Wanted {
			names = append(names, name)
			capacities = append(capacities, int64(capacity))
			since = append(since, q.Since[name])
		}

		list := wire.TextArray(names)
		args := [][]byte{
			list, wire.AppendInt8Array(nil, capacities), wire.AppendInt8Array(nil, since),
			wire.Int8(int64(q.Limit)), wire.AppendInt8Array(nil, q.Except),
		}
		send(stmtDue, args, deliveries.Formats())
		f.send(stmtNextDue, [][]byte{list}, wire.AllBinary(), wire.AllBinary())
	}
}

// readSnapshot reads the result of sqlSnapshot or sqlOpenWriters.
func readSnapshot(f *flight, c *Claimed) error {
	return f.each(func(values [][]byte) error {
		low, err := wire.DecodeInt8(values[0])
		high, herr := wire.DecodeInt8(values[1])
		c.Xmin = uint64(low)  //nolint:gosec // xid8 is unsigned: only the bits matter
		c.Xmax = uint64(high) //nolint:gosec // the same
		err = cmp.Or(err, herr)
		if err == nil && len(values) > 2 {
			err = readOpenWriters(values[2:], c)
		}
		return err
	})
}

// readOpenWriters reads the rest of sqlOpenWriters. A snapshot is "xmin:xmax:open,open,...".
func readOpenWriters(values [][]byte, c *Claimed) error {
	text := string(values[0])
	for xid := range strings.SplitSeq(text[strings.LastIndexByte(text, ':')+1:], ",") {

		if xid == "" {
			continue
		}
		n, err := strconv.ParseUint(xid, 10, 64)
		if err != nil {
			return fmt.Errorf("read the snapshot %q: %w", text, err)
		}
		c.Open = append(c.Open, n)
	}

	if values[1] == nil {
		return nil
	}

	last, err := wire.DecodeInt8(values[1])
	c.LastID = &last
	return err
}
