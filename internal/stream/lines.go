package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

const (
	// maxLines is how many lines one statement continues, and maxPerLine how many rows of each it
	// reads at most.
	maxLines   = 64
	maxPerLine = 100
)

// feedDue hands over rows that are due. After the last of them, the unit starts over when the next
// one is due.
func (u *unit) feedDue(ctx context.Context, conn *session.Conn) (did bool, err error) {
	if u.gate.stuck = !u.order.total && u.lane.Waits(true); u.gate.stuck { // nothing new goes before the one line of a total order
		return false, nil
	}
	granted := u.gate.grant(u.e.limits.Batch)
	if granted == 0 {
		return false, nil
	}
	u.shelf.failures = u.lane.Order(dispatch.Key{}).Failures
	u.collect() // what has failed until then is a row, and what fails later keeps the lane from those that lead
	rows, more, err := u.shelf.readDue(ctx, conn, granted)
	if err == nil && u.shelf.unwritten(rows) {
		u.lane.Return(granted)
		return true, u.store(ctx, conn)
	}
	if err == nil {
		err = u.shelf.planDue(ctx, conn, rows, more)
	}
	if err != nil {
		u.lane.Return(granted)
		return false, err
	}
	all := make([]dispatch.Delivery, 0, len(rows))
	for i := range rows {
		if !u.aside.holds(rows[i].key) {
			all = u.shelf.takeDue(all, &rows[i])
		}
	}
	// Rows that are due together go in the order of ids.
	slices.SortFunc(all, func(a, b dispatch.Delivery) int { return compare(a.Event.ID, b.Event.ID) })
	u.gate.deliver(u.gate.parcel(), all, nil, granted)
	return len(all) > 0 || more || len(u.shelf.ready) > 0, nil
}

// unwritten reports whether one of the rows would lead a line of which others are still to be written: one of those may come before it.
func (s *shelf) unwritten(rows []stored) bool {
	return len(s.pending.lines) > 0 && slices.ContainsFunc(rows, func(r stored) bool {
		leads, waits := s.order.leads(&r)
		_, is := s.held[r.id]
		return leads && !waits && !is && s.pending.lines[s.order.keys.Named(r.key)]
	})
}

// planDue records the position and time of the next search for due rows.
func (s *shelf) planDue(ctx context.Context, conn *session.Conn, rows []stored, more bool) error {
	if len(rows) > 0 {
		last := &rows[len(rows)-1]
		s.duePlace = duePlace{last.at, last.id}
	}
	if more {
		return nil
	}
	wait, known, err := s.nextDue(ctx, conn)
	if err != nil {
		return err
	}
	if wait = min(wait, s.e.limits.PollInterval); !known {
		wait = s.e.limits.PollInterval
	}
	s.searchNow()
	s.dueAt = time.Now().Add(wait)
	return nil
}

// takeDue appends a row that is due to all, unless it runs or waits for others.
func (s *shelf) takeDue(all []dispatch.Delivery, r *stored) []dispatch.Delivery {
	if _, is := s.held[r.id]; is {
		return all // it is running, or was until a moment ago
	}
	s.filter(r)
	leads, waits := s.order.leads(r)
	if waits {
		// Not the first of its line, which happens only in a table that was a queue, or had another order.
		key := s.order.keys.Named(r.key)
		s.pending.put(entry{id: r.id, eventType: r.event.Type, state: stateParked, attempts: r.attempts, key: r.key}, key)
		s.held[r.id], s.doubtful[key] = r.state, r.key
		// What is in flight of the line ends it: that answer must say that rows wait behind it.
		s.lane.SetRows(key, dispatch.SomeRows)
		s.ledger.dirty = true
		return all
	}
	if r.over && leads {
		s.drains[s.order.keys.Named(r.key)] = r.key // other rows may wait behind it
	}
	return s.take(all, r, leads)
}

