package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/ops"
)

// operatorRound is the interval at which the operator handles the dead letters of strict.
const operatorRound = 200 * time.Millisecond

// operate handles the dead letters of strict repeatedly until stop is called. Half of them are replayed, and then
// delivered; the others are discarded. It records the end of a block before the call that ends it: other events may
// continue after that moment, even if the answer is lost.
func (o *orderObserver) operate(t *testing.T, e *env) (stop func()) {
	t.Helper()
	dlq, err := ops.New(e.pool, ops.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(operatorRound)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := o.dealWithDead(t, e, dlq); err != nil && ctx.Err() == nil {
				t.Errorf("dead letters of strict: %v", err)
				return
			}
		}
	})
	stop = func() {
		cancel()
		work.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// dealWithDead handles the current dead letters.
func (o *orderObserver) dealWithDead(t *testing.T, e *env, dlq *ops.Client) error {
	t.Helper()
	rows, err := e.pool.Query(e.ctx, `SELECT event_id FROM outbox_deliveries WHERE destination = 'strict' AND state = 'dead'`)
	if err != nil {
		return err
	}
	dead, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	var replay, discard []int64
	for _, id := range dead {
		if draw(o.seed, "operator", id)%2 == 0 {
			o.fix(id)
			replay = append(replay, id)
		} else {
			o.see("operator", "strict", id, "discard")
			discard = append(discard, id)
		}
	}
	for _, job := range []struct {
		what string
		ids  []int64
		do   func(context.Context, ops.DeadLetterFilter, ops.BulkAction) (ops.BulkResult, error)
	}{{"replayed", replay, dlq.ReplayDeadLetters}, {"discarded", discard, dlq.DiscardDeadLetters}} {
		if len(job.ids) == 0 {
			continue
		}
		result, err := job.do(e.ctx, ops.DeadLetterFilter{Destination: "strict", Events: job.ids}, ops.BulkAction{Actor: "operator"})
		if err != nil {
			return err
		}
		if result.Done != int64(len(job.ids)) {
			t.Errorf("%s: %+v, want all of %v", job.what, result, job.ids)
		}
		o.dealt += len(job.ids)
	}
	return nil
}

// fix makes strict accept an event that it refused before.
func (o *orderObserver) fix(id int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fixed[id] = true
}

// isFixed reports whether an event has been fixed at a destination.
func (o *orderObserver) isFixed(dest string, id int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dests[dest].blocks && o.fixed[id]
}

// untilOrdered waits until all is delivered, and the operator has nothing left to handle.
func (o *orderObserver) untilOrdered(e *env, stop func()) {
	e.t.Helper()
	e.untilDone()
	e.until("no dead letter of strict", `SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE destination = 'strict')`)
	stop()
}
