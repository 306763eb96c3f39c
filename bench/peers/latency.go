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

func (b *bench) latencyRound(ctx context.Context, r *result, all []variant, i int) error {
	if b.latencyEvents == 0 {
		return nil
	}
	v := all[i]
	s, err := b.latency(ctx, v)
	if err != nil {
		return fmt.Errorf("latency, %s (%s): %w", v.name, v.settings, err)
	}
	if r.Latency == nil {
		r.Latency = make([]latencyResult, len(all))
	}
	l := &r.Latency[i]
	l.System, l.Settings, l.CommitOff = v.name, v.settings, v.commitOff
	l.Each = append(l.Each, s)
	b.say("latency  %-8s p50 %7.2f ms  p99 %7.2f ms  %s", v.name, s.P50, s.P99, v.settings)
	return nil
}

// flight is one round of latencies. Times are since begin.
type flight struct {
	peer      peer
	begin     time.Time
	written   []time.Duration // how long the writer's transaction took
	committed []time.Duration
	handled   []atomic.Int64 // the first call, 0: none
	missing   atomic.Int64
	arrived   chan struct{} // closed when none is missing
}

func newFlight(p peer, n int) *flight {
	f := &flight{
		peer: p, begin: time.Now(), written: make([]time.Duration, n), committed: make([]time.Duration, n),
		handled: make([]atomic.Int64, n), arrived: make(chan struct{}),
	}
	f.missing.Store(int64(n))
	return f
}

// handle is the handler.
func (f *flight) handle(seq int) {
	if f.handled[seq].CompareAndSwap(0, int64(time.Since(f.begin))) && f.missing.Add(-1) == 0 {
		close(f.arrived)
	}
}

// latency inserts events at a fixed rate, each in a transaction of its own,
// whatever becomes of those before, and takes the time from the return of each
// COMMIT to the call of the handler.
func (b *bench) latency(ctx context.Context, v variant) (summary, error) {
	if err := b.clear(ctx, v); err != nil {
		return summary{}, err
	}
	if err := b.calm(ctx, v); err != nil {
		return summary{}, err
	}
	// A second of it at most warms up connections, plans and caches.
	warmUp := min(b.rate, b.latencyEvents)
	f := newFlight(v.peer, warmUp+b.latencyEvents)
	stop, err := v.peer.start(ctx, f.handle)
	if err != nil {
		return summary{}, fmt.Errorf("start: %w", err)
	}
	err = b.write(ctx, f)
	if err == nil {
		err = f.wait(ctx)
	}
	if stopErr := stop(); err == nil && stopErr != nil {
		err = fmt.Errorf("stop: %w", stopErr)
	}
	if err != nil {
		return summary{}, err
	}
	return f.summary(warmUp), nil
}

// write inserts the events, open loop.
func (b *bench) write(ctx context.Context, f *flight) error {
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
			if err := b.writeOne(ctx, f, seq); err != nil {
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

func (b *bench) writeOne(ctx context.Context, f *flight, seq int) error {
	started := time.Now()
	err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { return f.peer.insert(ctx, tx, seq) })
	f.written[seq], f.committed[seq] = time.Since(started), time.Since(f.begin)
	return err
}

func (f *flight) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, arriveWithin)
	defer cancel()
	select {
	case <-f.arrived:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("%d of %d events did not arrive", f.missing.Load(), len(f.handled)), context.Cause(ctx))
	}
}

// summary leaves out the first events.
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
