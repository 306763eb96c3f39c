package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// arriveWithin is how long after the last commit an event may take.
const arriveWithin = 30 * time.Second

// latencyRound measures without foreign transactions and with them.
func (b *bench) latencyRound(ctx context.Context, v variant, r *systemResult) error {
	if b.latencyEvents == 0 {
		return nil
	}
	for _, m := range []struct {
		name  string
		begin []string
		to    **latencyResult
	}{{"latency", nil, &r.Latency}, {"behind", foreign(), &r.Behind}} {
		s, err := b.latency(ctx, v, m.begin)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if *m.to == nil {
			*m.to = &latencyResult{}
		}
		(*m.to).Each = append((*m.to).Each, s)
		b.say("%-8s %-15s p50 %7.2f ms  p99 %7.2f ms  %s%s", m.name, v.name, s.P50, s.P99, v.settings, s.waited())
	}
	return nil
}

// flight is one round of latencies. Times are since begin.
type flight struct {
	peer      peer
	begin     time.Time
	written   []time.Duration // how long the writer's transaction took
	committed []time.Duration
	handled   []atomic.Int64 // time of the first call; 0: not handled
	missing   atomic.Int64
	arrived   chan struct{} // closed when all have arrived
}

func newFlight(p peer, n int) *flight {
	f := &flight{
		peer: p, begin: time.Now(), written: make([]time.Duration, n), committed: make([]time.Duration, n),
		handled: make([]atomic.Int64, n), arrived: make(chan struct{}),
	}
	f.missing.Store(int64(n))
	return f
}

// handle is the handler. A handler in another process reports the time of the wall clock. Both processes run on one
// machine, so the times are comparable unless the clock is set during the run.
func (f *flight) handle(seq int, at time.Time) {
	took := time.Since(f.begin)
	if !at.IsZero() {
		took = at.Sub(f.begin)
	}
	if f.handled[seq].CompareAndSwap(0, max(1, int64(took))) && f.missing.Add(-1) == 0 {
		close(f.arrived)
	}
}

// latency inserts events at a fixed rate, each in its own transaction and without waiting
// for earlier ones. It measures from the return of each COMMIT to the call of the
// handler. The statements of begin open other transactions first.
func (b *bench) latency(ctx context.Context, v variant, begin []string) (summary, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if err := errors.Join(b.clear(ctx, v), b.calm(ctx, v)); err != nil {
		return summary{}, err
	}
	others, err := openForeign(ctx, v.db, begin)
	if err != nil {
		return summary{}, err
	}
	defer others.close(ctx) //nolint:errcheck // a second call does nothing
	// A second of it at most warms up connections, plans and caches.
	warmUp := min(b.rate, b.latencyEvents)
	f := newFlight(v.peer, warmUp+b.latencyEvents)
	w, err := v.peer.launch(ctx, calls{handled: f.handle, failed: fail, times: true})
	if err != nil {
		return summary{}, fmt.Errorf("launch: %w", err)
	}
	if err = w.start(ctx); err == nil {
		err = b.write(ctx, v, f)
	}
	held := 0
	if err == nil {
		held, err = f.wait(ctx, others, b.patience)
	}
	if stopErr := w.stop(); err == nil && stopErr != nil {
		err = fmt.Errorf("stop: %w", stopErr)
	}
	if err != nil {
		return summary{}, err
	}
	s := f.summary(warmUp)
	s.Held = held
	return s, nil
}

// write inserts the events, open loop.
func (b *bench) write(ctx context.Context, v variant, f *flight) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var writers sync.WaitGroup
	interval := time.Second / time.Duration(b.rate)
	first := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for seq := range f.committed {
		timer.Reset(time.Until(first.Add(time.Duration(seq) * interval)))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		writers.Go(func() {
			if err := f.writeOne(ctx, v.db, seq); err != nil {
				cancel(fmt.Errorf("insert event %d: %w", seq, err))
			}
		})
	}
	writers.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (f *flight) writeOne(ctx context.Context, db database, seq int) error {
	started := time.Now()
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return f.peer.insert(ctx, tx, seq) })
	f.written[seq], f.committed[seq] = time.Since(started), time.Since(f.begin)
	return err
}

// wait waits until all events have arrived. It ends the foreign transactions after patience, and returns how many events
// had not arrived before that.
func (f *flight) wait(ctx context.Context, others foreigners, patience time.Duration) (held int, err error) {
	if others != nil {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-f.arrived:
		case <-timer.C:
			held = int(f.missing.Load())
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		if err := others.close(ctx); err != nil {
			return 0, err
		}
	}
	timer := time.NewTimer(arriveWithin)
	defer timer.Stop()
	select {
	case <-f.arrived:
		return held, nil
	case <-timer.C:
		return held, fmt.Errorf("%d of %d events did not arrive within %v", f.missing.Load(), len(f.handled), arriveWithin)
	case <-ctx.Done():
		return held, context.Cause(ctx)
	}
}

// summary summarizes the events without the first skip ones.
func (f *flight) summary(skip int) summary {
	latencies := make([]float64, 0, len(f.handled)-skip)
	writes := make([]float64, 0, len(f.handled)-skip)
	for seq := skip; seq < len(f.handled); seq++ {
		// A handler may be called before the writer hears of its commit.
		took := max(0, time.Duration(f.handled[seq].Load())-f.committed[seq])
		latencies = append(latencies, milliseconds(took))
		writes = append(writes, milliseconds(f.written[seq]))
	}
	slices.Sort(latencies)
	slices.Sort(writes)
	return summary{
		P50: percentile(latencies, 0.50), P95: percentile(latencies, 0.95), P99: percentile(latencies, 0.99),
		Max: latencies[len(latencies)-1], WriteP50: percentile(writes, 0.50),
	}
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }
