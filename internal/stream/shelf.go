package stream

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
)

// shelf is the state of the rows of a unit's destination: rows to write, running rows, lines to
// continue, and the time when rows are due.
type shelf struct {
	destination string
	blocks      bool // a dead letter holds back the later events of its aggregate

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
}

// line is the stored line of an aggregate.
type line struct {
	key  dispatch.Key
	name string
}

func newShelf(lane dispatch.Lane) shelf {
	return shelf{
		destination: lane.Name(), blocks: lane.Blocks(),
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
// more. It keeps at least one row, and no more than l.Bytes of events.
func (s *shelf) readDue(ctx context.Context, conn *pgx.Conn, n int, l engine.Limits) (all []stored, more bool, err error) {
	all, cut, err := readRows(ctx, conn, l, sqlDue(l.EventBytes), s.destination, s.duePlace.at, s.duePlace.id, n, s.blocks)
	if err != nil {
		return nil, false, fmt.Errorf("read due deliveries of %q: %w", s.destination, err)
	}
	return all, cut || len(all) == n, nil
}

// nextDue returns the time until the next row after the shelf's place is due, and false if there is
// none.
func (s *shelf) nextDue(ctx context.Context, conn *pgx.Conn) (time.Duration, bool, error) {
	var us int64
	err := conn.QueryRow(ctx, sqlNextDue, s.destination, s.duePlace.at, s.duePlace.id).Scan(&us)
	switch {
	case isNoRows(err):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("find when deliveries of %q are due: %w", s.destination, err)
	}
	return max(0, time.Duration(us)*time.Microsecond), true, nil
}
