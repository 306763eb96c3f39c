package stream

import (
	"context"

	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/internal/wake"
)

// Holders is implemented by a [wake.Bell] that can tell whether another relay keeps it silent.
type Holders interface {
	Silenced(ctx context.Context) (bool, error)
}

// settle waits for silent writers. Each has drawn an id before, and holds the lock of the sequence until the end
// of its transaction. One that was silent because of another relay drew its id before that relay released the
// bell, so the first look that counts begins when all have. A relay that falls silent later notifies the others.
func (e *Engine) settle(uint64) func(context.Context) (wake.Writers, error) {
	holders, _ := e.Bell.(Holders)
	rings := false        // all relays have released the bell, at mark
	var mark uint64       // as looks count it
	var silent *tail.Look // possible silent writers
	silenced := func(ctx context.Context) bool {
		if holders == nil {
			return false
		}
		yes, err := holders.Silenced(ctx)
		return yes || err != nil
	}
	return func(ctx context.Context) (wake.Writers, error) {
		if !rings {
			if silenced(ctx) {
				return wake.Silenced, nil
			}
			rings, mark = true, e.witnesses.Mark()
		}
		now, err := e.lookAfter(ctx, mark)
		if err != nil || now == nil {
			return wake.Open, err
		}
		if silent == nil {
			silent = now
		}
		if now.Remain(silent) {
			return wake.Open, nil
		}
		if silenced(ctx) { // by a relay whose notification was not heard
			rings, silent = false, nil
			return wake.Silenced, nil
		}
		return wake.Ended, nil
	}
}

// lookAfter returns a look at the transactions that may have drawn ids, which began after a mark;
// nil if it is too early for one.
func (e *Engine) lookAfter(ctx context.Context, mark uint64) (l *tail.Look, err error) {
	err = e.pool.lend(ctx, func(ctx context.Context, conn *session.Conn) (err error) {
		l, err = e.witnesses.Look(ctx, conn)
		return err
	})
	if err != nil || l == nil || !l.Began(mark) {
		return nil, err
	}
	return l, nil
}
