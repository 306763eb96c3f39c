package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
)

// writers are connections that write at the same time.
type writers []*pgx.Conn

// connectWriters opens n connections, and prepares statements on each. The caller closes them.
func (e *Env) connectWriters(ctx context.Context, n int, statements ...string) (all writers, err error) {
	for range n {
		conn, err := e.connect(ctx)
		if err != nil {
			all.close(ctx)
			return nil, fmt.Errorf("connect the writers: %w", err)
		}
		all = append(all, conn)
		for _, statement := range statements {
			// pgx finds a statement whose name is its text.
			if _, err := conn.Prepare(ctx, statement, statement); err != nil {
				all.close(ctx)
				return nil, fmt.Errorf("prepare %s: %w", statement, err)
			}
		}
	}
	return all, nil
}

// close closes the connections, also after ctx has ended.
func (w writers) close(ctx context.Context) {
	for _, conn := range w {
		store.Close(ctx, conn)
	}
}

// write writes on a connection of writers. i is the number of the connection, or of the event.
type write func(ctx context.Context, i int, conn *pgx.Conn) error

// each calls one on all connections at the same time.
func (w writers) each(ctx context.Context, one write) error {
	var tasks []func(context.Context) error
	for i, conn := range w {
		tasks = append(tasks, func(ctx context.Context) error { return one(ctx, i, conn) })
	}
	return Together(ctx, tasks...)
}

// until calls one repeatedly on all connections, until end.
func (w writers) until(ctx context.Context, end time.Time, one write) error {
	return w.each(ctx, func(ctx context.Context, i int, conn *pgx.Conn) error {
		for time.Now().Before(end) {
			if err := one(ctx, i, conn); err != nil {
				return err
			}
		}
		return nil
	})
}

// onSchedule calls one for each event when it is due, on a free connection.
func (w writers) onSchedule(ctx context.Context, s schedule, one write) error {
	return s.follow(ctx, len(w), func(ctx context.Context, worker, event int) error { return one(ctx, event, w[worker]) })
}

// AtRate calls one for the events 0 to n-1, each when it is due at a rate per second, in a number of workers.
func AtRate(ctx context.Context, rate, n, workers int, one func(ctx context.Context, event int) error) error {
	return schedule{time.Now(), n, steadily(rate)}.follow(ctx, workers, func(ctx context.Context, _, event int) error { return one(ctx, event) })
}

// follow calls one for each event when it is due, in a free worker.
func (s schedule) follow(ctx context.Context, workers int, one func(ctx context.Context, worker, event int) error) error {
	const mostOverdue = 4096 // further ones wait in pace, and are late all the same
	due := make(chan int, mostOverdue)
	tasks := []func(context.Context) error{func(ctx context.Context) error { return pace(ctx, s, due, sleepExactly) }}
	for worker := range workers {
		tasks = append(tasks, func(ctx context.Context) error {
			for event := range due {
				if err := one(ctx, worker, event); err != nil {
					return fmt.Errorf("write an event: %w", err)
				}
			}
			return nil
		})
	}
	return Together(ctx, tasks...)
}

// schedule is when each of n events is due, as the time since start.
type schedule struct {
	start time.Time
	n     int
	at    func(int) time.Duration
}

func (s schedule) due(i int) time.Time { return s.start.Add(s.at(i)) }

// pace sends the numbers of the events, each when it is due, and closes the channel. The schedule is fixed beforehand: a
// slow receiver catches up, and late events are measured as late.
func pace(ctx context.Context, s schedule, due chan<- int, wait func(context.Context, time.Duration) error) error {
	defer close(due)
	for i := range s.n {
		if err := wait(ctx, time.Until(s.due(i))); err != nil {
			return err
		}
		select {
		case due <- i:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// steadily returns the schedule of a constant rate, in events per second.
func steadily(rate int) func(int) time.Duration {
	return func(i int) time.Duration {
		whole, rest := i/rate, i%rate
		return time.Duration(whole)*time.Second + time.Duration(rest)*time.Second/time.Duration(rate)
	}
}

// pause waits for d, with the precision of Go's timers: on Linux, up to a millisecond late.
func pause(ctx context.Context, d time.Duration) error {
	if d > 0 && !sleep.For(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}

// sleepExactly waits for d, and is at most a few dozen microseconds late, without using the CPU. Go's timers would send
// 2,000 events per second in pairs, and spinning would take one core of two.
func sleepExactly(ctx context.Context, d time.Duration) error {
	const longest = 100 * time.Millisecond // the end of ctx does not wake the thread
	for until := time.Now().Add(d); ; {
		rest := time.Until(until)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case rest <= 0:
			return nil
		}
		timeout := unix.NsecToTimeval(min(rest, longest).Nanoseconds())
		_, _ = unix.Select(0, nil, nil, nil, &timeout) // an early return is another turn of the loop
	}
}
