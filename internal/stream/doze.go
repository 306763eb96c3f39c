package stream

import (
	"context"
	"slices"
	"time"
)

// fallAsleep lets the bell ring and waits for those who wrote silently. It reports
// whether the relay is to be awake again before that has come to its end.
func (v *vigil) fallAsleep(ctx context.Context) (floor float64, again bool) {
	pause := drowsyFirst
	v.become(drowsy)
	d := doze{rang: v.bell == nil}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	v.asked = time.Now()
	for ctx.Err() == nil {
		over, err := v.goOn(ctx, &d)
		if over {
			v.become(asleep) // and everybody reads once more
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
			pause = min(pause, fastPoll) // nobody rings for what the units of this one are to read
		}
		v.wakeAll()
	}
	return 0, false
}

// rest waits for a while, unless the relay is to be awake again, which it reports: the
// transaction of a silent writer may last.
func (v *vigil) rest(ctx context.Context, pause time.Duration, tick <-chan time.Time) (again bool) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
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

// doze is how far a relay is with falling asleep.
type doze struct {
	rang   bool   // it has let go of the bell
	rings  bool   // so have all others, at mark
	mark   uint64 // the time, as looks count it
	silent *Look  // who may have written silently
}

// goOn goes on with falling asleep, and reports whether that has come to its end. Whoever
// was silent because of another relay drew an id before that one let go of the bell, so the
// first look that counts begins when all have. Who falls silent later says so.
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
	if remains(d.silent, now) {
		return false, nil
	}
	if v.silenced(ctx) { // somebody whose word was not heard
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

// remains reports whether one of those who were seen by the first look is there in the
// second. A prepared transaction keeps everybody waiting: a restart of the server gives
// it another name.
func remains(first, second *Look) bool {
	for _, h := range second.holders {
		if h.prepared() || first.server == second.server && slices.Contains(first.holders, h) {
			return true
		}
	}
	return false
}
