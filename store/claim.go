package store

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/wire"
)

// sqlSnapshot must run before the sweep in the same flight: what it calls
// ended, the sweep sees.
const sqlSnapshot = `SELECT pg_snapshot_xmin(s), pg_snapshot_xmax(s),
	(SELECT array_agg(x::text::bigint) FROM pg_snapshot_xip(s) AS x) FROM pg_current_snapshot() AS s`

// sqlReach must run before the sweep, too: what it has seen, the sweep sees.
const sqlReach = `SELECT id FROM outbox_events WHERE state = 'fresh' ORDER BY id DESC LIMIT 1`

// Each aggregate belongs to one of 64 slots, and each slot to one relay. What
// the slot is made of is the same in an event and in the ordering key of its
// deliveries: dispatch keeps that many characters of a long one. A delayed event that
// has not been split up into deliveries has no key: its aggregate is asked for, which is
// a scalar subquery because PostgreSQL may hash all events for an EXISTS. Where the event was
// deleted by hand, anybody may remove the row.
const (
	sqlSlotOf    = `(coalesce(aggregate_id, '') = '' OR hashtext(left(coalesce(aggregate_type, '') || '/' || aggregate_id, 32)) & 63 = ANY($%[1]d::int[]))`
	sqlSlots     = ` AND ` + sqlSlotOf
	sqlLineSlots = ` AND hashtext(left(w.key, 32)) & 63 = ANY($%d::int[])`
	sqlKeySlots  = ` AND CASE
		WHEN ordering_key IS NOT NULL THEN hashtext(left(ordering_key, 32)) & 63 = ANY($%[1]d::int[])
		WHEN destination = '' THEN coalesce((SELECT ` + sqlSlotOf + ` FROM outbox_events WHERE id = o.event_id), true)
		ELSE true END`
)

// sqlLate looks for fresh events that have come up behind a sweep, whether they
// are locked or not. It runs after the claim, so that it sees at least what the
// claim saw.
const sqlLate = `SELECT e.id, e.aggregate_type, e.aggregate_id
FROM unnest($1::bigint[], $2::bigint[]) AS r(low, high)
CROSS JOIN LATERAL (
	SELECT id, aggregate_type, aggregate_id FROM outbox_events
	WHERE state = 'fresh' AND id >= r.low AND id <= r.high AND aggregate_id <> '' AND event_type <> ALL($4::text[])%s
	ORDER BY id LIMIT $3::bigint) AS e
ORDER BY e.id LIMIT $3::bigint`

// sqlFresh names its columns in the order in which readFresh reads them. The
// condition is the index's own, word for word, so that the index always fits.
// The wait is bounded here, because neither infinity nor the ends of
// PostgreSQL's calendar can be subtracted or fit into a duration.
const sqlFresh = `SELECT id, event_type, aggregate_type, aggregate_id, payload, headers, created_at,
	CASE WHEN available_at > clock_timestamp() THEN
		(extract(epoch FROM least(available_at, clock_timestamp() + interval '100 years') - clock_timestamp()) * 1000000)::bigint END, traceparent
FROM outbox_events WHERE state = 'fresh'`

// Places of columns in sqlFresh and sqlDue.
const (
	payloadColumn    = 4
	freshTraceColumn = 8
	dueTraceColumn   = 10
	begunColumn      = 11 // of sqlDue only
)

