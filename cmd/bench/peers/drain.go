package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// drainWithin bounds one drain. 200,000 events take seconds.
	drainWithin = 15 * time.Minute
	// settleEvery is the interval of checks of the table once all events were handled.
	settleEvery = 2 * time.Millisecond
)

func (b *bench) drainRound(ctx context.Context, v variant, r *systemResult) error {
	if b.events == 0 {
		return nil
	}
	took, repeats, err := b.drain(ctx, v)
	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	if r.Drain == nil {
		r.Drain = &drainResult{}
	}
	perSecond := float64(b.events) / took.Seconds()
	r.Drain.EachPerSecond = append(r.Drain.EachPerSecond, perSecond)
	r.Drain.EachSeconds = append(r.Drain.EachSeconds, took.Seconds())
	r.Drain.Repeats += repeats
	b.say("drain    %-15s %9.0f events/s  %s", v.name, perSecond, v.settings)
	return nil
}

// drain starts the system on a full table. It returns the time until the last event is marked as done there, and the
// number of handler calls beyond one per event.
func (b *bench) drain(ctx context.Context, v variant) (took time.Duration, repeats int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if err := b.fill(ctx, v); err != nil {
		return 0, 0, err
	}
	var handled atomic.Int64
	total, all := int64(b.events), make(chan struct{})
	w, err := v.peer.launch(ctx, calls{failed: fail, handled: func(int, time.Time) {
		if handled.Add(1) == total {
			close(all)
		}
	}})
	if err != nil {
		return 0, 0, fmt.Errorf("launch: %w", err)
	}
	begin := time.Now()
	if err = w.start(ctx); err == nil {
		select {
		case <-all:
			err = b.settled(ctx, v)
		case <-ctx.Done():
			err = fmt.Errorf("%d of %d events handled: %w", handled.Load(), total, context.Cause(ctx))
		}
	}
	took = time.Since(begin)
	if stopErr := w.stop(); err == nil && stopErr != nil {
		err = fmt.Errorf("stop: %w", stopErr)
	}
	if err != nil {
		return 0, 0, err
	}
	return took, handled.Load() - total, b.verify(ctx, v, total)
}

func (b *bench) fill(ctx context.Context, v variant) error {
	if err := b.clear(ctx, v); err != nil {
		return err
	}
	if err := v.peer.preload(ctx, b.events); err != nil {
		return err
	}
	return b.calm(ctx, v)
}

// settled waits until the tables have no more work.
func (b *bench) settled(ctx context.Context, v variant) error {
	query := v.peer.tables().left
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for {
		var left bool
		if err := v.db.pool.QueryRow(ctx, query).Scan(&left); err != nil {
			return err
		}
		if !left {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (b *bench) verify(ctx context.Context, v variant, want int64) error {
	query := v.peer.tables().done
	if query == "" {
		return nil
	}
	var done int64
	if err := v.db.pool.QueryRow(ctx, query).Scan(&done); err != nil {
		return err
	}
	if done != want {
		return fmt.Errorf("%d events are marked as done, not %d", done, want)
	}
	return nil
}
