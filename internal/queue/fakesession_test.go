package queue

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/sleep"
)

// fakeSession claims and settles like Session: it reconnects, a lost connection unlocks everything, and after a lost
// claim it writes only acknowledged results. After a refusal it rehearses the whole.
type fakeSession struct {
	db    *fakeDB
	owner int64
	lease time.Duration
	conn  bool

	refused bool // the last settlement, and no rehearsal has passed since
}

func (s *fakeSession) Claim(ctx context.Context, q Query) (Claimed, error) {
	if !s.conn && ctx.Err() != nil {
		return Claimed{}, ctx.Err()
	}
	s.conn = true
	there, back := s.db.travel()
	sleep.For(context.WithoutCancel(ctx), there)
	switch s.db.fault(s.owner, "claim") {
	case noFault:
	case refused:
		s.lose()
		return Claimed{}, refusal{}
	default:
		s.lose()
		return Claimed{}, errLost
	}
	c := s.claim(q)
	sleep.For(context.WithoutCancel(ctx), back)
	s.db.set(func() { s.db.note("%p claims %v: %v", s, q, c) })
	return c, nil
}

func (s *fakeSession) claim(q Query) (c Claimed) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.db.claims++
	snapshot, reach := s.db.snapshotLocked(), int64(math.MinInt64)
	if q.Highest {
		for _, id := range s.db.order {
			if e := s.db.events[id]; e.visible && e.state == "fresh" {
				reach = max(reach, id)
			}
		}
	}
	switch q.Source {
	case SourceIDs:
		c = s.fresh(q, func(e *fakeEvent) bool { return slices.Contains(q.IDs, e.id) })
	case SourceDue:
		return s.due(q)
	default:
		c = s.fresh(q, func(e *fakeEvent) bool { return e.id > q.After && e.id <= q.Upto && !slices.Contains(q.Skip, e.typ) })
	}
	c.Snapshot, c.Highest = snapshot, reach
	if q.OpenWriters {
		last := int64(0)
		for _, id := range s.db.order {
			last = max(last, id)
		}
		c.Open, c.LastID = slices.Collect(maps.Keys(s.db.open)), &last
	}
	return c
}

func (db *fakeDB) eventOf(e *fakeEvent) delivery.Event {
	event := delivery.Event{ID: e.id, Type: e.typ, AggregateID: e.key, Payload: e.payload, Headers: e.headers}
	if e.key != "" {
		event.AggregateType = "t"
	}
	return event
}

func (s *fakeSession) fresh(q Query, match func(*fakeEvent) bool) (c Claimed) {
	for _, id := range s.db.order {
		e := s.db.events[id]
		if !e.visible || e.state != "fresh" || e.locked != nil || slices.Contains(q.Except, id) || !match(e) {
			continue
		}
		if q.Source == SourceSweep && len(c.Work) >= q.Limit {
			break
		}
		e.locked = s
		w := Work{Row: deliveries.Row{Event: s.db.eventOf(e)}, Fresh: true}
		if !e.at.IsZero() {
			w.Delay = max(0, time.Until(e.at))
		}
		c.Work = append(c.Work, w)
	}
	return c
}

func (s *fakeSession) work(row *fakeRow) Work {
	w := Work{Row: deliveries.Row{Destination: row.Destination, Failures: row.Failures, Missing: s.db.events[row.EventID] == nil}}
	if !w.Missing {
		w.Event = s.db.eventOf(s.db.events[row.EventID])
	}
	w.Event.ID, w.Event.Replay, w.At = row.EventID, row.replays, pgtype.Timestamptz{Time: row.due, Valid: true}
	return w
}

func (s *fakeSession) due(q Query) (c Claimed) {
	c.NextDue = -1
	taken := make(map[string]int)
	for _, row := range s.db.sortedRows() {
		room, wanted := q.Wanted[row.Destination]
		if row.State != deliveries.Retry || !wanted || slices.Contains(q.Except, row.EventID) {
			continue
		}
		if wait := time.Until(row.due); wait > 0 {
			if c.NextDue < 0 || wait < c.NextDue {
				c.NextDue = wait
			}
			continue
		}
		if row.locked != nil || taken[row.Destination] >= room || q.Since[row.Destination] > row.due.UnixMicro() {
			continue
		}
		taken[row.Destination]++
		row.locked = s
		c.Work = append(c.Work, s.work(row))
	}
	return c
}

// sortedRows returns the rows in the order in which they are due.
func (db *fakeDB) sortedRows() []*fakeRow {
	rows := make([]*fakeRow, 0, len(db.rows))
	for _, r := range db.rows {
		rows = append(rows, r)
	}
	sort.Slice(rows, func(i, j int) bool {
		if !rows[i].due.Equal(rows[j].due) {
			return rows[i].due.Before(rows[j].due)
		}
		return rows[i].EventID < rows[j].EventID
	})
	return rows
}

