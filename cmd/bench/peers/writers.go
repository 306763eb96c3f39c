package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// writersRound measures the writers' rate while no worker runs, and while the system runs.
func (b *bench) writersRound(ctx context.Context, v variant, r *systemResult) error {
	if b.writeFor == 0 {
		return nil
	}
	if r.Writers == nil {
		r.Writers = &writersResult{}
	}
	alone, err := b.writeAlone(ctx, v)
	if err != nil {
		return fmt.Errorf("writers: %w", err)
	}
	beside, handled, err := b.writeBeside(ctx, v)
	if err != nil {
		return fmt.Errorf("writers beside the system: %w", err)
	}
	r.Writers.EachAlone = append(r.Writers.EachAlone, alone)
	r.Writers.EachBeside = append(r.Writers.EachBeside, beside)
	r.Writers.EachHandled = append(r.Writers.EachHandled, handled)
	b.say("writers  %-15s %9.0f events/s alone, %.0f/s beside it, which handled %.0f/s  %s", v.name, alone, beside, handled, v.settings)
	return nil
}

// writeAlone returns how many events writers commit per second while no worker runs.
func (b *bench) writeAlone(ctx context.Context, v variant) (written float64, err error) {
	if err := errors.Join(b.clear(ctx, v), b.calm(ctx, v)); err != nil {
		return 0, err
	}
	committed, took, err := b.writeFlatOut(ctx, v)
	return float64(committed) / took.Seconds(), err
}

// writeBeside returns the same rate while the system runs, and how many events per second the system handled meanwhile.
func (b *bench) writeBeside(ctx context.Context, v variant) (written, handled float64, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if err := errors.Join(b.clear(ctx, v), b.calm(ctx, v)); err != nil {
		return 0, 0, err
	}
	var n atomic.Int64
	w, err := v.peer.launch(ctx, calls{failed: fail, handled: func(int, time.Time) { n.Add(1) }})
	if err != nil {
		return 0, 0, fmt.Errorf("launch: %w", err)
	}
	defer func() {
		if stopErr := w.stop(); err == nil && stopErr != nil {
			err = fmt.Errorf("stop: %w", stopErr)
		}
	}()
	if err := w.start(ctx); err != nil {
		return 0, 0, err
	}
	committed, took, err := b.writeFlatOut(ctx, v)
	return float64(committed) / took.Seconds(), float64(n.Load()) / took.Seconds(), err
}

// writeFlatOut makes writers insert one event after the other, each in a separate transaction, as fast as they can.
func (b *bench) writeFlatOut(ctx context.Context, v variant) (committed int64, took time.Duration, err error) {
	var n, seq atomic.Int64
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var writers sync.WaitGroup
	begin := time.Now()
	for range b.writers {
		writers.Go(func() {
			for time.Since(begin) < b.writeFor && ctx.Err() == nil {
				err := pgx.BeginFunc(ctx, v.db.pool, func(tx pgx.Tx) error { return v.peer.insert(ctx, tx, int(seq.Add(1))) })
				if err != nil {
					cancel(fmt.Errorf("insert an event: %w", err))
					return
				}
				n.Add(1)
			}
		})
	}
	writers.Wait()
	took = time.Since(begin)
	if ctx.Err() != nil {
		return 0, took, context.Cause(ctx)
	}
	return n.Load(), took, nil
}