// filter asks the filter about a row. One that is not for the destination any more is finished.
func (s *shelf) filter(r *stored) {
	if r.missing || r.over {
		return
	}
	passes, refused := s.passes(&r.event, r.refused)
	r.over, r.refused = !passes, refused
}

// take converts a row into a delivery, and appends it to all. A row whose event is missing is due
// later instead, and one that is over is removed.
func (s *shelf) take(all []dispatch.Delivery, r *stored, leads bool) []dispatch.Delivery {
	if r.missing {
		s.pending.put(entry{
			id: r.id, eventType: r.event.Type, state: stateRetry, attempts: r.attempts, key: r.key,
			delay: s.e.missing.Met(s.name, r.id), class: engine.ClassMissing, err: engine.ErrMissing.Error(),
		}, s.order.keys.Named(r.key))
		s.held[r.id] = r.state
		s.ledger.dirty = true
		return all
	}
	if r.over {
		s.pending.remove(r.id)
		s.held[r.id] = r.state
		s.ledger.dirty = true
		return all
	}
	d := dispatch.Delivery{Event: &r.event, Refused: r.refused, Failures: r.attempts, Row: true, Leads: leads, Since: s.failures, Delayed: r.delayed, Waited: true}
	if r.event.Replay == 0 && !replays(r.key) { // what a person asks for does not expire
		d.Expires = s.lane.Destination().Expires(r.since, time.Time{})
	}
	r.event.Destination, r.event.Outbox = s.name, s.e.Outbox
	if s.order.kept && !s.order.total && r.key != "" {
		d.Key = s.order.keys.Named(r.key)
	} else {
		d.Key = s.order.of(&r.event)
	}
	s.hold(r)
	return append(all, d)
}

// store writes the pending rows, and then continues the lines whose first rows are finished: the
// write comes first, so that a line is read as it is.
func (u *unit) store(ctx context.Context, conn *session.Conn) error {
	if err := u.save(ctx, conn); err != nil {
		return err
	}
	u.e.report(u.part, nil)
	u.shelf.drained(u.aside.holds)
	return u.shelf.lookAtLines(ctx, conn, u.aside.holds)
}

// drained continues the lines whose first rows are finished, except those that a replay holds.
func (s *shelf) drained(holds func(name string) bool) {
	for key, name := range s.drains {
		if holds(name) {
			s.doubtful[key] = name
			continue
		}
		s.continueLine(key, name)
	}
	clear(s.drains)
}

// lookAtLines checks whether rows that were just parked wait behind anything. They may not: the row
// in front may have died in the same call, or a person may just have handled it, or all of an
// aggregate was given back while it was blocked. Nothing else would continue such a line.
func (s *shelf) lookAtLines(ctx context.Context, conn *session.Conn, holds func(name string) bool) error {
	if s.early > 0 {
		return nil
	}
	var names []string
	kept := make(map[dispatch.Key]string)
	for key, name := range s.doubtful {
		if holds(name) {
			kept[key] = name
			continue
		}
		if !s.lane.Order(key).Busy { // otherwise the last running one reports Behind, or stays in front
			names = append(names, name)
		}
	}
	for some := range slices.Chunk(names, headsPage) {
		rows, err := conn.Query(ctx, sqlWaits, s.name, some, s.lane.Destination().Blocks())
		if err != nil {
			return fmt.Errorf("check the stored lines of %q: %w", s.name, err)
		}
		free, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("check the stored lines of %q: %w", s.name, err)
		}
		for _, name := range free {
			s.continueLine(s.order.keys.Named(name), name)
		}
	}
	s.doubtful = kept
	return nil
}

