package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/bench"
)

// figure is a column of the table.
type figure struct {
	name     string
	decimals int
}

// drainRate is the figure that is compared.
const drainRate = "events/s"

// figures are the figures of a variant, in the order of the table.
func figures() []figure {
	return []figure{
		{"drain, s", 2},
		{drainRate, 0},
		{"p50", 2},
		{"p99", 2},
		{"behind, p50", 2},
		{"behind, p99", 2},
		{"held", 0},
		{"alone, writes/s", 0},
		{"beside, writes/s", 0},
		{"handled/s", 0},
	}
}

const (
	// drainWithin bounds one drain. 200,000 events take seconds.
	drainWithin = 15 * time.Minute
	// settleEvery is the interval of checks of the table once all events were handled.
	settleEvery = 2 * time.Millisecond
	// arriveWithin is how long after the last commit an event may take.
	arriveWithin = 30 * time.Second
	// bystander is a table in each database that the system does not use.
	bystander = "peers_bystander"
)

// working calls do while the system of a variant works. began is the time before it connected.
func (v *variant) working(ctx context.Context, c calls, do func(ctx context.Context, began time.Time) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	c.failed = fail
	w, err := v.peer.launch(ctx, c)
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	began := time.Now()
	err = w.start(ctx)
	if err == nil {
		err = do(ctx, began)
	}
	stopErr := w.stop()
	if err == nil && stopErr != nil {
		err = fmt.Errorf("stop: %w", stopErr)
	}
	return err
}

// await waits until a channel is closed, or for a time at most.
func await(ctx context.Context, done <-chan struct{}, most time.Duration) (isDone bool, err error) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// drain starts the system on a full table. It measures the time until the last event is marked as done there.
func (c *comparison) drain(ctx context.Context, v *variant) error {
	if c.events == 0 {
		return nil
	}
	if err := c.clear(ctx, v, c.events); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	var handled atomic.Int64
	total := int64(c.events)
	all := make(chan struct{})
	count := func(int, time.Time) {
		if handled.Add(1) == total {
			close(all)
		}
	}
	var took time.Duration
	err := v.working(ctx, calls{handled: count}, func(ctx context.Context, began time.Time) error {
		isDone, err := await(ctx, all, drainWithin)
		switch {
		case err != nil:
		case !isDone:
			err = fmt.Errorf("not drained within %v", drainWithin)
		default:
			err = v.settled(ctx)
		}
		took = time.Since(began)
		return err
	})
	if err == nil {
		err = v.verify(ctx, total)
	}
	if err != nil {
		return fmt.Errorf("drain: %d of %d events handled: %w", handled.Load(), total, err)
	}

	rate := float64(total) / took.Seconds()
	v.add("drain, s", took.Seconds())
	v.add(drainRate, rate)
	v.repeats += handled.Load() - total
	c.Printf("drain    %-15s %9.0f events/s  %s\n", v.name, rate, v.settings)
	return nil
}

// settled waits until the tables have no more work.
func (v *variant) settled(ctx context.Context) error {
	for {
		var left bool
		err := v.db.pool.QueryRow(ctx, v.peer.tables().left).Scan(&left)
		if err != nil || !left {
			return err
		}
		if _, err := await(ctx, nil, settleEvery); err != nil {
			return err
		}
	}
}

// verify checks that events are marked as done, if the system marks them.
func (v *variant) verify(ctx context.Context, want int64) error {
	query := v.peer.tables().done
	if query == "" {
		return nil
	}
	var done int64
	err := v.db.pool.QueryRow(ctx, query).Scan(&done)
	if err == nil && done != want {
		err = fmt.Errorf("%d events are marked as done, not %d", done, want)
	}
	return err
}

