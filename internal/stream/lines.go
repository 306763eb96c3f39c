package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

const (
	// maxLines is how many lines one statement continues, and maxPerLine how many rows of each it
	// reads at most.
	maxLines   = 64
	maxPerLine = 100
)

// feedDue hands over rows that are due. After the last of them, the unit starts over when the next
// one is due.
func (u *unit) feedDue(ctx context.Context, conn *pgx.Conn) (did bool, err error) {
	if u.stuck = !u.order.total && u.lane.StoredWait(); u.stuck { // nothing new goes before the one line of a total order
		return false, nil
	}
	granted := u.grant(u.e.limits.Batch)
	if granted == 0 {
		return false, nil
	}
	rows, more, err := u.shelf.readDue(ctx, conn, granted, u.e.limits)
	if err == nil {
		err = u.planDue(ctx, conn, rows, more)
	}
	if err != nil {
		u.lane.Return(granted)
		return false, err
	}
	all := make([]dispatch.Delivery, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		if _, is := u.shelf.held[r.id]; is {
			continue // it is running, or was until a moment ago
		}
		if u.holds(r.key) {
			continue
		}
		u.filter(r)
		leads, waits := u.order.leads(r)
		if waits {
			// Not the first of its line, which happens only in a table that was a queue, or had another order.
			key := u.order.keys.Named(r.key)
			u.shelf.pending.put(entry{id: r.id, eventType: r.event.Type, state: stateParked, attempts: r.attempts, key: r.key}, key)
			u.shelf.held[r.id], u.shelf.doubtful[key] = r.state, r.key
			// What is in flight of the line ends it: that answer must say that rows wait behind it.
			u.lane.Block(key)
			u.ledger.dirty = true
			continue
		}
		if r.orphan && leads {
			u.shelf.drains[u.order.keys.Named(r.key)] = r.key // other rows may wait behind it
		}
		all = u.take(all, r, leads)
	}
	// Rows that are due together go in the order of ids.
	slices.SortFunc(all, func(a, b dispatch.Delivery) int { return compare(a.Event.ID, b.Event.ID) })
	u.deliver(u.parcel(), all, nil, granted) //nolint:contextcheck // deliveries outlive the read
	return len(all) > 0 || more, nil
}

// planDue records the position and time of the next search for due rows.
func (u *unit) planDue(ctx context.Context, conn *pgx.Conn, rows []stored, more bool) error { //nolint:revive // what the read has shown
	if len(rows) > 0 {
		last := &rows[len(rows)-1]
		u.shelf.duePlace = duePlace{last.at, last.id}
	}
	if more {
		return nil
	}
	wait, known, err := u.shelf.nextDue(ctx, conn)
	if err != nil {
		return err
	}
	if wait = min(wait, u.e.limits.PollInterval); !known {
		wait = u.e.limits.PollInterval
	}
	u.shelf.searchNow()
	u.shelf.dueAt = time.Now().Add(wait)
	return nil
}

// passes asks the filter, if there is one, about an event that is about to be delivered. refused is why it must not be, if that is
// known before; so is the error.
func (u *unit) passes(e *delivery.Event, refused error) (bool, error) {
	if f := u.e.d.FilterOf(u.lane, e.Type); f != nil && refused == nil {
		return u.lane.Passes(f, &delivery.Candidate{Event: e})
	}
	return true, refused
}

// filter does so for a row. One that is not for the destination any more is finished, like one whose event
// was deleted.
func (u *unit) filter(r *stored) {
	if r.orphan {
		return
	}
	passes, refused := u.passes(&r.event, r.refused)
	r.orphan, r.refused = !passes, refused
}

// take converts a row into a delivery, and appends it to all. A row whose event was deleted by hand
// is removed instead.
func (u *unit) take(all []dispatch.Delivery, r *stored, leads bool) []dispatch.Delivery {
	if r.orphan {
		u.shelf.pending.remove(r.id)
		u.shelf.held[r.id] = r.state
		u.ledger.dirty = true
		return all
	}
	d := dispatch.Delivery{Event: &r.event, Refused: r.refused, Failures: r.attempts, Row: true, Leads: leads, Delayed: r.delayed}
	r.event.Destination = u.name
	if u.order.kept && !u.order.total && r.key != "" {
		d.Key = u.order.keys.Named(r.key)
	} else {
		d.Key, u.scratch = u.order.of(u.scratch, &r.event)
	}
	u.shelf.hold(r)
	return append(all, d)
}

