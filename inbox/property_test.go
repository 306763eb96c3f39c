package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/inbox"
)

// end is how a delivery ends.
type end string

const (
	commits        end = "commits"
	rollsBack      end = "rolls back"
	fails          end = "fails, rolls back"
	failsCommits   end = "fails before its work, commits"
	panics         end = "panics, commits"
	dies           end = "the connection dies within fn"
	diesAtTheEnd   end = "the connection dies before the commit"
	losesTheAnswer end = "the connection dies about the commit"
	isCancelled    end = "the context ends within fn"
)

// delivery is one of several deliveries of an event.
type delivery struct {
	Consumer, Event int
	End             end
	Level           sql.IsolationLevel
	SQL             bool
}

func drawDelivery(t *rapid.T) delivery {
	return delivery{
		Consumer: rapid.IntRange(0, 1).Draw(t, "consumer"), Event: rapid.IntRange(0, 1).Draw(t, "event"),
		End: rapid.SampledFrom([]end{
			commits, commits, rollsBack, fails, failsCommits, panics, dies, diesAtTheEnd, losesTheAnswer, isCancelled,
		}).Draw(t, "end"),
		Level: rapid.SampledFrom([]sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}).Draw(t, "level"),
		SQL:   rapid.Bool().Draw(t, "database/sql"),
	}
}

// world has the pools of the deliveries.
type world struct {
	pool *pgxpool.Pool
	db   *sql.DB
	run  string // makes the ids of a run unique
}

// tx is a transaction of either interface.
type tx struct {
	once     func(ctx context.Context, c inbox.Consumer, id string, fn func(context.Context) error) (bool, error)
	exec     func(ctx context.Context, query string, args ...any) error
	number   func(ctx context.Context, query string, args ...any) (int, error)
	commit   func(context.Context) error
	rollback func(context.Context) error
}

func (w *world) begin(ctx context.Context, d delivery) (tx, error) {
	if d.SQL {
		t, err := w.db.BeginTx(ctx, &sql.TxOptions{Isolation: d.Level})
		if err != nil {
			return tx{}, err
		}
		return tx{
			once: func(ctx context.Context, c inbox.Consumer, id string, fn func(context.Context) error) (bool, error) {
				return inbox.OnceSQL(ctx, t, c, id, fn)
			},
			exec: func(ctx context.Context, query string, args ...any) error {
				_, err := t.ExecContext(ctx, query, args...)
				return err
			},
			number: func(ctx context.Context, query string, args ...any) (n int, err error) {
				return n, t.QueryRowContext(ctx, query, args...).Scan(&n)
			},
			commit:   func(context.Context) error { return t.Commit() },
			rollback: func(context.Context) error { return t.Rollback() },
		}, nil
	}
	level := map[sql.IsolationLevel]pgx.TxIsoLevel{
		sql.LevelReadCommitted: pgx.ReadCommitted, sql.LevelRepeatableRead: pgx.RepeatableRead, sql.LevelSerializable: pgx.Serializable,
	}[d.Level]
	t, err := w.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		return tx{}, err
	}
	return tx{
		once: func(ctx context.Context, c inbox.Consumer, id string, fn func(context.Context) error) (bool, error) {
			return inbox.Once(ctx, t, c, id, fn)
		},
		exec: func(ctx context.Context, query string, args ...any) error {
			_, err := t.Exec(ctx, query, args...)
			return err
		},
		number: func(ctx context.Context, query string, args ...any) (n int, err error) {
			return n, t.QueryRow(ctx, query, args...).Scan(&n)
		},
		commit: t.Commit, rollback: t.Rollback,
	}, nil
}

