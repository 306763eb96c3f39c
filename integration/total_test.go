package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// totalWriters is the number of writers.
const totalWriters = 16

// writeSerialized serializes the writers, and writes random transactions until ctx ends.
func (e *env) writeSerialized(ctx context.Context, seed uint64) {
	e.t.Helper()
	conn, err := pgx.Connect(e.ctx, e.url)
	if err != nil {
		e.t.Error(err)
		return
	}
	err = outboxsql.SerializeWriters(e.ctx, conn, "public", true, outboxsql.SerializeOptions{})
	if err := errors.Join(err, conn.Close(context.WithoutCancel(e.ctx))); err != nil {
		e.t.Error(err)
		return
	}
	e.writeTotal(ctx, seed)
}

// writeTotal writes random transactions until ctx ends.
func (e *env) writeTotal(ctx context.Context, seed uint64) {
	e.t.Helper()
	var writers sync.WaitGroup
	defer writers.Wait()
	for n := range uint64(totalWriters) {
		conn, err := pgx.Connect(e.ctx, e.url)
		if err != nil {
			e.t.Error(err)
			return
		}
		writers.Go(func() {
			defer func() { _ = conn.Close(context.WithoutCancel(e.ctx)) }()
			r := rand.New(rand.NewPCG(seed, n))
			for ctx.Err() == nil {
				if err := writeTotalOnce(e.ctx, conn, r); err != nil {
					e.t.Errorf("writer %d: %v", n, err)
					return
				}
				time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond) //nolint:forbidigo // the other work of an application
			}
		})
	}
}

// writeTotalOnce writes one random transaction.
func writeTotalOnce(ctx context.Context, conn *pgx.Conn, r *rand.Rand) (err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	pauses := pauseOf(r)
	for range 1 + r.IntN(4) {
		insert := fmt.Sprintf(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('total', 't', nullif('%d', '0'), '1')`, r.IntN(20))
		if r.IntN(4) == 0 {
			inner, ierr := tx.Begin(ctx)
			if ierr != nil {
				return ierr
			}
			_, ierr = inner.Exec(ctx, insert)
			err = errors.Join(err, ierr, inner.Rollback(ctx))
		}
		_, ierr := tx.Exec(ctx, insert)
		if err = errors.Join(err, ierr); err != nil {
			return err
		}
		time.Sleep(min(pauses(), 500*time.Millisecond) / 5) //nolint:forbidigo // the other work of the transaction, while others wait
	}
	if r.IntN(8) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}

// TestTotalUnderKills: relays are killed while serialized writers write. All events of the destination arrive in the
// order of commits, which is the order of ids, and only a suffix of them repeats.
func TestTotalUnderKills(t *testing.T) {
	t.Parallel()
	c, o := underFaults(t, killsOnly, (*env).writeSerialized)
	o.check(t, c.env)
	o.checkCopies(t, c.env)
}

// TestTotalUnderFaults: relays are killed, frozen, stopped and cut off while transactions overlap, and no event comes for the
// first time before one with a lower id.
func TestTotalUnderFaults(t *testing.T) {
	t.Parallel()
	c, o := underFaults(t, allFaults, (*env).writeTotal)
	o.check(t, c.env)
}