// flight is one round of latencies. Times are since begin.
type flight struct {
	begin     time.Time
	committed []time.Duration
	handled   []atomic.Int64 // time of the first call; 0: not handled
	missing   atomic.Int64
	arrived   chan struct{} // closed when all have arrived
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

// foreign are transactions that do not belong to the system. One has written and is idle. The other holds an old snapshot,
// as a migration, a dump, a report or a forgotten session of the same database does.
func foreign() []string {
	return []string{
		"BEGIN; INSERT INTO " + bystander + " VALUES (1)",
		"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM " + bystander,
	}
}

// latencies measures without foreign transactions and with them.
func (c *comparison) latencies(ctx context.Context, v *variant) error {
	if c.latencyEvents == 0 {
		return nil
	}
	if _, err := c.latency(ctx, v, "", nil); err != nil {
		return fmt.Errorf("latency: %w", err)
	}
	held, err := c.latency(ctx, v, "behind, ", foreign())
	if err != nil {
		return fmt.Errorf("latency behind foreign transactions: %w", err)
	}
	v.add("held", float64(held))
	return nil
}

// latency inserts events at a fixed rate, each in a separate transaction and without waiting for earlier ones. It measures
// from the return of each COMMIT to the call of the handler. The statements of begin open other transactions first.
func (c *comparison) latency(ctx context.Context, v *variant, prefix string, begin []string) (held int, err error) {
	if err := c.clear(ctx, v, 0); err != nil {
		return 0, err
	}
	var others []*pgx.Conn
	end := func() (err error) {
		for _, conn := range others {
			err = errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
		}
		return err
	}
	defer end() //nolint:errcheck // a second call does nothing
	for _, statements := range begin {
		conn, err := pgx.Connect(ctx, v.db.url)
		if err != nil {
			return 0, err
		}
		others = append(others, conn)
		if _, err := conn.Exec(ctx, statements); err != nil {
			return 0, fmt.Errorf("open a foreign transaction: %w", err)
		}
	}

	// A second of it at most warms up connections, plans and caches.
	warmUp := min(c.rate, c.latencyEvents)
	n := warmUp + c.latencyEvents
	f := &flight{begin: time.Now(), committed: make([]time.Duration, n), handled: make([]atomic.Int64, n), arrived: make(chan struct{})}
	f.missing.Store(int64(n))
	err = v.working(ctx, calls{handled: f.handle, times: true}, func(ctx context.Context, _ time.Time) error {
		err := bench.AtRate(ctx, c.rate, n, c.writers, func(ctx context.Context, seq int) error {
			err := pgx.BeginFunc(ctx, v.db.pool, func(tx pgx.Tx) error { return v.peer.insert(ctx, tx, seq) })
			f.committed[seq] = time.Since(f.begin)
			return err
		})
		if err == nil && len(others) > 0 {
			_, err = await(ctx, f.arrived, c.patience)
			held = int(f.missing.Load())
			err = errors.Join(err, end())
		}
		if err != nil {
			return err
		}
		isDone, err := await(ctx, f.arrived, arriveWithin)
		if err == nil && !isDone {
			err = fmt.Errorf("%d of %d events did not arrive within %v", f.missing.Load(), n, arriveWithin)
		}
		return err
	})
	if err != nil {
		return held, err
	}

	took := f.times()[warmUp:]
	slices.Sort(took)
	p50 := bench.Percentile(took, 0.5).Seconds() * 1000
	p99 := bench.Percentile(took, 0.99).Seconds() * 1000
	v.add(prefix+"p50", p50)
	v.add(prefix+"p99", p99)
	c.Printf("latency  %-15s %sp50 %.2f ms, p99 %.2f ms, %d held  %s\n", v.name, prefix, p50, p99, held, v.settings)
	return held, nil
}

// times returns the time of each event. A handler may be called before the writer hears of its commit.
func (f *flight) times() []time.Duration {
	all := make([]time.Duration, len(f.handled))
	for seq := range all {
		all[seq] = max(0, time.Duration(f.handled[seq].Load())-f.committed[seq])
	}
	return all
}

// writeRates measures the rate of the writers while no worker runs, and while the system runs.
func (c *comparison) writeRates(ctx context.Context, v *variant) error {
	if c.writeFor == 0 {
		return nil
	}
	if err := c.clear(ctx, v, 0); err != nil {
		return err
	}
	alone, err := c.writeRate(ctx, v)
	if err != nil {
		return fmt.Errorf("writers: %w", err)
	}

	if err := c.clear(ctx, v, 0); err != nil {
		return err
	}
	var n atomic.Int64
	var beside, handled float64
	err = v.working(ctx, calls{handled: func(int, time.Time) { n.Add(1) }}, func(ctx context.Context, _ time.Time) (err error) {
		began := time.Now()
		beside, err = c.writeRate(ctx, v)
		handled = float64(n.Load()) / time.Since(began).Seconds()
		return err
	})
	if err != nil {
		return fmt.Errorf("writers beside the system: %w", err)
	}

	v.add("alone, writes/s", alone)
	v.add("beside, writes/s", beside)
	v.add("handled/s", handled)
	c.Printf("writers  %-15s %9.0f events/s alone, %.0f/s beside it, which handled %.0f/s  %s\n", v.name, alone, beside, handled, v.settings)
	return nil
}

// writeRate makes writers insert one event after the other, each in a separate transaction, as fast as they can. It returns
// their commits per second.
func (c *comparison) writeRate(ctx context.Context, v *variant) (float64, error) {
	var n, seq atomic.Int64
	began := time.Now()
	var tasks []func(context.Context) error
	for range c.writers {
		tasks = append(tasks, func(ctx context.Context) error {
			for time.Since(began) < c.writeFor {
				err := pgx.BeginFunc(ctx, v.db.pool, func(tx pgx.Tx) error { return v.peer.insert(ctx, tx, int(seq.Add(1))) })
				if err != nil {
					return fmt.Errorf("insert an event: %w", err)
				}
				n.Add(1)
			}
			return nil
		})
	}
	err := bench.Together(ctx, tasks...)
	return float64(n.Load()) / time.Since(began).Seconds(), err
}
