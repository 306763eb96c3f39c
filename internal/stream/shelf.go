package stream

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

// shelf owns the state of the rows of a unit's destination: rows to write, running rows, lines to
// continue, and the time when rows are due. Only the goroutine of the unit uses it. A take-over makes
// a new one.
type shelf struct {
	*common

	order  *order
	ledger *ledger // the rows are written with the position

	pending  writes
	held     map[int64]string        // running or pending rows, with the state in which they were read
	lines    map[int64]string        // those whose line is not that of their aggregate, with its name: rows of replays
	drains   map[dispatch.Key]string // lines to continue after the next write
	doubtful map[dispatch.Key]string // lines to check after the next write: they may be first
	ready    []line                  // lines to continue now
	isReady  map[dispatch.Key]bool   // the keys of ready
	duePlace duePlace
	dueAt    time.Time // when to search for due rows
	dueTurn  bool      // due rows are searched before the table is read
	lineAt   time.Time // when to look at the one line of a total order next
	failures uint64    // those of the lane before stored rows were read
	early    int64     // no row is delivered before this id has been read; 0: no limit
}

// line is the stored line of an aggregate.
type line struct {
	key  dispatch.Key
	name string
}

func newShelf(c *common, o *order, l *ledger) shelf {
	return shelf{
		common: c, order: o, ledger: l,
		held: make(map[int64]string), lines: make(map[int64]string), drains: make(map[dispatch.Key]string), doubtful: make(map[dispatch.Key]string),
		isReady: make(map[dispatch.Key]bool), duePlace: dueStart(),
	}
}

// continueLine makes the unit continue a line.
func (s *shelf) continueLine(key dispatch.Key, name string) {
	if !s.isReady[key] {
		s.isReady[key] = true
		s.ready = append(s.ready, line{key, name})
	}
}

// dropReady drops the first n ready lines.
func (s *shelf) dropReady(n int) {
	for _, l := range s.ready[:n] {
		delete(s.isReady, l.key)
	}
	s.ready = slices.Delete(s.ready, 0, n)
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
		s.letGo(r.id)
		if r.state == stateRetry {
			s.dueBy(time.Now().Add(r.delay))
		}
	}
	for _, id := range s.pending.removed {
		s.letGo(id)
	}
	s.pending = writes{}
}

// hold records that a row is running.
func (s *shelf) hold(r *stored) {
	s.held[r.id] = r.state
	if r.key != "" && r.key != dispatch.OrderingKey(&r.event) {
		s.lines[r.id] = r.key
	}
}

// letGo records that a row is neither running nor pending.
func (s *shelf) letGo(id int64) {
	delete(s.held, id)
	delete(s.lines, id)
}

// lineHeld reports whether the unit's only line waits for a stored event: then only stored events go,
// and the unit reads nothing and keeps what it has.
func (s *shelf) lineHeld() bool { return s.order.total && s.lane.Order(s.order.line).Blocked }

// ahead reports whether an event becomes a row of the line without being tried: at a take-over it was
// open, and events stored by another order may have to wait for it.
func (s *shelf) ahead(id int64) bool {
	return s.order.total && id <= s.early && s.lane.Order(s.order.line).Blocked
}

// settle records the outcome of a delivery in a row that has its line.
func (s *shelf) settle(a *dispatch.Answer, out entry) {
	id := a.Event.ID
	out.id, out.eventType, out.attempts, out.delay = id, a.Event.Type, a.Failures, a.Delay
	if a.Err != nil {
		out.class, out.err = a.Class.String(), a.Err.Error()
	}
	switch a.Verdict {
	case dispatch.VerdictDelivered, dispatch.VerdictExpired:
		if a.Row {
			s.pending.remove(id)
			if _, replayed := s.lines[id]; a.Verdict == dispatch.VerdictDelivered && (replayed || a.Event.Replay > 0) {
				s.pending.acked = append(s.pending.acked, id)
			}
		}
	case dispatch.VerdictParked:
		s.doubtful[a.Key] = out.key
		if a.Row && s.held[id] == stateParked {
			s.letGo(id) // its row is already right
			return
		}
		out.state, out.class, out.err, out.delay = stateParked, "", "", 0
	case dispatch.VerdictDead:
		out.state = stateDead
	default:
		out.state = stateRetry
	}
	if out.state != "" {
		out.fresh = !a.Row
		s.pending.put(out, a.Key)
	}
	if a.Behind {
		s.drains[a.Key] = out.key
	}
}

// lineOf returns the name of the line of an answered delivery: that of its aggregate, unless its row has
// another one.
func (s *shelf) lineOf(a *dispatch.Answer, aggregate string) string {
	if name, is := s.lines[a.Event.ID]; is && a.Row {
		return name
	}
	return aggregate
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
func (s *shelf) readDue(ctx context.Context, conn *session.Conn, n int) (all []stored, more bool, err error) {
	var cut bool
	retreated, err := wire.Retreat(n, s.e.limits.EventBytes, func(c wire.Care) (err error) {
		all, cut, err = readRows(ctx, conn, s.e.limits, c.Why, sqlDue(c.EventBytes), s.name, s.duePlace.at, s.duePlace.id, c.Rows, s.lane.Destination().Blocks())
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
	err := conn.QueryRow(ctx, sqlNextDue, s.name, s.duePlace.at, s.duePlace.id).Scan(&us)
	switch {
	case isNoRows(err):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("find when deliveries of %q are due: %w", s.name, err)
	}
	return max(0, time.Duration(us)*time.Microsecond), true, nil
}