// sqlDue takes from each destination what it has room for, longest due first.
// The outer join keeps a delivery whose event was deleted by hand in view, so
// that it is removed instead of being met for ever. The time is that of BEGIN,
// the same as in sqlNextDue: what becomes due between the two statements must
// not escape both.
const sqlDue = `SELECT d.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.payload, e.headers, e.created_at,
	d.destination, d.attempts::bigint, d.replays::bigint, e.traceparent, d.attempts > 0 OR d.error_class IS NOT NULL
FROM unnest($1::text[], $2::bigint[]) AS want(destination, room)
CROSS JOIN LATERAL (
	SELECT event_id, destination, attempts, replays, error_class FROM outbox_deliveries AS o
	WHERE state = 'retry' AND destination = want.destination AND available_at <= now()
	AND (ordering_key IS NULL OR NOT EXISTS (
		SELECT FROM outbox_deliveries AS b
		WHERE b.destination = o.destination AND b.ordering_key = o.ordering_key AND b.event_id < o.event_id
		AND (b.state <> 'dead' OR b.destination = ANY($3::text[]))))%s
	ORDER BY available_at LIMIT want.room FOR UPDATE SKIP LOCKED) AS d
LEFT JOIN outbox_events AS e ON e.id = d.event_id`

// sqlLines claims the first rows of each line, in order. The rows are read
// without locks first: where the first one is locked, those behind it must not
// be taken in its place. Where the first one is not to be had anyway, nothing of its
// line is locked: it may become due while this claim is delivered, and whoever comes
// for the line then goes past what is locked. Nor is a row that another relay has
// put off since it was read: available_at is compared again with the row locked.
const sqlLines = `WITH head AS MATERIALIZED (
	SELECT w.n, d.* FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS w(destination, key, high, n)
	CROSS JOIN LATERAL (
		SELECT event_id, destination, attempts, replays, state, available_at, available_at <= now() AS due, event_id > w.high AS beyond,
			first_value(state = 'parked' OR state = 'retry' AND available_at <= now()) OVER (ORDER BY event_id) AS open
		FROM outbox_deliveries
		WHERE destination = w.destination AND ordering_key = w.key AND (state <> 'dead' OR destination = ANY($5::text[]))%s
		ORDER BY event_id LIMIT $4::bigint) AS d)
SELECT h.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.payload, e.headers, e.created_at,
	h.destination, h.attempts::bigint, h.replays::bigint, e.traceparent, h.n, h.state, h.due, h.beyond, l.event_id IS NOT NULL
FROM head AS h
LEFT JOIN LATERAL (
	SELECT event_id FROM outbox_deliveries
	WHERE event_id = h.event_id AND destination = h.destination AND state IN ('retry', 'parked') AND available_at = h.available_at
	AND h.open AND NOT h.beyond
	FOR UPDATE SKIP LOCKED) AS l ON true
LEFT JOIN outbox_events AS e ON e.id = h.event_id
ORDER BY h.n, h.event_id`

const sqlNextDue = `SELECT (extract(epoch FROM min(least(d.available_at, clock_timestamp() + interval '100 years')) - clock_timestamp()) * 1000000)::bigint
FROM unnest($1::text[]) AS want(destination)
CROSS JOIN LATERAL (
	SELECT available_at FROM outbox_deliveries
	WHERE state = 'retry' AND destination = want.destination AND available_at > now()
	ORDER BY available_at LIMIT 1) AS d`

// Claim implements dispatch.Session. It begins the transaction that Settle
// ends; a claim that found nothing ends it at once.
func (s *Session) Claim(ctx context.Context, q dispatch.Query) (dispatch.Claimed, error) {
	if err := s.connect(ctx); err != nil {
		return dispatch.Claimed{}, err
	}
	if s.options.Slots != nil {
		s.holder = s.options.Slots.pid.Load()
	}
	claimed, err := s.claim(ctx, q)
	if err != nil {
		return dispatch.Claimed{}, s.abandon(ctx, "claim", err)
	}
	if len(claimed.Work) == 0 {
		if err := s.settle(ctx, &dispatch.Settlement{}); err != nil {
			return dispatch.Claimed{}, s.abandon(ctx, "end an empty claim", err)
		}
	}
	return claimed, nil
}