// deliver returns whether the consumer would acknowledge, and an error if a promise is
// broken. Other failures are those that the delivery prescribes.
func (w *world) deliver(ctx context.Context, d delivery) (acknowledged bool, broken error) {
	c, id := inbox.Consumer{Name: fmt.Sprint("consumer ", d.Consumer)}, fmt.Sprint(w.run, " ", d.Event)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t, err := w.begin(ctx, d)
	if err != nil {
		return false, nil
	}
	after := context.WithoutCancel(ctx)
	defer func() { _ = t.rollback(after) }()
	die := func() { _ = t.exec(after, `SELECT pg_terminate_backend(pg_backend_pid())`) }
	ran, err := func() (ran bool, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		return t.once(ctx, c, id, func(ctx context.Context) error {
			switch d.End {
			case failsCommits:
				return errBroken
			case panics:
				panic("broken")
			case dies:
				die()
			case isCancelled:
				cancel()
			default:
			}
			if err := t.exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, c.Name, id); err != nil {
				return err
			}
			if d.End == fails {
				return errBroken
			}
			return nil
		})
	}()
	switch {
	case err != nil && d.End != failsCommits && d.End != panics:
		return false, nil
	case err != nil:
		_ = t.commit(after)
		return false, nil
	case !ran:
		// A skipped delivery sees the work of the earlier one.
		n, err := t.number(after, `SELECT count(*) FROM effects WHERE consumer = $1 AND event_id = $2`, c.Name, id)
		if err == nil && n != 1 {
			return false, fmt.Errorf("%+v was skipped and there are %d effects", d, n)
		}
		return true, nil
	}
	switch d.End {
	case rollsBack:
		return false, nil
	case diesAtTheEnd:
		die()
	case losesTheAnswer:
		var wg sync.WaitGroup
		defer wg.Wait()
		if pid, err := t.number(after, `SELECT pg_backend_pid()`); err == nil {
			wg.Go(func() { _, _ = w.pool.Exec(after, `SELECT pg_terminate_backend($1)`, pid) })
		}
	default:
	}
	return t.commit(after) == nil, nil
}

// TestExactlyOnce: whatever the interleaving of commits, rollbacks, failures and
// killed connections, an event that was acknowledged has taken effect once, and
// one that was not takes effect once with its next delivery.
func TestExactlyOnce(t *testing.T) {
	t.Parallel()
	pool, _ := database(t)
	// A signal may reach its session late, so killed sessions have a pool of their own.
	victims, err := pgxpool.NewWithConfig(t.Context(), pool.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(victims.Close)
	db := stdlib.OpenDBFromPool(victims)
	t.Cleanup(func() { _ = db.Close() })
	var runs atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{pool: victims, db: db, run: fmt.Sprint("run ", runs.Add(1))}
		plans := rapid.SliceOfN(rapid.SliceOfN(rapid.Custom(drawDelivery), 1, 4), 2, 5).Draw(rt, "plans")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var mu sync.Mutex
		var errs []error
		acknowledged := map[[2]int]bool{}
		var wg sync.WaitGroup
		for _, plan := range plans {
			wg.Go(func() {
				for _, d := range plan {
					ok, err := w.deliver(ctx, d)
					mu.Lock()
					acknowledged[[2]int{d.Consumer, d.Event}] = acknowledged[[2]int{d.Consumer, d.Event}] || ok
					errs = append(errs, err)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			rt.Fatal(err)
		}
		effects := func(of [2]int) int {
			return count(t, pool, `SELECT count(*) FROM effects WHERE consumer = $1 AND event_id = $2`, fmt.Sprint("consumer ", of[0]), fmt.Sprint(w.run, " ", of[1]))
		}
		for of, was := range acknowledged {
			if n := effects(of); n > 1 || was && n != 1 {
				rt.Fatalf("%v has %d effects, acknowledged: %v", of, n, was)
			}
			// The broker delivers until it is acknowledged.
			for ok := was; !ok; {
				var err error
				if ok, err = w.deliver(ctx, delivery{Consumer: of[0], Event: of[1], End: commits, Level: sql.LevelReadCommitted}); err != nil || ctx.Err() != nil {
					rt.Fatal(err, ctx.Err())
				}
			}
			if n := effects(of); n != 1 {
				rt.Fatalf("%v has %d effects in the end", of, n)
			}
		}
	})
}
