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
)

// shelf is what a unit knows of the rows of its destination: what is to be written, which
// rows are under way, which lines to go on with, and when rows are due.
type shelf struct {
	destination string
	blocks      bool // a dead letter holds back the later events of its aggregate

	pending  writes
	held     map[int64]string        // rows under way, or in pending, with the state in which they were read
	drains   map[dispatch.Key]string // lines to go on with after the next write
	doubtful map[dispatch.Key]string // lines to be looked at after the next write: nothing may be in front of them
	ready    []line                  // lines to go on with now
	isReady  map[dispatch.Key]bool   // which they are
	duePlace duePlace
	dueAt    time.Time // when to look for rows that are due
	dueTurn  bool      // rows that are due are looked for before the table is read
}

// line is the stored line of an aggregate.
type line struct {
	key  dispatch.Key
	name string
}

func newShelf(lane dispatch.Lane) shelf {
	return shelf{
		destination: lane.Name(), blocks: lane.Blocks(),
		held: make(map[int64]string), drains: make(map[dispatch.Key]string), doubtful: make(map[dispatch.Key]string),
		isReady: make(map[dispatch.Key]bool), duePlace: dueStart(),
	}
}

// goOn has a line gone on with.
func (s *shelf) goOn(key dispatch.Key, name string) {
	if !s.isReady[key] {
		s.isReady[key] = true
		s.ready = append(s.ready, line{key, name})
	}
}

// wentOn forgets the first n lines that are ready.
func (s *shelf) wentOn(n int) {
	for _, l := range s.ready[:n] {
		delete(s.isReady, l.key)
	}
	s.ready = slices.Delete(s.ready, 0, n)
}

// dueBy has the unit look for rows that are due at a time, if not before.
func (s *shelf) dueBy(at time.Time) {
	if at.Before(s.dueAt) {
		s.dueAt = at
	}
}

// lookAnew has the unit look for rows that are due now, from the first one on.
func (s *shelf) lookAnew() { s.dueAt, s.duePlace = time.Time{}, dueStart() }

// wrote lets go of what was pending. Until then its rows say in the table what they
// said before, and must not be taken for something to be delivered.
func (s *shelf) wrote() {
	for i := range s.pending.rows {
		r := &s.pending.rows[i]
		delete(s.held, r.id)
		if r.state == stateRetry {
			s.dueBy(time.Now().Add(r.delay))
		}
	}
	for _, id := range s.pending.removed {
		delete(s.held, id)
	}
	s.pending = writes{}
}

// maxPending bounds what waits to be written with the position.
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

// readDue returns up to n rows that are due, behind the shelf's place, and whether there
// may be more. It keeps no more than the given bytes of payloads, but one row.
func (s *shelf) readDue(ctx context.Context, conn *pgx.Conn, n, bytes int) (all []stored, more bool, err error) {
	all, cut, err := readRows(ctx, conn, bytes, sqlDue, s.destination, s.duePlace.at, s.duePlace.id, n, s.blocks)
	if err != nil {
		return nil, false, fmt.Errorf("read due deliveries of %q: %w", s.destination, err)
	}
	return all, cut || len(all) == n, nil
}

// nextDue returns when the next row behind the shelf's place becomes due, and false if none is known to.
func (s *shelf) nextDue(ctx context.Context, conn *pgx.Conn) (time.Duration, bool, error) {
	var us int64
	err := conn.QueryRow(ctx, sqlNextDue, s.destination, s.duePlace.at, s.duePlace.id).Scan(&us)
	switch {
	case isNoRows(err):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("look when deliveries of %q are due: %w", s.destination, err)
	}
	return max(0, time.Duration(us)*time.Microsecond), true, nil
}
