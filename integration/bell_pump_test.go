package integration

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// pump writes without end, so that a relay goes on polling.
type pump struct {
	stop context.CancelFunc
	done chan error
}

// startPump writes some 20,000 events per second, of both types of a plan.
func startPump(ctx context.Context, pool *pgxpool.Pool) *pump {
	ctx, stop := context.WithCancel(ctx)
	p := &pump{stop, make(chan error, 1)}
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			// Not with ctx: if it ended, it would be unknown whether the events exist.
			if _, err := pool.Exec(context.WithoutCancel(ctx), `INSERT INTO outbox_events (event_type, payload)
				SELECT (ARRAY['a', 'b'])[1 + n % 2], '1' FROM generate_series(1, 100) n`); err != nil {
				p.done <- err
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				p.done <- nil
				return
			}
		}
	}()
	return p
}

// end returns when the pump has stopped.
func (p *pump) end() error {
	p.stop()
	return <-p.done
}
