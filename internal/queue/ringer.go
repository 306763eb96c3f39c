package queue

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/internal/engine"
)

// ringer operates the bell for the scheduler, which must not wait for it. Only the newest order
// counts.
type ringer struct {
	bell   engine.Bell // nil: writers always ring
	report func(error) // of the database: nil if it answered
	rang   func(xid uint64)
	queued func(rate float64)
	orders chan bellOrder // capacity 1
	rates  chan float64   // capacity 1: requests to check whether writers queue up
	part   *engine.Part
}

func (r *ringer) silence() { r.order(bellSilence) }
func (r *ringer) ring()    { r.order(bellRing) }

// order replaces the waiting order. The scheduler's lock is held, so there is one caller at a time.
func (r *ringer) order(o bellOrder) {
	select {
	case <-r.orders:
	default:
	}
	r.orders <- o
}

// watch requests a check whether writers queue up to ring. It never blocks.
func (r *ringer) watch(rate float64) {
	select {
	case r.rates <- rate:
	default:
	}
}

const (
	// queueLength is how many waiting writers make a queue.
	queueLength = 2
	// queueAgain is the delay after which the queue must still be there: two commits may always
	// coincide.
	queueAgain = 5 * time.Millisecond
)

// look reports to the scheduler if writers queue up.
func (r *ringer) look(ctx context.Context, rate float64) {
	if r.bell == nil {
		return
	}
	for range 2 {
		if n, err := r.bell.Queued(ctx); err != nil || n < queueLength {
			return // the bell reports its own connection errors
		}
		sleep(ctx, queueAgain)
	}
	r.queued(rate)
}

func (r *ringer) run(ctx context.Context) {
	for {
		r.part.Rest()
		select {
		case <-ctx.Done():
			return
		case rate := <-r.rates:
			r.part.Begin()
			r.look(ctx, rate)
		case o := <-r.orders:
			r.part.Begin()
			switch {
			case o == bellSilence && r.bell != nil:
				r.bell.Silence()
			case o == bellRing:
				r.release(ctx)
			}
		}
	}
}

// release rings until it succeeds or a newer order has arrived.
func (r *ringer) release(ctx context.Context) {
	if r.bell == nil {
		r.rang(0)
		return
	}
	pause := reconnectPauses()
	for ctx.Err() == nil {
		r.part.Begin()
		xid, err := r.bell.Ring(ctx)
		if err == nil {
			r.report(nil)
			r.rang(xid)
			return
		}
		if ctx.Err() == nil {
			r.report(err)
		}
		if len(r.orders) > 0 {
			return
		}
		r.part.Rest()
		sleep(ctx, pause.NextBackOff())
	}
}