// store writes the pending rows, and then continues the lines whose first rows are finished: the
// write comes first, so that a line is read as it is.
func (u *unit) store(ctx context.Context, conn *pgx.Conn) error {
	if err := u.save(ctx, conn); err != nil {
		return err
	}
	u.e.report(u.part, nil)
	for key, name := range u.shelf.drains {
		if u.holds(name) {
			u.shelf.doubtful[key] = name
			continue
		}
		u.shelf.continueLine(key, name)
	}
	clear(u.shelf.drains)
	return u.lookAtLines(ctx, conn)
}

// lookAtLines checks whether rows that were just parked wait behind anything. They may not: the row
// in front may have died in the same call, or a person may just have handled it, or all of an
// aggregate was given back while it was blocked. Nothing else would continue such a line.
func (u *unit) lookAtLines(ctx context.Context, conn *pgx.Conn) error {
	if u.early > 0 {
		return nil
	}
	var names []string
	kept := make(map[dispatch.Key]string)
	for key, name := range u.shelf.doubtful {
		if u.holds(name) {
			kept[key] = name
			continue
		}
		if !u.lane.Busy(key) { // otherwise the last running one reports Behind, or stays in front
			names = append(names, name)
		}
	}
	for some := range slices.Chunk(names, headsPage) {
		rows, err := conn.Query(ctx, sqlWaits, u.name, some, u.lane.Blocks())
		if err != nil {
			return fmt.Errorf("check the stored lines of %q: %w", u.name, err)
		}
		free, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("check the stored lines of %q: %w", u.name, err)
		}
		for _, name := range free {
			u.shelf.continueLine(u.order.keys.Named(name), name)
		}
	}
	u.shelf.doubtful = kept
	return nil
}

// feedLines continues stored lines. When all stored rows of a line have been handed over, its
// aggregate is unblocked at that very moment.
func (u *unit) feedLines(ctx context.Context, conn *pgx.Conn) (did bool, err error) {
	// Rows parked a moment ago may come before the stored ones.
	u.collect()
	if slices.ContainsFunc(u.shelf.ready, func(l line) bool { return u.shelf.pending.parked[l.key] > 0 }) {
		return true, u.store(ctx, conn)
	}
	granted := u.grant(u.e.limits.Batch)
	if granted == 0 {
		return false, nil
	}
	lines := u.shelf.ready[:min(len(u.shelf.ready), maxLines, granted)]
	per := min(maxPerLine, granted/len(lines))
	names := make([]string, len(lines))
	for i, l := range lines {
		names[i] = l.name
	}
	rows, cut, err := readRows(ctx, conn, u.e.limits, sqlLines(u.e.limits.EventBytes), u.name, names, per, u.lane.Blocks())
	if err != nil {
		u.lane.Return(granted)
		return false, fmt.Errorf("read the stored lines of %q: %w", u.name, err)
	}
	u.collect() // rows parked until now are among the pending ones
	var all []dispatch.Delivery
	var unblock []dispatch.Key
	for _, l := range lines {
		n := 0
		for n < len(rows) && rows[n].key == l.name {
			n++
		}
		before := len(all)
		var state lineState
		all, state = u.takeLine(all, rows[:n])
		rows = rows[n:]
		whole := n < per && (!cut || len(rows) > 0) && u.shelf.pending.parked[l.key] == 0
		switch {
		case state == lineWaits: // until a row is due, or a person has handled a dead letter
		case whole && len(all) == before:
			u.lane.Unblock(l.key)
		case whole:
			unblock = append(unblock, l.key)
		case len(all) == before:
			u.shelf.drains[l.key] = l.name // continued with the rows that are still pending
			u.ledger.dirty = true
		}
	}
	u.shelf.dropReady(len(lines))
	u.deliver(u.parcel(), all, unblock, granted) //nolint:contextcheck // deliveries outlive the read
	return true, nil
}

// lineState is the state of a line.
type lineState uint8

const (
	lineGoes  lineState = iota // its rows may be delivered
	lineWaits                  // one of them is due later, or is dead and blocks
)

// takeLine converts the rows of a line into deliveries, up to the first one that may not be
// delivered yet.
func (u *unit) takeLine(all []dispatch.Delivery, rows []stored) ([]dispatch.Delivery, lineState) {
	for i := range rows {
		r := &rows[i]
		if _, is := u.shelf.held[r.id]; is || !r.orphan && (r.state == stateDead || r.state == stateRetry && !r.due) {
			return all, lineWaits
		}
		u.filter(r)
		all = u.take(all, r, true)
	}
	return all, lineGoes
}
