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

// sqlSnapshot must run before the sweep in the same flight: the sweep then sees the writes of every
// transaction that the snapshot calls ended.
const sqlSnapshot = `SELECT pg_snapshot_xmin(s), pg_snapshot_xmax(s) FROM pg_current_snapshot() AS s`

// sqlDoubt is sqlSnapshot with all open transactions, and the last id of the sequence.
const sqlDoubt = `SELECT pg_snapshot_xmin(s), pg_snapshot_xmax(s), s::text,
	(SELECT id FROM outbox_last_id) FROM pg_current_snapshot() AS s`

// sqlReach must also run before the sweep: the sweep then sees every row that sqlReach saw.
const sqlReach = `SELECT id FROM outbox_events WHERE state = 'fresh' ORDER BY id DESC LIMIT 1`

// sqlFresh returns the statement that locks and reads fresh events of up to limit bytes; which is
// the rest of the condition, and how many. The condition is that of the index, verbatim, so that the index always
// matches. The lock keeps the planner from flattening the inner query.
func sqlFresh(limit int, which string) string {
	return `SELECT id, ` + strings.Join(wire.EventColumns("", limit), ", ") + `
FROM (SELECT ` + wire.EventSource + `, ` + wire.EventBytes(limit, "") + ` AS bytes
	FROM outbox_events WHERE state = 'fresh'` + which + ` FOR UPDATE SKIP LOCKED) AS e`
}

// sqlDue takes from each destination as many deliveries as it has room for, longest due first. The
// index of due deliveries has this order, so no rows of other destinations are read, and none that
// were due before want.since: the claims before have left millions of dead entries there. The outer join
// keeps a delivery visible whose event is missing, so that the relay makes it due later. The time is that of BEGIN, as in sqlNextDue: a delivery that becomes due
// between the two statements must not escape both.
func sqlDue(limit int) string {
	return `SELECT ` + deliveries.Columns(limit) + `, true
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS want(destination, room, since)
CROSS JOIN LATERAL (
	SELECT * FROM outbox_deliveries
	WHERE state = 'retry' AND destination = want.destination AND available_at <= now()
		AND available_at >= CASE want.since WHEN 0 THEN '-infinity' ELSE 'epoch'::timestamptz + want.since * interval '1 microsecond' END
	ORDER BY available_at LIMIT want.room FOR UPDATE SKIP LOCKED) AS d
` + deliveries.Event(limit) + `
LIMIT $4::bigint`
}

// sqlNextDue returns the time until the next delivery is due, and NULL if there is none.
const sqlNextDue = `SELECT (extract(epoch FROM min(least(d.available_at, clock_timestamp() + interval '100 years')) - clock_timestamp()) * 1000000)::bigint
FROM unnest($1::text[]) AS want(destination)
CROSS JOIN LATERAL (
	SELECT available_at FROM outbox_deliveries
	WHERE state = 'retry' AND destination = want.destination AND available_at > now()
	ORDER BY available_at LIMIT 1) AS d`

// Claim implements [Claimer]. It begins the transaction that Settle ends. A claim that found
// nothing ends it at once.
func (s *Session) Claim(ctx context.Context, q Query) (Claimed, error) {
	if err := s.connect(ctx); err != nil {
		return Claimed{}, err
	}
	var claimed Claimed
	retreated, err := wire.Retreat(q.most(), s.options.EventBytes, func(c wire.Care) error {
		err := s.connect(ctx)
		if err == nil && c.Why != nil {
			err = prepareAll(ctx, s.conn.PgConn(), s.claims(c.EventBytes))
		}
		if err == nil {
			if claimed, err = s.claim(ctx, q.atMost(c.Rows), c); err != nil {
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
		if err := s.settle(ctx, &Settlement{}); err != nil {
			return Claimed{}, s.abandon(ctx, "end an empty claim", err)
		}
	}
	return claimed, nil
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
		if err = readSnapshot(f, &claimed); err != nil {
			return claimed, err
		}
	}
	if q.Reach {
		if claimed.Reach, err = f.number(math.MinInt64); err != nil {
			return claimed, err
		}
	}
	d := deliveries.Decoder{Events: wire.Events{Names: &s.names}, EventBytes: s.options.EventBytes, Why: c.Why}
	claimed.Work = make([]Work, 0, s.expected)
	defer func() { s.expected = len(claimed.Work) }()
	err = f.each(func(values [][]byte) (err error) {
		size := wire.Size(values)
		if len(claimed.Work) > 0 && claimed.Bytes+size > q.Bytes && q.Bytes > 0 {
			claimed.Cut = true // read on, but keep nothing more
			return nil
		}
		claimed.Work, claimed.Bytes = append(claimed.Work, Work{Fresh: q.Source != SourceDue}), claimed.Bytes+size
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
		if q.Doubt {
			name = stmtDoubt
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
		if q.Reach {
			f.send(stmtReach, nil, nil, wire.AllBinary())
		}
		name, args := stmtSweep, [][]byte{wire.Int8(q.After), wire.Int8(int64(q.Limit)), wire.Int8(q.Upto)}
		if len(q.Skip) > 0 {
			name, args = stmtSweepSkip, append(args, wire.TextArray(q.Skip))
		}
		send(name, args, wire.EventFormats())
	case SourceDue:
		names, rooms, since := make([]string, 0, len(q.Wanted)), make([]int64, 0, len(q.Wanted)), make([]int64, 0, len(q.Wanted))
		for name, room := range q.Wanted {
			names, rooms, since = append(names, name), append(rooms, int64(room)), append(since, q.Since[name])
		}
		list := wire.TextArray(names)
		send(stmtDue, [][]byte{list, wire.AppendInt8Array(nil, rooms), wire.AppendInt8Array(nil, since), wire.Int8(int64(q.Limit))}, deliveries.Formats())
		f.send(stmtNextDue, [][]byte{list}, wire.AllBinary(), wire.AllBinary())
	}
}

// readSnapshot reads the answer of sqlSnapshot or sqlDoubt.
func readSnapshot(f *flight, c *Claimed) error {
	return f.each(func(values [][]byte) error {
		low, err := wire.DecodeInt8(values[0])
		high, herr := wire.DecodeInt8(values[1])
		c.Xmin, c.Xmax = uint64(low), uint64(high) //nolint:gosec // xid8 is unsigned, the bits are what is meant
		if err = cmp.Or(err, herr); err == nil && len(values) > 2 {
			err = readDoubt(values[2:], c)
		}
		return err
	})
}

// readDoubt reads the rest of sqlDoubt. A snapshot is "xmin:xmax:open,open,...".
func readDoubt(values [][]byte, c *Claimed) error {
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
