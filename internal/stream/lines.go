package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
)

const (
	// maxLines is how many lines are gone on with by one statement, and maxPerLine
	// how many rows of each are read at most.
	maxLines   = 64
	maxPerLine = 100
)

// feedDue hands over rows that are due. Where the last of them was read the unit
// begins anew when the next one is due.
func (u *unit) feedDue(ctx context.Context, conn *pgx.Conn) (did bool, err error) {
	if u.stuck = u.lane.StoredWait(); u.stuck {
		return false, nil
	}
	granted := u.grant(u.e.limits.Batch)
	if granted == 0 {
		return false, nil
	}
	rows, more, err := u.shelf.readDue(ctx, conn, granted, u.e.limits.Bytes)
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
			continue // it is under way, or was until a moment ago
		}
		if r.key != "" && !r.first && r.event.Replay == 0 && !r.orphan && u.lane.Ordered() {
			// Not the first of its line, which only a table has that was a queue.
			key := u.e.keys.Named(r.key)
			u.shelf.pending.put(entry{id: r.id, eventType: r.event.Type, state: stateParked, attempts: r.attempts, key: r.key}, key)
			u.shelf.held[r.id], u.shelf.doubtful[key] = r.state, r.key
			u.ledger.dirty = true
			continue
		}
		if r.orphan && r.key != "" && u.lane.Ordered() {
			u.shelf.drains[u.e.keys.Named(r.key)] = r.key // others may wait behind it
		}
		all = u.take(all, r, r.key != "")
	}
	// What is due together goes in the order of ids.
	slices.SortFunc(all, func(a, b dispatch.Delivery) int { return compare(a.Event.ID, b.Event.ID) })
	u.deliver(u.parcel(), all, nil, granted) //nolint:contextcheck // deliveries outlive the read
	return len(all) > 0 || more, nil
}

// planDue notes where to go on, and when.
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
	u.shelf.lookAnew()
	u.shelf.dueAt = time.Now().Add(wait)
	return nil
}

// take makes a delivery of a row, and appends it to all. One whose event was
// deleted by hand is removed instead.
func (u *unit) take(all []dispatch.Delivery, r *stored, leads bool) []dispatch.Delivery {
	if r.orphan {
		u.shelf.pending.remove(r.id)
		u.shelf.held[r.id] = r.state
		u.ledger.dirty = true
		return all
	}
	d := dispatch.Delivery{Event: &r.event, Failures: r.attempts, Row: true, Leads: leads, Delayed: r.delayed}
	r.event.Destination = u.name
	switch {
	case !u.lane.Ordered():
	case r.key != "":
		d.Key = u.e.keys.Named(r.key)
	default:
		d.Key, u.scratch = u.e.keys.Of(u.scratch, &r.event)
	}
	u.shelf.held[r.id] = r.state
	return append(all, d)
}

// store writes what there is to be written, and takes up the lines whose first rows
// have been dealt with: that has just been written, so that a line is read as it is.
func (u *unit) store(ctx context.Context, conn *pgx.Conn) error {
	if err := u.save(ctx, conn); err != nil {
		return err
	}
	u.e.report(nil)
	for key, name := range u.shelf.drains {
		u.shelf.goOn(key, name)
	}
	clear(u.shelf.drains)
	return u.lookAtLines(ctx, conn)
}

// lookAtLines looks whether what was just parked waits behind anything. It may not: what
// was in front of it may have died in the same call, or a person has dealt with it a moment ago, or
// all of an aggregate was given back while it was blocked. Nobody else would go on with such a line.
func (u *unit) lookAtLines(ctx context.Context, conn *pgx.Conn) error {
	if u.early > 0 {
		return nil
	}
	var names []string
	for key, name := range u.shelf.doubtful {
		if !u.lane.Busy(key) { // else the last that is under way says Behind, or stays in front
			names = append(names, name)
		}
	}
	for some := range slices.Chunk(names, headsPage) {
		rows, err := conn.Query(ctx, sqlWaits, u.name, some, u.lane.Blocks())
		if err != nil {
			return fmt.Errorf("look at what is stored of %q: %w", u.name, err)
		}
		free, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("look at what is stored of %q: %w", u.name, err)
		}
		for _, name := range free {
			u.shelf.goOn(u.e.keys.Named(name), name)
		}
	}
	clear(u.shelf.doubtful)
	return nil
}

// feedLines goes on with stored lines. Where all that is stored of a line has been
// handed over, its aggregate is not blocked any more, from the very moment at which
// that was done.
func (u *unit) feedLines(ctx context.Context, conn *pgx.Conn) (did bool, err error) {
	// What was parked a moment ago may come before what is stored.
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
	rows, cut, err := readRows(ctx, conn, u.e.limits.Bytes, sqlLines, u.name, names, per, u.lane.Blocks())
	if err != nil {
		u.lane.Return(granted)
		return false, fmt.Errorf("read what is stored of %q: %w", u.name, err)
	}
	u.collect() // what was parked until now is among what is to be written
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
		case state == lineWaits: // until it is due, or until somebody has dealt with a dead letter
		case whole && len(all) == before:
			u.lane.Unblock(l.key)
		case whole:
			unblock = append(unblock, l.key)
		case len(all) == before:
			u.shelf.drains[l.key] = l.name // with what has yet to be written
			u.ledger.dirty = true
		}
	}
	u.shelf.wentOn(len(lines))
	u.deliver(u.parcel(), all, unblock, granted) //nolint:contextcheck // deliveries outlive the read
	return true, nil
}

// lineState is what was found in a line.
type lineState uint8

const (
	lineGoes  lineState = iota // its rows may be delivered
	lineWaits                  // one of them is to be tried later, or is dead and blocks
)

// takeLine makes deliveries of the rows of a line, up to the first one that may not be
// delivered yet.
func (u *unit) takeLine(all []dispatch.Delivery, rows []stored) ([]dispatch.Delivery, lineState) {
	for i := range rows {
		r := &rows[i]
		if _, is := u.shelf.held[r.id]; is || !r.orphan && (r.state == stateDead || r.state == stateRetry && !r.due) {
			return all, lineWaits
		}
		all = u.take(all, r, true)
	}
	return all, lineGoes
}
