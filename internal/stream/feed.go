package stream

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
)

// feed hands the next events to the lane, if it has room. It reports whether it did anything.
func (u *unit) feed(ctx context.Context, conn *pgx.Conn) (did bool, err error) {
	if n, spilled := u.lane.Spills(); spilled {
		u.collect()
		if !u.lane.GoOn(n) {
			return true, nil
		}
	}
	u.waits = false
	held := u.shelf.lineHeld()
	if len(u.flight.again) > 0 && !held {
		return u.feedAgain(), nil //nolint:contextcheck // deliveries outlive the read
	}
	u.unsure = !u.pos.Sure()
	if u.stuck = u.unsure || u.flight.bytes >= u.e.memory(); u.stuck {
		return false, nil
	}
	if u.shelf.early > 0 {
		return u.read(ctx, conn)
	}
	if held && u.feedHeld() { //nolint:contextcheck // deliveries outlive the read
		return true, nil
	}
	if len(u.shelf.ready) > 0 {
		return u.feedLines(ctx, conn)
	}
	u.shelf.dueTurn = !u.shelf.dueTurn
	if u.shelf.dueTurn && !time.Now().Before(u.shelf.dueAt) {
		if did, err = u.feedDue(ctx, conn); did || err != nil {
			return did, err
		}
	}
	if u.waits = u.shelf.lineHeld(); u.waits {
		u.begins()
		return false, nil
	}
	if did, err = u.read(ctx, conn); did || err != nil || u.replay == nil {
		return did, err
	}
	return u.feedReplay(ctx, conn)
}

// feedAgain hands over returned deliveries, in the order of ids.
func (u *unit) feedAgain() bool {
	u.unsure = !u.pos.Sure()
	if u.stuck = u.unsure; u.stuck {
		return false
	}
	n := u.grant(min(len(u.flight.again), u.e.limits.Batch))
	if n == 0 {
		return false
	}
	p := u.parcel()
	u.deliver(p, append(p.Room(n), u.flight.again[:n]...), nil, n)
	u.flight.again = slices.Delete(u.flight.again, 0, n)
	return true
}

// grant reserves room in the lane; if there is none, the lane reports when there is.
func (u *unit) grant(n int) int {
	granted := u.lane.GrantFair(n)
	u.stuck = granted == 0
	return granted
}

// deliver hands over deliveries in a parcel, for which room was granted.
func (u *unit) deliver(p *dispatch.Parcel, all []dispatch.Delivery, unblock []dispatch.Key, granted int) {
	if len(all) == 0 {
		u.flight.keep(p)
		u.lane.Return(granted)
		return
	}
	p.Fill(all)
	u.flight.begin(p, all)
	u.pass(p, unblock)
	u.lane.Return(granted - len(all))
}

// pass gives a parcel to the lane, behind a seal if the destination keeps its position.
func (u *unit) pass(p *dispatch.Parcel, unblock []dispatch.Key) {
	if u.exact != nil {
		u.exact.staged = append(u.exact.staged, staged{p, unblock})
		return
	}
	u.lane.Deliver(p, unblock)
}

// parcel returns an empty parcel.
func (u *unit) parcel() *dispatch.Parcel {
	if p := u.flight.unused(); p != nil {
		return p
	}
	return dispatch.NewParcel(u.pos.Sure, func(bool) { u.poke() })
}
