package stream

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/aggregates"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/replay"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

// shelf owns the state of the rows of a unit's destination: rows to write, running rows, aggregates to
// continue, and the time when rows are due. Only the goroutine of the unit uses it. A take-over makes
// a new one.
type shelf struct {
	*common

	order  *order
	ledger *ledger // the rows are written with the position

	pending    writes
	running    map[int64]readRow // rows that were read, until their results are written
	aggregates aggregates.Set
	duePlace   duePlace
	dueAt      time.Time // when to search for due rows
	dueTurn    bool      // due rows are searched before the table is read
	failures   uint64    // those of the lane before stored rows were read
	early      int64     // no row is delivered before this id has been read; 0: no limit
}

// readRow is what a row was when it was read.
type readRow struct {
	state deliveries.State
	key   string
}

func newShelf(c *common, o *order, l *ledger) shelf {
	return shelf{
		common: c, order: o, ledger: l, running: make(map[int64]readRow), aggregates: aggregates.New(), duePlace: dueStart(),
	}
}

// dueBy makes the unit search for due rows at a time, if not before.
func (s *shelf) dueBy(at time.Time) {
	if at.Before(s.dueAt) {
		s.dueAt = at
	}
}

// searchNow makes the unit search for due rows now, from the first one on.
func (s *shelf) searchNow() { s.dueAt, s.duePlace = time.Time{}, dueStart() }

// wrote drops the pending rows. Until then the table has their old state, which must not be taken
// for deliveries to make.
func (s *shelf) wrote() {
	for i := range s.pending.rows {
		r := &s.pending.rows[i]
		delete(s.running, r.EventID)
		if r.State == deliveries.Retry {
			s.dueBy(time.Now().Add(r.Delay))
		}
	}
	for _, id := range s.pending.removed {
		delete(s.running, id)
	}
	s.pending = writes{}
}

// run records that a row was read, and is not to be read again until its result is written.
func (s *shelf) run(r *deliveries.Row) { s.running[r.Event.ID] = readRow{r.State, r.Key} }

// put makes an entry a pending row of an aggregate.
func (s *shelf) put(out entry, key dispatch.Key) {
	s.pending.put(out)
	s.aggregates.Pending(key, s.order.queue(out.Key))
}

// nameOf returns the name of an answered delivery's aggregate: that of its row, which one of a replay has for itself.
func (s *shelf) nameOf(a *dispatch.Answer) string {
	r := s.running[a.Event.ID]
	switch {
	case a.Row && replay.IsKey(r.key): // nothing else tells the row from that of a live event
		return r.key
	case a.Key == dispatch.Key{}:
		return ""
	case a.Row && !s.order.unnamed(r.key):
		return r.key
	}
	return s.order.name(a.Event)
}

// totalHeld reports whether a total order waits for a stored event: then only stored events go,
// and the unit reads nothing and keeps what it has.
func (s *shelf) totalHeld() bool { return s.order.total && s.lane.Order(s.order.line).Blocked }

// ahead reports whether an event becomes a row of a total order without being tried: at a take-over it was
// open, and events stored by another order may have to wait for it.
func (s *shelf) ahead(id int64) bool { return id <= s.early && s.totalHeld() }

// settle records the outcome of a delivery in a row.
func (s *shelf) settle(a *dispatch.Answer, out entry) {
	id := a.Event.ID
	out.EventID, out.EventType, out.Failures, out.Delay = id, a.Event.Type, a.Failures, a.Delay
	if a.Err != nil {
		out.Class, out.Err = a.Class.String(), a.Err.Error()
	}
	name := s.order.queue(out.Key)
	switch a.Verdict {
	case dispatch.VerdictDelivered, dispatch.VerdictExpired:
		if a.Row {
			s.pending.remove(id)
			if a.Verdict == dispatch.VerdictDelivered && (a.Event.Replay > 0 || replay.IsKey(s.running[id].key)) {
				s.pending.acked = append(s.pending.acked, id)
			}
		}
	case dispatch.VerdictParked:
		s.aggregates.Move(a.Key, name, aggregates.Parked)
		if a.Row && s.running[id].state == deliveries.Parked {
			delete(s.running, id) // its row is already right
			return
		}
		out.State, out.Class, out.Err, out.Delay = deliveries.Parked, "", "", 0
	case dispatch.VerdictDead:
		out.State = deliveries.Dead
	default:
		out.State = deliveries.Retry
	}
	if out.State != "" {
		out.fresh = !a.Row
		s.put(out, a.Key)
	}
	if a.Behind {
		s.aggregates.Move(a.Key, name, aggregates.Finished)
	}
}

// maxPending bounds the rows that wait to be written with the position.
const maxPending = 5000

// duePlace is a place in the order of due rows.
type duePlace struct {
	at pgtype.Timestamptz
	id int64
}

// dueStart is before all rows.
func dueStart() duePlace {
	return duePlace{pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, math.MinInt64}
}

// readDue returns up to n rows that are due, after the shelf's place, and whether there may be
// more. It keeps at least one row, and no more than batch_bytes of events.
func (s *shelf) readDue(ctx context.Context, conn *session.Conn, n int) (all []deliveries.Row, more bool, err error) {
	var cut bool
	retreated, err := wire.Retreat(n, s.e.limits.EventBytes, func(c wire.Care) (err error) {
		all, cut, err = deliveries.Read(ctx, conn, s.e.limits, c.Why, sqlDue(c.EventBytes, s.order), s.name, s.duePlace.at, s.duePlace.id, c.Rows, s.lane.Destination().Blocks())
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("read due deliveries of %q: %w", s.name, err)
	}
	return all, retreated || cut || len(all) == n, nil
}

// nextDue returns the time until the next row after the shelf's place is due, and false if there is
// none.
func (s *shelf) nextDue(ctx context.Context, conn *session.Conn) (time.Duration, bool, error) {
	var us int64
	err := conn.QueryRow(ctx, sqlNextDue(s.order), s.name, s.duePlace.at, s.duePlace.id).Scan(&us)
	switch {
	case isNoRows(err):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("find when deliveries of %q are due: %w", s.name, err)
	}
	return max(0, time.Duration(us)*time.Microsecond), true, nil
}
