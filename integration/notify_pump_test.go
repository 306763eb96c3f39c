package integration

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// pump writes without pause, so that a relay keeps polling.
type pump struct {
	stop context.CancelFunc
	done chan error
}

// startPump writes up to 20,000 events per second, of both types of a plan, and none while a slow machine has a few thousand left
// to deliver.
func startPump(ctx context.Context, pool *pgxpool.Pool, mode outboxsql.Mode) *pump {
	left := `SELECT count(*) < 2000 FROM (SELECT FROM outbox_events WHERE state = 'fresh' LIMIT 2000) AS f`
	if mode == outboxsql.ModeStream {
		left = `SELECT coalesce((SELECT id FROM outbox_last_id) - (SELECT min(head) FROM outbox_positions) < 4000, true)`
	}
	write := `INSERT INTO outbox_events (event_type, payload)
		SELECT (ARRAY['a', 'b'])[1 + n % 2], '1' FROM generate_series(1, 100) n WHERE (` + left + `)`
	ctx, stop := context.WithCancel(ctx)
	p := &pump{stop, make(chan error, 1)}
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			// Not with ctx: if it ended, it would be unknown whether the events exist.
			if _, err := pool.Exec(context.WithoutCancel(ctx), write); err != nil {
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
