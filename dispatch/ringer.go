package dispatch

import "context"

// ringer works the bell for the scheduler, which must not wait for it. Only
// the newest order counts.
type ringer struct {
	bell   Bell // nil: nobody is ever silent
	health *health
	rang   func(xid uint64)
	orders chan bellOrder // capacity 1
}

func (r *ringer) silence() { r.order(bellSilence) }
func (r *ringer) ring()    { r.order(bellRing) }

// order replaces the order that waits. The scheduler's lock is held, so there
// is one caller at a time.
func (r *ringer) order(o bellOrder) {
	select {
	case <-r.orders:
	default:
	}
	r.orders <- o
}

func (r *ringer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-r.orders:
			switch {
			case o == bellSilence && r.bell != nil:
				r.bell.Silence()
			case o == bellRing:
				r.letGo(ctx)
			}
		}
	}
}

// letGo rings until it succeeds or a newer order has come.
func (r *ringer) letGo(ctx context.Context) {
	if r.bell == nil {
		r.rang(0)
		return
	}
	pause := reconnectPauses()
	for ctx.Err() == nil {
		xid, err := r.bell.Ring(ctx)
		if err == nil {
			r.rang(xid)
			return
		}
		if ctx.Err() == nil {
			r.health.report(err)
		}
		if len(r.orders) > 0 {
			return
		}
		sleep(ctx, pause.NextBackOff())
	}
}