func (s *Session) claim(ctx context.Context, q dispatch.Query) (claimed dispatch.Claimed, err error) {
	f, err := s.fly(ctx, func(p *pgconn.Pipeline) { s.queueClaim(p, q) })
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
	if q.Source == dispatch.SourceSweep || q.Snap {
		if claimed.Snapshot, err = readSnapshot(f); err != nil {
			return claimed, err
		}
	}
	if q.Source == dispatch.SourceLines {
		return s.readLines(f, q)
	}
	if q.Reach {
		if claimed.Reach, err = readReach(f); err != nil {
			return claimed, err
		}
	}
	reader, err := f.next()
	if err != nil {
		return claimed, err
	}
	a := &wire.Arena{}
	claimed.Work = make([]dispatch.Work, 0, s.expected)
	defer func() { s.expected = len(claimed.Work) }()
	for reader.NextRow() {
		values := reader.Values()
		size := len(values[payloadColumn])
		if len(claimed.Work) > 0 && claimed.Bytes+size > q.Bytes && q.Bytes > 0 {
			claimed.Cut = true // read on, but keep nothing more
			continue
		}
		w, err := s.readWork(values, a, q.Source)
		if err != nil {
			return claimed, err
		}
		claimed.Work, claimed.Bytes = append(claimed.Work, w), claimed.Bytes+size
	}
	if _, err := reader.Close(); err != nil {
		return claimed, err
	}
	switch {
	case q.Source == dispatch.SourceDue:
		claimed.NextDue, err = readNextDue(f)
	case len(q.Gaps) > 0:
		claimed.Late, err = s.readLate(f)
		claimed.LateCut = len(claimed.Late) >= q.Look
	}
	return claimed, err
}

func (s *Session) queueClaim(p *pgconn.Pipeline, q dispatch.Query) {
	p.SendQueryPrepared(stmtBegin, nil, nil, nil)
	if q.Source == dispatch.SourceSweep || q.Snap {
		p.SendQueryPrepared(stmtSnapshot, nil, nil, wire.AllBinary())
	}
	send := func(name string, args [][]byte, formats []int16) {
		if q.Slots != nil {
			name, args = name+ofSlots, append(args, wire.Int4Array(q.Slots))
		}
		p.SendQueryPrepared(name, args, wire.AllBinary(), formats)
	}
	switch q.Source {
	case dispatch.SourceIDs:
		s.params = wire.AppendInt8Array(s.params[:0], q.IDs)
		send(stmtByIDs, s.byID(s.params, q.IDs), freshFormats())
	case dispatch.SourceSweep:
		if q.Reach {
			p.SendQueryPrepared(stmtReach, nil, nil, wire.AllBinary())
		}
		name, args := stmtSweep, [][]byte{wire.Int8(q.After), wire.Int8(int64(q.Limit)), wire.Int8(q.Upto)}
		if len(q.Skip) > 0 {
			name, args = stmtSweepSkip, append(args, wire.TextArray(q.Skip))
		}
		send(name, args, freshFormats())
	case dispatch.SourceDue:
		names, rooms := make([]string, 0, len(q.Wanted)), make([]int64, 0, len(q.Wanted))
		for name, room := range q.Wanted {
			names, rooms = append(names, name), append(rooms, int64(room))
		}
		list := wire.TextArray(names)
		send(stmtDue, [][]byte{list, wire.AppendInt8Array(nil, rooms), wire.TextArray(q.Blocking)}, dueFormats())
		p.SendQueryPrepared(stmtNextDue, [][]byte{list}, wire.AllBinary(), wire.AllBinary())
	case dispatch.SourceLines:
		send(stmtLines, lineParams(q), lineFormats())
	}
	if len(q.Gaps) > 0 {
		low, high := make([]int64, len(q.Gaps)), make([]int64, len(q.Gaps))
		for i, r := range q.Gaps {
			low[i], high[i] = r.From, r.To
		}
		send(stmtLate, [][]byte{
			wire.AppendInt8Array(nil, low), wire.AppendInt8Array(nil, high), wire.Int8(int64(q.Look)), wire.TextArray(q.Skip),
		}, lateFormats())
	}
}