// feedLines continues stored lines. When all stored rows of a line have been handed over, its
// aggregate is unblocked at that very moment.
func (u *unit) feedLines(ctx context.Context, conn *session.Conn) (did bool, err error) {
	// Rows that are not written yet may come before the stored ones.
	u.shelf.failures = u.lane.Order(dispatch.Key{}).Failures
	u.collect()
	if u.shelf.unwrittenReady() {
		return true, u.store(ctx, conn)
	}
	granted := u.gate.grant(u.e.limits.Batch)
	if granted == 0 {
		return false, nil
	}
	read, err := u.shelf.readLines(ctx, conn, granted)
	if err != nil {
		u.lane.Return(granted)
		return false, err
	}
	u.collect() // rows parked until now are among the pending ones
	all, unblock := u.shelf.takeLines(&read)
	u.gate.deliver(u.gate.parcel(), all, unblock, granted)
	return true, nil
}

// unwrittenReady reports whether rows of a line that is ready are still to be written.
func (s *shelf) unwrittenReady() bool {
	return slices.ContainsFunc(s.ready, func(l line) bool { return s.pending.lines[l.key] })
}

// lineRows are the first rows of some lines, in the order of the lines.
type lineRows struct {
	lines []line
	per   int // rows of each, at most
	rows  []stored
	cut   bool // there were more
}

// readLines reads the first rows of lines that are ready, n at most.
func (s *shelf) readLines(ctx context.Context, conn *session.Conn, n int) (read lineRows, err error) {
	_, err = wire.Retreat(n, s.e.limits.EventBytes, func(c wire.Care) (err error) {
		read, err = s.readSome(ctx, conn, c)
		return err
	})
	if err != nil {
		return read, fmt.Errorf("read the stored lines of %q: %w", s.name, err)
	}
	return read, nil
}

func (s *shelf) readSome(ctx context.Context, conn *session.Conn, c wire.Care) (read lineRows, err error) {
	read.lines = s.ready[:min(len(s.ready), maxLines, c.Rows)]
	read.per = min(maxPerLine, c.Rows/len(read.lines))
	names := make([]string, len(read.lines))
	for i, l := range read.lines {
		names[i] = l.name
	}
	read.rows, read.cut, err = readRows(ctx, conn, s.e.limits, c.Why, sqlLines(c.EventBytes), s.name, names, read.per, s.lane.Destination().Blocks())
	return read, err
}

// takeLines converts rows into deliveries, and returns the lines that go on in memory behind them. What
// has nothing left to deliver is unblocked here.
func (s *shelf) takeLines(read *lineRows) (all []dispatch.Delivery, unblock []dispatch.Key) {
	rows := read.rows
	for _, l := range read.lines {
		n := 0
		for n < len(rows) && rows[n].key == l.name {
			n++
		}
		before := len(all)
		var state lineState
		all, state = s.takeLine(all, rows[:n])
		rows = rows[n:]
		whole := n < read.per && (!read.cut || len(rows) > 0) && !s.pending.lines[l.key]
		switch {
		case state == lineWaits: // until a row is due, or a person has handled a dead letter
		case whole && len(all) == before:
			s.lane.SetRows(l.key, dispatch.NoRows)
		case whole:
			unblock = append(unblock, l.key)
		case len(all) == before:
			s.drains[l.key] = l.name // continued with the rows that are still pending
			s.ledger.dirty = true
		}
	}
	s.dropReady(len(read.lines))
	return all, unblock
}

// lineState is the state of a line.
type lineState uint8

const (
	lineGoes  lineState = iota // its rows may be delivered
	lineWaits                  // one of them is due later, is dead and blocks, or has lost its event
)

// takeLine converts the rows of a line into deliveries, up to the first one that may not be
// delivered yet.
func (s *shelf) takeLine(all []dispatch.Delivery, rows []stored) ([]dispatch.Delivery, lineState) {
	for i := range rows {
		r := &rows[i]
		if _, is := s.held[r.id]; is || r.state == stateDead || r.state == stateRetry && !r.due {
			return all, lineWaits
		}
		s.filter(r)
		if all = s.take(all, r, true); r.missing {
			return all, lineWaits
		}
	}
	return all, lineGoes
}
