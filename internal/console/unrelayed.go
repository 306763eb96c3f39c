package console

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// unrelayed reads the figures of an outbox from its tables, where no relay runs in this process: the states that the live relays
// report, and the backlog. It has no rates and no counters.
type unrelayed struct {
	tables func() *tables

	mu    sync.Mutex
	stats observe.Stats // as read last
}

// Stats implements Watched. The last Backlog has read the figures.
func (u *unrelayed) Stats() observe.Stats {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.stats
}

// Backlog implements Watched.
func (u *unrelayed) Backlog(ctx context.Context) (b observe.Backlog, err error) {
	t := u.tables()
	state, relays, err := t.alive(ctx)
	if err != nil {
		return b, fmt.Errorf("read the relays: %w", err)
	}

	err = t.Pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		b, err = store.ReadBacklog(ctx, conn.Conn(), store.BacklogOptions{Schema: t.Schema})
		return err
	})
	if err != nil {
		return b, fmt.Errorf("read the backlog: %w", err)
	}

	reports, _ := store.Reports(relays)
	stats := observe.Stats{Mode: string(state.Mode)}
	for i := range reports {
		stats.Destinations = append(stats.Destinations, reports[i].Stats())
	}

	u.mu.Lock()
	defer u.mu.Unlock()
	u.stats = stats

	return b, nil
}

// Pause implements Pauser.
func (u *unrelayed) Pause(ctx context.Context, destination string, a ops.Action) error {
	return u.tables().client.Pause(ctx, destination, a) //nolint:wrapcheck // as a relay has it
}

// Resume implements Pauser.
func (u *unrelayed) Resume(ctx context.Context, destination string, a ops.Action) (was bool, err error) {
	return u.tables().client.Resume(ctx, destination, a) //nolint:wrapcheck // as a relay has it
}