func (s *fakeSession) Settle(ctx context.Context, st *Settlement) ([]Refused, error) {
	if !s.conn {
		rest := &Settlement{Done: st.Done, Remove: st.Remove}
		if len(st.Put) > 0 {
			rest.Remove = nil
		}
		if rest.Empty() && !s.refused {
			return nil, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.conn = true
		st = rest
	}
	there, back := s.db.travel()
	defer func() { sleep.For(context.WithoutCancel(ctx), back) }()
	sleep.For(context.WithoutCancel(ctx), there)
	kind := s.db.fault(s.owner, "settle")
	if kind == lostBefore || kind == refused {
		s.db.set(func() { s.db.note("%p fails to settle %+v", s, *st) })
		s.lose()
		if s.refused = kind == refused; s.refused {
			return nil, refusal{}
		}
		return nil, errLost
	}
	s.refused = false
	if kind == hung {
		sleep.For(context.WithoutCancel(ctx), hangs)
	}
	s.lockAll(st)
	s.db.mu.Lock()
	s.db.note("%p settles %+v, fault %d", s, *st, kind)
	s.apply(st)
	s.db.checkLocked()
	s.db.mu.Unlock()
	s.unlock()
	if kind == lostAfter {
		s.conn = false
		return nil, errLost
	}
	return nil, nil
}

// lockAll waits until no other session has a lock on the rows to be written.
func (s *fakeSession) lockAll(st *Settlement) {
	for {
		free := true
		s.db.set(func() {
			for _, id := range st.Done {
				e := s.db.events[id]
				free = free && (e.locked == nil || e.locked == s)
			}
			for _, r := range st.Remove {
				row := s.db.rows[r]
				free = free && (row == nil || row.locked == nil || row.locked == s)
			}
		})
		if free {
			return
		}
		sleep.For(context.Background(), time.Millisecond)
	}
}

func (s *fakeSession) apply(st *Settlement) {
	db := s.db
	left := make(map[int64]map[string]bool)
	for i := range st.Put {
		id := st.Put[i].EventID
		if left[id] == nil {
			left[id] = make(map[string]bool)
		}
		left[id][st.Put[i].Destination] = true
	}
	move := func(ids []int64, state string) {
		for _, id := range ids {
			if e := db.events[id]; e.state == "fresh" {
				e.state = state
				if !left[id][""] {
					db.settledAllBut(id, left[id])
				}
			}
		}
	}
	move(st.Done, "done")
	move(st.DeadLettered, "done")
	move(st.Deferred, "deferred")
	var ended []int64
	for _, r := range st.Remove {
		if row := db.rows[r]; row != nil {
			delete(db.rows, r)
			if r.Destination != "" {
				db.settleLocked(r)
			} else if db.events[r.EventID] != nil {
				db.settledAllBut(r.EventID, left[r.EventID])
			}
		}
		ended = append(ended, r.EventID)
	}
	seen := make(map[deliveries.Ref]bool)
	for _, e := range st.Put {
		if seen[e.Ref] {
			db.breakLocked("one settlement puts %v twice", e.Ref)
		}
		seen[e.Ref] = true
		s.put(e)
		if e.State == deliveries.Dead {
			ended = append(ended, e.EventID)
		}
	}
	for _, id := range ended {
		db.finishLocked(id)
	}
}

func (s *fakeSession) put(e deliveries.Entry) {
	db := s.db
	if old := db.rows[e.Ref]; old != nil && old.locked != s {
		db.breakLocked("put of %v replaces a row that it has not locked: %+v", e.Ref, old.Entry)
	}
	if e.State == deliveries.Dead && e.Err == "" {
		db.breakLocked("dead letter %v without an error", e.Ref)
	}
	row := &fakeRow{Entry: e, due: time.Now().Add(e.Delay)}
	if old := db.rows[e.Ref]; old != nil {
		row.replays = old.replays
	}
	if e.State == deliveries.Running {
		row.owner, row.until = s.owner, time.Now().Add(s.lease)
		if e.Token == 0 {
			db.breakLocked("lease of %v without a token", e.Ref)
		}
	}
	db.rows[e.Ref] = row
}

// lose breaks the connection.
func (s *fakeSession) lose() {
	s.conn = false
	s.unlock()
}

func (s *fakeSession) unlock() {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	for _, e := range s.db.events {
		if e.locked == s {
			e.locked = nil
		}
	}
	for _, r := range s.db.rows {
		if r.locked == s {
			r.locked = nil
		}
	}
}

func (s *fakeSession) String() string { return fmt.Sprintf("session of %d", s.owner) }
