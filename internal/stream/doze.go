package stream

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/internal/tail"
)

// fallAsleep lets the bell ring and waits for silent writers. It reports whether the relay must be
// awake again before it has fallen asleep.
func (v *vigil) fallAsleep(ctx context.Context) (floor float64, again bool) {
	pause := drowsyFirst
	v.become(drowsy)
	d := doze{rang: v.bell == nil}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	v.asked = time.Now()
	for ctx.Err() == nil {
		v.part.Begin()
		over, err := v.goOn(ctx, &d)
		if over {
			v.report(nil)
			v.become(asleep) // and all units read once more
			return 0, false
		}
		if err != nil && ctx.Err() == nil {
			v.report(err)
		}
		if v.rest(ctx, pause, tick.C) {
			return idleRate, true
		}
		pause = min(2*pause, v.poll)
		if d.rang && !d.rings {
			pause = min(pause, fastPoll) // no writer rings for the units of this relay
		}
		v.wakeAll()
	}
	return 0, false
}

// rest pauses, and reports whether the relay must be awake again, which ends the pause: the
// transaction of a silent writer may last.
func (v *vigil) rest(ctx context.Context, pause time.Duration, tick <-chan time.Time) (again bool) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		v.part.Begin()
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return false
		case <-v.rise:
			return true
		case <-tick:
			if v.busy() {
				return true
			}
		}
	}
}

// doze is the progress of falling asleep.
type doze struct {
	rang   bool       // this relay has released the bell
	rings  bool       // all others have released it, too, at mark
	mark   uint64     // the time, as looks count it
	silent *tail.Look // possible silent writers
}

// goOn takes the next step of falling asleep, and reports whether it was the last. A writer that
// was silent because of another relay drew an id before that relay released the bell, so the first
// look that counts begins when all have. A relay that falls silent later notifies the others.
func (v *vigil) goOn(ctx context.Context, d *doze) (over bool, err error) {
	if !d.rang {
		if _, err := v.bell.Ring(ctx); err != nil {
			return false, err
		}
		d.rang = true
	}
	if !d.rings {
		if v.silenced(ctx) {
			return false, nil
		}
		d.rings, d.mark = true, v.mark()
	}
	now, err := v.look(ctx, d.mark)
	if err != nil || now == nil {
		return false, err
	}
	if d.silent == nil {
		d.silent = now
	}
	if now.Remain(d.silent) {
		return false, nil
	}
	if v.silenced(ctx) { // a relay whose notification was not heard
		d.rings, d.silent = false, nil
		return false, nil
	}
	return true, nil
}

// silenced reports whether another relay keeps the bell silent, or may do so.
func (v *vigil) silenced(ctx context.Context) bool {
	h, ok := v.bell.(Holders)
	if !ok {
		return false
	}
	yes, err := h.Silenced(ctx)
	return yes || err != nil
}
