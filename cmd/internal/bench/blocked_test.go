//go:build testall

package bench

import (
	"context"
	"errors"
	"testing"
	"time"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestBlockedAreSkipped counts the rows that a relay reads while it drains with blocked aggregates: load on the machine
// lowers rates, but not row counts. Stored deliveries are read once, when the relay begins, and not with each of a
// hundred claims.
func TestBlockedAreSkipped(t *testing.T) {
	t.Parallel()
	want := usual(Drain{Events: 2000, Keys: 50, Batch: 20, BlockedKeys: 300})
	inDatabase(t, func(ctx context.Context, e *Env) error {
		d := &drain{Env: e, want: want}
		if err := d.openSink(ctx); err != nil {
			return err
		}
		l := d.load(outboxsql.ModeStream, want.BlockedKeys)
		events, stored, err := d.looks(ctx, l)
		if err != nil {
			return err
		}
		if most := int64(3 * l.held()); stored > most {
			t.Errorf("%d stored deliveries were read, want %d at most", stored, most)
		}
		if most := int64(20 * l.events); events > most {
			t.Errorf("%d events were read, want %d at most", events, most)
		}
		return nil
	})
}

// looks drains a load, and returns how many rows of both tables the drain read.
func (d *drain) looks(ctx context.Context, l load) (events, stored int64, err error) {
	schema, err := d.backlog(ctx, "looks", l)
	if err != nil {
		return 0, 0, err
	}
	if _, err := d.relay(ctx, schema, l); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("PostgreSQL has not counted the rows that were read"))
	defer cancel()
	// The count of a session is known when the session is gone; each event was read at least once.
	for known := false; !known; {
		err := d.Pool.QueryRow(ctx, `WITH read AS (
				SELECT relname, seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes AS i WHERE i.relid = t.relid)::bigint AS n
				FROM pg_stat_user_tables AS t WHERE schemaname = $1)
			SELECT e.n, d.n, e.n >= $2 AND d.n > 0 AND NOT EXISTS (
				SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%')
			FROM read AS e, read AS d, pg_sleep(0.02) WHERE e.relname = 'outbox_events' AND d.relname = 'outbox_deliveries'`,
			schema, l.events).Scan(&events, &stored, &known)
		if err != nil {
			return 0, 0, errors.Join(err, context.Cause(ctx))
		}
	}
	_, err = d.left(ctx, schema, l)
	return events, stored, err
}