// freshFormats asks for headers as text: jsonb has a version byte in binary.
// Text and json are the same in both formats.
func freshFormats() []int16 {
	return []int16{wire.Binary, wire.Text, wire.Text, wire.Text, wire.Text, wire.Text, wire.Binary, wire.Binary, wire.Text}
}

// rowFormats are the formats of what sqlDue and sqlLines have in common.
func rowFormats() []int16 {
	return append(freshFormats()[:7], wire.Text, wire.Binary, wire.Binary, wire.Text)
}

func dueFormats() []int16 { return append(rowFormats(), wire.Binary) }

func readSnapshot(f *flight) (snap dispatch.Snapshot, err error) {
	reader, err := f.next()
	if err != nil {
		return snap, err
	}
	for reader.NextRow() {
		values := reader.Values()
		low, err := wire.DecodeInt8(values[0])
		if err != nil {
			return snap, err
		}
		high, err := wire.DecodeInt8(values[1])
		if err != nil {
			return snap, err
		}
		snap.Xmin, snap.Xmax = uint64(low), uint64(high) //nolint:gosec // xid8 is unsigned, the bits are what is meant
		if snap.Running, err = decodeXids(values[2]); err != nil {
			return snap, err
		}
	}
	_, err = reader.Close()
	return snap, err
}

// readReach returns the smallest number where there is no fresh event.
func readReach(f *flight) (id int64, err error) {
	id = math.MinInt64
	reader, err := f.next()
	if err != nil {
		return 0, err
	}
	for reader.NextRow() {
		if id, err = wire.DecodeInt8(reader.Values()[0]); err != nil {
			return 0, err
		}
	}
	_, err = reader.Close()
	return id, err
}

func readNextDue(f *flight) (time.Duration, error) {
	reader, err := f.next()
	if err != nil {
		return 0, err
	}
	next := time.Duration(-1)
	for reader.NextRow() {
		if raw := reader.Values()[0]; raw != nil {
			us, err := wire.DecodeInt8(raw)
			if err != nil {
				return 0, err
			}
			next = max(0, time.Duration(us)*time.Microsecond)
		}
	}
	_, err = reader.Close()
	return next, err
}

// readWork reads one row of sqlFresh, sqlDue or sqlLines.
func (s *Session) readWork(values [][]byte, a *wire.Arena, source dispatch.Source) (w dispatch.Work, err error) {
	if w.Event.ID, err = wire.DecodeInt8(values[0]); err != nil {
		return w, err
	}
	traceparent := freshTraceColumn
	if source == dispatch.SourceDue {
		w.Begun = values[begunColumn][0] != 0 // a boolean in binary
	}
	if source == dispatch.SourceDue || source == dispatch.SourceLines {
		traceparent = dueTraceColumn
		w.Destination = s.names.Intern(values[7])
		failures, err := wire.DecodeInt8(values[8])
		if err != nil {
			return w, err
		}
		w.Failures = int(failures)
		replays, err := wire.DecodeInt8(values[9])
		if err != nil {
			return w, err
		}
		w.Event.Replay = int(replays)
		if values[1] == nil {
			w.Orphan = true
			return w, nil
		}
	} else {
		w.Fresh = true
		if values[7] != nil {
			us, err := wire.DecodeInt8(values[7])
			if err != nil {
				return w, err
			}
			w.Delay = max(0, time.Duration(us)*time.Microsecond)
		}
	}
	w.Event.Type = s.names.Intern(values[1])
	w.Event.AggregateType = s.names.Intern(values[2])
	w.Event.AggregateID = string(values[3])
	w.Event.Payload = a.Keep(values[4])
	w.Event.Headers = wire.Traced(wire.DecodeHeaders(values[5]), values[traceparent])
	w.Event.CreatedAt, err = wire.DecodeTime(values[6])
	return w, err
}
