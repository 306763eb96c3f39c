package pgstore

import (
	"context"
	"fmt"
	"time"
)

// The defaults of [Store.Purge], and its limit.
const (
	DefaultBatch  = 1000
	DefaultBudget = 10 * time.Second

	maxBatch = 100_000
)

// Purge removes expired keys, in statements that each remove batch rows (1 to
// 100,000; 0 is [DefaultBatch]), until no expired keys are left (done is true) or
// budget is used up (0 is [DefaultBudget]). Call it about once an hour; the
// middleware decides how long a key is kept. Expired keys are free whether they
// are purged or not.
func (s *Store) Purge(ctx context.Context, batch int, budget time.Duration) (removed int64, done bool, err error) {
	if batch == 0 {
		batch = DefaultBatch
	}
	if budget == 0 {
		budget = DefaultBudget
	}
	if batch < 1 || batch > maxBatch || budget < 0 {
		return 0, false, fmt.Errorf("pgstore: a batch of %d within %s: 1 to %d are allowed, and no negative budget", batch, budget, maxBatch)
	}
	for begin := time.Now(); ; {
		tag, err := s.db.Exec(ctx, `DELETE FROM `+s.table+` WHERE ctid = ANY (ARRAY(SELECT ctid FROM `+s.table+`
			WHERE expires_at <= clock_timestamp() ORDER BY expires_at LIMIT $1::bigint FOR UPDATE SKIP LOCKED))`, int64(batch))
		if err != nil {
			return removed, false, explain(err)
		}
		removed += tag.RowsAffected()
		if tag.RowsAffected() < int64(batch) {
			return removed, true, nil
		}
		if time.Since(begin) >= budget {
			return removed, false, nil
		}
	}
}
