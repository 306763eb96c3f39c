package integration

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestOutageThatBeginsWithAHang: an outage begins with a call that gets no answer
// for longer than a claim waits. The other events of the same worker continue
// under leases, and are put back when the call finally fails. After the outage
// all of them are delivered, and so are new ones.
func TestOutageThatBeginsWithAHang(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const before, during, later = 3000, 40, 40
			e, h := newEnvIn(t, mode), newRecorder(t)
			var down atomic.Bool
			gone := make(chan struct{})
			h.answer = func(ctx context.Context, _ *delivery.Event) error {
				if !down.Load() {
					return nil
				}
				select {
				case <-gone:
				case <-ctx.Done():
				}
				return delivery.Unavailable(errors.New("connection reset"))
			}
			r := e.relay(handleAll(t, h, delivery.Lane{Concurrency: 1}), notifyd.Config{})
			write := func(n int) {
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'x', '1' FROM generate_series(1, $1::int)`, n)
			}
			write(before) // so that the destination is known to be fast
			e.untilDone()
			down.Store(true)
			write(during)
			if mode == outboxsql.ModeQueue {
				e.until("leased", `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE state = 'running')`)
			} else {
				e.until("the position is past them", `SELECT head = outbox_last_id() FROM outbox_positions WHERE destination = 'all'`)
			}
			down.Store(false)
			close(gone)
			e.untilDone()
			write(later)
			e.untilDone()
			if copies := h.all(e, before+during+later); copies == 0 {
				t.Error("the call that hung was not made again")
			}
			if left := r.Stats().Leases.Held; left > 0 {
				t.Errorf("%d leases are held in the end", left)
			}
		})
	}
}
