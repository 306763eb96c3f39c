package relaytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// serializeWriters serializes the writers of a pool's database.
func serializeWriters(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := outboxsql.SerializeWriters(t.Context(), conn.Conn(), "public", true, outboxsql.SerializeOptions{}); err != nil {
		t.Fatal(err)
	}
}

// writeSerialized makes one of several serialized writers write about n events in transactions of all kinds. Their
// transactions commit one after the other, so that the checker notes the ids in the order of commits.
func (p *simulation) writeSerialized(ctx context.Context, w, n int, types []string) error {
	conn, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for n > 0 {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		ids := make(map[string][]int64)
		insert := func(in pgx.Tx) (err error) {
			aggregate := fmt.Sprintf("%d-%d", w, rand.IntN(6))
			var id int64
			err = in.QueryRow(ctx, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ($1, 'a', $2, '{}') RETURNING id`,
				types[rand.IntN(len(types))], aggregate).Scan(&id)
			if in == tx {
				ids[aggregate] = append(ids[aggregate], id)
			}
			n--
			return err
		}
		for range 1 + rand.IntN(8) {
			if rand.IntN(4) == 0 {
				err = errors.Join(err, rolledBack(ctx, tx, insert))
			}
			err = errors.Join(err, insert(tx))
		}
		if rand.IntN(20) == 0 {
			_, serr := tx.Exec(ctx, `SELECT pg_sleep(0.02)`)
			err = errors.Join(err, serr)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback(ctx))
		}
		if rand.IntN(5) == 0 {
			if err := tx.Rollback(ctx); err != nil {
				return err
			}
			continue
		}
		p.checker.mu.Lock()
		p.checker.wrote(ids)
		p.checker.mu.Unlock()
		if err := tx.Commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rolledBack inserts behind a savepoint, and rolls back to it.
func rolledBack(ctx context.Context, tx pgx.Tx, insert func(pgx.Tx) error) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	return errors.Join(insert(inner), inner.Rollback(ctx))
}

// TestStreamOneOrder: with serialized writers, commits, ids and deliveries have the same order. Meanwhile 16 writers roll
// back, use savepoints and stay open. Destinations fail in every way, and relays stop, are cut off and restart.
func TestStreamOneOrder(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for seed := range 2 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := newSimulation(t, 1+seed)
			serializeWriters(t, p.pool)
			p.checker.global = true
			p.run(1600)
			p.checker.mu.Lock()
			defer p.checker.mu.Unlock()
			if n := len(p.checker.written["all"]); n < 200 {
				t.Errorf("only %d events were committed", n)
			}
		})
	}
}
