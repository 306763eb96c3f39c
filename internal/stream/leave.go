package stream

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// lastSave bounds the last write of a position that is given away.
const lastSave = 5 * time.Second

// leave ends a unit: no delivery starts any more, running ones finish, and the position is written,
// unless the unit already belongs to another relay, as why then shows. The successor repeats
// whatever the position does not show as acknowledged.
func (u *unit) leave(ctx context.Context, why error) error {
	if u.drain() {
		u.lane.Disown()
	}
	return errors.Join(why, u.lastSave(ctx, why))
}

// drain takes back what the lane has not begun, and waits for the rest. It reports false if running
// deliveries are abandoned.
func (u *unit) drain() bool {
	u.lane.Withdraw()
	u.gate.release() // the lane gives it back
	u.setFull(false)
	for u.collect(); len(u.gate.flight.Parcels) > 0 || u.replay.UnderWay(); u.collect() {
		select {
		case <-u.wake:
		case <-u.e.abandoned:
			return false
		}
	}
	return true
}

// lastSave writes the position for the last time.
func (u *unit) lastSave(ctx context.Context, why error) error {
	u.collect()
	if why != nil || !u.ledger.dirty && u.shelf.pending.empty() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSave)
	defer cancel()
	pauses := store.NewPauses()
	for {
		err := u.e.pool.use(ctx, &u.pos.Lease, func(conn *session.Conn) error { return u.save(ctx, conn) })
		switch {
		case err == nil:
			return nil
		case errors.Is(err, position.ErrFenced), errors.Is(err, lease.ErrMoved), ctx.Err() != nil:
			return err
		}
		sleep(ctx, pauses.After(err))
	}
}

// hinted reports to the unit that there may be events to read, and with seek that rows may have
// become due. It never blocks.
func (u *unit) hinted(seek bool) {
	u.hint.Store(true)
	if seek {
		u.seek.Store(true)
	}
	u.poke()
}

// publish makes the unit's figures visible to other goroutines.
func (u *unit) publish() {
	gaps := u.reader.Gaps()
	open := int64(u.gate.flight.UnderWay() + len(u.shelf.pending.fresh))
	u.figures.Store(&observe.PositionStats{
		Destination: u.name, Part: u.pos.Part, Loading: !u.loaded, Head: u.reader.Head(), Open: open, Gaps: u.e.possible(gaps), Ranges: int64(gaps.Len()),
		OldestGap: u.reader.GapStats().Oldest, Delivered: uint64(max(0, u.ledger.acknowledged)), Saved: u.ledger.saves, SavedAt: u.ledger.at,
	})
}

// stats returns the figures of the unit.
func (u *unit) stats() observe.PositionStats {
	s := *u.figures.Load()
	s.Blocked = u.lane.Order(dispatch.Key{}).Aggregates
	return s
}

func sortPositions(all []observe.PositionStats) {
	slices.SortFunc(all, func(a, b observe.PositionStats) int {
		return cmp.Or(cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Part, b.Part))
	})
}
