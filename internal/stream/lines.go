package stream

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/aggregates"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/replay"
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
		if !u.replay.Holds(rows[i].Key) {
			all = u.shelf.takeDue(all, &rows[i])
		}
	}
	if len(all) == 0 && !more {
		u.shelf.foundNone()
	}
	// Rows that are due together go in the order of ids.
	slices.SortFunc(all, func(a, b dispatch.Delivery) int { return cmp.Compare(a.Event.ID, b.Event.ID) })
	u.gate.deliver(u.gate.parcel(), all, nil, granted)
	return len(all) > 0 || more || u.shelf.aggregates.AnyReady(), nil
}

// unwritten reports whether one of the rows would lead a queue of which others are still to be written: one of those may come before it.
func (s *shelf) unwritten(rows []deliveries.Row) bool {
	return slices.ContainsFunc(rows, func(r deliveries.Row) bool {
		leads, waits := s.order.leads(&r)
		_, is := s.running[r.Event.ID]
		return leads && !waits && !is && s.aggregates.Unwritten(s.order.keyOf(r.Key))
	})
}

// planDue records the position and time of the next search for due rows.
func (s *shelf) planDue(ctx context.Context, conn *session.Conn, rows []deliveries.Row, more bool) error {
	if len(rows) > 0 {
		last := &rows[len(rows)-1]
		s.duePlace = duePlace{last.At, last.Event.ID}
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

// foundNone records that no rows are due now. The queue of a total order may have nothing in front any more: a person has
// discarded a dead letter. In other orders that makes the row behind it due.
func (s *shelf) foundNone() {
	if s.totalHeld() && !s.lane.Order(s.order.line).Busy {
		s.aggregates.Move(s.order.line, totalName, aggregates.Free)
	}
}

// takeDue appends a row that is due to all, unless it runs or waits for others.
func (s *shelf) takeDue(all []dispatch.Delivery, r *deliveries.Row) []dispatch.Delivery {
	if _, is := s.running[r.Event.ID]; is {
		return all // it is running, or was until a moment ago
	}
	s.filter(r)
	leads, waits := s.order.leads(r)
	key, name := s.order.keyOf(r.Key), s.order.queue(r.Key)
	if waits {
		// Not the first of its queue, which happens only in a table that was a queue, or had another order.
		waiting := r.Entry(s.name, deliveries.Parked)
		waiting.Key = s.order.nameOf(r)
		s.put(entry{Entry: waiting}, key)
		s.run(r)
		s.aggregates.Move(key, name, aggregates.Parked)
		// What is in flight of the queue ends it: that answer must say that rows wait behind it.
		s.lane.SetRows(key, dispatch.SomeRows)
		s.ledger.dirty = true
		return all
	}
	if r.Filtered && leads && s.lane.Order(key).Blocked {
		s.aggregates.Move(key, name, aggregates.Finished) // other rows may wait behind it
	}
	return s.take(all, r, leads)
}

// filter asks the filter about a row. One that is not for the destination any more is finished.
func (s *shelf) filter(r *deliveries.Row) {
	if r.Missing || r.Filtered {
		return
	}
	passes, refused := s.passes(&r.Event, r.Refused)
	r.Filtered, r.Refused = !passes, refused
}

// take converts a row into a delivery, and appends it to all. A row whose event is missing is due
// later instead, and one that is over is removed.
func (s *shelf) take(all []dispatch.Delivery, r *deliveries.Row, leads bool) []dispatch.Delivery {
	s.run(r)
	if r.Missing {
		later := r.Entry(s.name, deliveries.Retry)
		later.Delay, later.Class, later.Err = s.e.missing.Met(s.name, r.Event.ID), engine.ClassMissing, engine.ErrMissing.Error()
		s.put(entry{Entry: later}, s.order.keyOf(r.Key))
		s.ledger.dirty = true
		return all
	}
	if r.Filtered {
		s.pending.remove(r.Event.ID)
		s.ledger.dirty = true
		return all
	}
	d := dispatch.Delivery{Event: &r.Event, Refused: r.Refused, Failures: r.Failures, Row: true, Leads: leads, Since: s.failures, Delayed: r.Delay != 0, Waited: true}
	if r.Event.Replay == 0 && !replay.IsKey(r.Key) { // what a person asks for does not expire
		d.Expires = s.lane.Destination().Expires(r.Event.CreatedAt, r.Available())
	}
	r.Event.Destination, r.Event.Outbox = s.name, s.e.Outbox
	if d.Key = s.order.keyOf(r.Key); s.order.unnamed(r.Key) {
		d.Key = s.order.of(&r.Event) // from now on it is in the queue of its aggregate
	}
	return append(all, d)
}

// store writes the pending rows, and then continues the lines whose first rows are finished: the
// write comes first, so that a line is read as it is.
func (u *unit) store(ctx context.Context, conn *session.Conn) error {
	if err := u.save(ctx, conn); err != nil {
		return err
	}
	u.e.report(u.part, nil)
	u.shelf.aggregates.Wrote(u.replay.Holds)
	return u.shelf.check(ctx, conn, u.replay.Holds)
}

// check looks at aggregates whose first row was just parked, and may wait for nothing: the row
// in front may have died in the same call, or a person may just have handled it, or all of an
// aggregate was given back while it was blocked. Nothing else would continue such an aggregate.
func (s *shelf) check(ctx context.Context, conn *session.Conn, holds func(name string) bool) error {
	if s.early > 0 {
		return nil
	}
	look := s.aggregates.Checks(func(k dispatch.Key) bool { return s.lane.Order(k).Busy }, holds)
	for some := range slices.Chunk(look, headsPage) {
		names := make([]string, len(some))
		for i, g := range some {
			names[i] = g.Name
		}
		rows, err := conn.Query(ctx, sqlWaits(s.order), s.name, names, s.lane.Destination().Blocks())
		if err != nil {
			return fmt.Errorf("check the stored deliveries of %q: %w", s.name, err)
		}
		free, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("check the stored deliveries of %q: %w", s.name, err)
		}
		slices.Sort(free)
		for _, g := range some {
			_, is := slices.BinarySearch(free, g.Name)
			s.aggregates.Looked(g, is)
		}
	}
	return nil
}

// feedStored continues aggregates that are ready. When all stored rows of one have been handed over, its
// aggregate is unblocked at that very moment.
func (u *unit) feedStored(ctx context.Context, conn *session.Conn) (did bool, err error) {
	// Rows that are not written yet may come before the stored ones.
	u.shelf.failures = u.lane.Order(dispatch.Key{}).Failures
	u.collect()
	switch {
	case !u.shelf.aggregates.AnyReady(): // the answers have moved them on
		return true, nil
	case u.shelf.aggregates.UnwrittenReady():
		return true, u.store(ctx, conn)
	}
	granted := u.gate.grant(u.e.limits.Batch)
	if granted == 0 {
		return false, nil
	}
	read, err := u.shelf.readFirst(ctx, conn, granted)
	if err != nil {
		u.lane.Return(granted)
		return false, err
	}
	u.collect() // rows parked until now are among the pending ones
	all, unblock := u.shelf.takeFirst(&read)
	u.gate.deliver(u.gate.parcel(), all, unblock, granted)
	return true, nil
}

// firstRows are the first rows of some aggregates, one aggregate after the other.
type firstRows struct {
	of   []*aggregates.Aggregate
	per  int // rows of each, at most
	rows []deliveries.Row
	cut  bool // there were more
}

// readFirst reads the first rows of aggregates that are ready, n at most.
func (s *shelf) readFirst(ctx context.Context, conn *session.Conn, n int) (read firstRows, err error) {
	some := s.aggregates.Take(min(maxLines, n))
	_, err = wire.Retreat(n, s.e.limits.EventBytes, func(c wire.Care) (err error) {
		read, err = s.readSome(ctx, conn, some[:min(len(some), c.Rows)], c)
		return err
	})
	if err != nil {
		read.of, err = nil, fmt.Errorf("read the stored deliveries of %q: %w", s.name, err)
	}
	for _, g := range some[len(read.of):] {
		s.aggregates.Move(g.Key, g.Name, aggregates.Free)
	}
	return read, err
}

func (s *shelf) readSome(ctx context.Context, conn *session.Conn, some []*aggregates.Aggregate, c wire.Care) (read firstRows, err error) {
	read.of, read.per = some, min(maxPerLine, c.Rows/len(some))
	names := make([]string, len(some))
	for i, g := range some {
		names[i] = g.Name
	}
	read.rows, read.cut, err = deliveries.Read(ctx, conn, s.e.limits, c.Why, sqlLines(c.EventBytes, s.order), s.name, names, read.per, s.lane.Destination().Blocks())
	return read, err
}

// takeFirst converts rows into deliveries, and returns the aggregates that go on in memory behind them. What
// has nothing left to deliver is unblocked here.
func (s *shelf) takeFirst(read *firstRows) (all []dispatch.Delivery, unblock []dispatch.Key) {
	rows := read.rows
	for _, g := range read.of {
		n := 0
		for n < len(rows) && s.order.queue(rows[n].Key) == g.Name {
			n++
		}
		before := len(all)
		var waits bool
		all, waits = s.takeRows(all, rows[:n])
		rows = rows[n:]
		whole := n < read.per && (!read.cut || len(rows) > 0) && !s.aggregates.Unwritten(g.Key)
		switch {
		case waits: // until a row is due, or a person has handled a dead letter
		case whole && len(all) == before:
			s.lane.SetRows(g.Key, dispatch.NoRows)
		case whole:
			unblock = append(unblock, g.Key)
		case len(all) == before: // continued with the rows that are still pending
			s.aggregates.Move(g.Key, g.Name, aggregates.Finished)
			s.ledger.dirty = true
		}
	}
	return all, unblock
}

// takeRows converts the rows of an aggregate into deliveries, up to the first one that may not be delivered yet: it
// runs, is due later, is dead and blocks, or has lost its event. waits reports that there is one.
func (s *shelf) takeRows(all []dispatch.Delivery, rows []deliveries.Row) (_ []dispatch.Delivery, waits bool) {
	for i := range rows {
		r := &rows[i]
		if _, is := s.running[r.Event.ID]; is || r.State == deliveries.Dead || r.State == deliveries.Retry && !r.Due {
			return all, true
		}
		s.filter(r)
		if all = s.take(all, r, true); r.Missing {
			return all, true
		}
	}
	return all, false
}
