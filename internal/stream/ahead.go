package stream

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
)

// aheadBatches is how many reads of events a unit keeps in memory where the latest of an aggregate supersedes the others:
// more than the lane has room for, so that a slow destination gets the latest of many.
const aheadBatches = 4

// backlog has events that were read before the lane had room for them, of each aggregate the latest, in the order of ids.
type backlog struct {
	events []dispatch.Delivery
	bytes  int
}

// readsAhead reports whether the unit reads more than the lane has room for. At a take-over it does not: stored rows may
// have to wait for what was open, until that is in the lane, or a row, too.
func (u *unit) readsAhead() bool { return u.shelf.early == 0 && u.lane.Limits().Supersedes() }

// full reports whether no more may be read.
func (a *backlog) full(batch, memory int) bool {
	return len(a.events) >= aheadBatches*batch || a.bytes >= memory/2
}

// add adds events that were read, and returns how many are superseded. An event that will be a dead letter supersedes nothing.
func (a *backlog) add(all []dispatch.Delivery) (superseded int) {
	latest := make(map[dispatch.Key]int64, len(a.events)+len(all))
	note := func(some []dispatch.Delivery) {
		for i := range some {
			if d := &some[i]; d.Refused == nil {
				latest[d.Key] = max(latest[d.Key], d.Event.ID)
			}
		}
	}
	note(a.events)
	note(all)
	before := len(a.events) + len(all)
	for i := range all {
		a.events = append(a.events, own(all[i]))
	}
	a.bytes = 0
	a.events = slices.DeleteFunc(a.events, func(d dispatch.Delivery) bool {
		if d.Key != (dispatch.Key{}) && d.Event.ID < latest[d.Key] {
			return true
		}
		a.bytes += eventBytes(d.Event)
		return false
	})
	slices.SortFunc(a.events, func(x, y dispatch.Delivery) int { return compare(x.Event.ID, y.Event.ID) })
	return before - len(a.events)
}

// own returns a delivery whose event shares no memory with the others of its read: they may be superseded.
func own(d dispatch.Delivery) dispatch.Delivery {
	e := *d.Event
	e.Payload, e.AggregateID = bytes.Clone(e.Payload), strings.Clone(e.AggregateID)
	d.Event = &e
	return d
}

// take removes the first n events.
func (a *backlog) take(to []dispatch.Delivery, n int) []dispatch.Delivery {
	to = append(to, a.events[:n]...)
	for i := range to {
		a.bytes -= eventBytes(to[i].Event)
	}
	a.events = slices.Delete(a.events, 0, n)
	return to
}

// readAhead reads all there is, as far as memory allows, and then hands over what the lane has room for.
func (u *unit) readAhead(ctx context.Context, conn *pgx.Conn) (did bool, err error) {
	if u.readsNow() && !u.gate.ahead.full(u.e.limits.Batch, u.e.memory()) {
		return u.readNext(ctx, conn, u.e.limits.Batch)
	}
	if len(u.gate.ahead.events) == 0 {
		return false, nil
	}
	n := u.gate.grant(min(len(u.gate.ahead.events), u.e.limits.Batch))
	if n == 0 {
		return false, nil
	}
	p := u.gate.parcel()
	u.gate.deliver(p, u.gate.ahead.take(p.Room(n), n), nil, n) //nolint:contextcheck // deliveries outlive the read
	return true, nil
}
