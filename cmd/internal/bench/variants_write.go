package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// keysOfWriter is the number of aggregates of a writer. sharedKeys is the number of aggregates that all writers share
	// when they commit out of order.
	keysOfWriter = 8
	sharedKeys   = 100
)

// author writes events of a trial.
type author struct {
	*trial
	conn      *pgx.Conn
	addresses []string
	fill      string
}

// authors connects writers. The caller closes their connections.
func (t *trial) authors(ctx context.Context, n int) (all []*author, err error) {
	for range n {
		conn, err := t.inside(ctx, "")
		if err != nil {
			dismissAll(ctx, all)
			return nil, fmt.Errorf("connect the writers: %w", err)
		}
		all = append(all, &author{trial: t, conn: conn, addresses: t.addresses(), fill: filling(t.want.Payload)})
	}
	return all, nil
}

func dismissAll(ctx context.Context, all []*author) {
	for _, a := range all {
		closeAll(ctx, []*pgx.Conn{a.conn})
	}
}

// queue adds the statements of the next event of an aggregate.
func (a *author) queue(flight *pgx.Batch, key int) {
	if a.who.before != "" {
		flight.Queue(a.who.before)
	}
	flight.Queue(a.who.insert(), a.addresses[key%len(a.addresses)], freeAggregate+strconv.Itoa(key), numbered(a.written[key], a.fill))
}

// commit writes an event in a separate transaction, in one round trip.
func (a *author) commit(ctx context.Context, key int) error {
	var flight pgx.Batch
	a.queue(&flight, key)
	if err := a.conn.SendBatch(ctx, &flight).Close(); err != nil {
		return err
	}
	a.written[key]++
	return nil
}

// writers measures how many events writers commit, and how soon a worker has delivered them.
func (c *compare) writers(ctx context.Context, who contender, column *Column) error {
	at := fmt.Sprintf("%d writers: ", c.want.Writers)
	return c.trial(ctx, who, 1, column, at, func(ctx context.Context, t *trial) error {
		t.written = make([]int64, c.want.Writers*keysOfWriter)
		return t.withWorkers(ctx, c.want.Writers, func(ctx context.Context, w *workers, all []*author) error {
			return t.race(ctx, w, all, column, at)
		})
	})
}

// withWorkers calls do with connected writers while workers run.
func (t *trial) withWorkers(ctx context.Context, writers int, do func(context.Context, *workers, []*author) error) (err error) {
	w, err := t.hire(ctx, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.dismiss()) }()
	if err := w.awaitRunning(ctx); err != nil {
		return err
	}
	all, err := t.authors(ctx, writers)
	if err != nil {
		return err
	}
	defer dismissAll(ctx, all)
	return do(ctx, w, all)
}

// race makes all writers commit as fast as they can.
func (t *trial) race(ctx context.Context, w *workers, all []*author, c *Column, at string) error {
	var commits atomic.Int64
	began := time.Now()
	err := t.all(ctx, all, func(ctx context.Context, i int, a *author) error {
		defer commits.Add(1)
		return a.commit(ctx, i+len(all)*rand.IntN(keysOfWriter)) //nolint:gosec // a load
	})
	if err != nil {
		return err
	}
	c.set(at+"inserts/s", float64(commits.Load())/time.Since(began).Seconds(), 0)
	last := time.Now()
	err = t.caughtUp(ctx, w)
	c.set(at+"caught up after, s", time.Since(last).Seconds(), 2)
	return err
}

// all makes each writer call one repeatedly, for Seconds.
func (t *trial) all(ctx context.Context, all []*author, one func(ctx context.Context, i int, a *author) error) error {
	end := time.Now().Add(time.Duration(t.want.Seconds) * time.Second)
	tasks := make([]func(context.Context) error, len(all))
	for i, a := range all {
		tasks[i] = func(ctx context.Context) error {
			for time.Now().Before(end) {
				if err := one(ctx, i, a); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return together(ctx, tasks...)
}

// orders counts the lost, repeated and disordered events of writers that commit out of order.
func (c *compare) orders(ctx context.Context, who contender, column *Column) error {
	for _, n := range who.workerCounts() {
		at := fmt.Sprintf("commits out of order, %d at work: ", n)
		err := c.trial(ctx, who, n, column, at, func(ctx context.Context, t *trial) error {
			t.written = make([]int64, sharedKeys)
			return t.withWorkers(ctx, c.want.Writers, func(ctx context.Context, w *workers, all []*author) error {
				err := t.scramble(ctx, all)
				var sum int64
				for _, written := range t.written {
					sum += written
				}
				column.set(at+"events", float64(sum), 0)
				return errors.Join(err, t.caughtUp(ctx, w))
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// scramble makes writers commit out of order, but in order within an aggregate. Each locks the aggregate before it writes
// its event, as an application locks the row that the event is about, and unlocks it after its transaction has ended.
func (t *trial) scramble(ctx context.Context, all []*author) error {
	locks := make([]sync.Mutex, sharedKeys)
	return t.all(ctx, all, func(ctx context.Context, _ int, a *author) error {
		key := rand.IntN(sharedKeys) //nolint:gosec // a load
		return a.slowly(ctx, key, &locks[key])
	})
}

// slowly writes an event in a transaction that has written something else before and takes a while. It rolls one in
// twenty back.
func (a *author) slowly(ctx context.Context, key int, lock *sync.Mutex) error {
	const rolledBack = 20
	if _, err := a.conn.Exec(ctx, foreignWrite); err != nil {
		return err
	}
	if err := sleepTimer(ctx, aWhile()); err != nil {
		return err
	}
	lock.Lock()
	defer lock.Unlock()
	var flight pgx.Batch
	a.queue(&flight, key)
	if err := a.conn.SendBatch(ctx, &flight).Close(); err != nil {
		return err
	}
	if err := sleepTimer(ctx, aWhile()); err != nil {
		return err
	}
	if rand.IntN(rolledBack) == 0 { //nolint:gosec // a load
		_, err := a.conn.Exec(ctx, "ROLLBACK")
		return err
	}
	if _, err := a.conn.Exec(ctx, "COMMIT"); err != nil {
		return err
	}
	a.written[key]++
	return nil
}

// aWhile returns up to 5 ms, and for one transaction in fifty up to 100 ms.
func aWhile() time.Duration {
	const oneInFifty, short, long = 50, 5 * time.Millisecond, 100 * time.Millisecond
	most := short
	if rand.IntN(oneInFifty) == 0 { //nolint:gosec // a load
		most = long
	}
	return rand.N(most) //nolint:gosec // a load
}
