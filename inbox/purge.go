package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The defaults of [Retention], and the limits of its fields.
const (
	DefaultKeep   = 30 * 24 * time.Hour
	DefaultBatch  = 1000
	DefaultBudget = 10 * time.Second

	maxBatch = 100_000
)

// Retention configures a purge. The zero value has the defaults.
type Retention struct {
	// Schema holds the table; "" is [DefaultSchema].
	Schema string
	// Keep is how long an event stays noted; 0 is [DefaultKeep], 30 days.
	//
	// It must exceed the delay of any redelivery, because an event whose note is
	// gone is handled again: the retention of the broker's topic or queue (a
	// consumer group that is reset reads all of it), the longest outage of the
	// consumer that the broker or notifyd waits out, and the age at which a person
	// may still replay a dead letter. When in doubt keep longer: a row takes about
	// 100 bytes with its indexes, and speed does not depend on the number of rows.
	Keep time.Duration
	// Batch is how many rows one statement removes, 1 to 100,000; 0 is
	// [DefaultBatch]. Rows are locked for the length of one statement only.
	Batch int
	// Budget bounds the whole purge: no further batch is begun once it is used
	// up. 0 is [DefaultBudget].
	Budget time.Duration
}

// Purge removes notes that are older than r.Keep, in batches of one statement
// each, and returns the number of rows removed. done is false if the budget ended
// it and there may be more. Call it every hour or so, from one program or from
// several at once: they skip each other's rows.
//
// db is a pool or a connection. In a transaction of the caller's, all rows stay
// locked until its commit removes them. Ages are measured by the clock of the
// database.
func Purge[R Result](ctx context.Context, db Execer[R], r Retention) (removed int64, done bool, err error) {
	return purge(ctx, func(ctx context.Context, query string, args ...any) (int64, error) {
		result, err := db.Exec(ctx, query, args...)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected(), nil
	}, r)
}

// PurgeSQL is [Purge] for database/sql.
func PurgeSQL(ctx context.Context, db SQLExecer, r Retention) (removed int64, done bool, err error) {
	return purge(ctx, execSQL(db), r)
}

func purge(ctx context.Context, run exec, r Retention) (removed int64, done bool, err error) {
	r = r.withDefaults()
	schema, err := quote(r.Schema)
	if err := errors.Join(err, r.check()); err != nil {
		return 0, false, err
	}

	// Rows that another purge is removing are skipped; a transaction that notes an
	// event again waits only for the purge that removes its row.
	query := `DELETE FROM ` + schema + `.inbox_events WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + schema + `.inbox_events
		WHERE handled_at < clock_timestamp() - $1::bigint * interval '1 microsecond'
		ORDER BY handled_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED))`

	for begin := time.Now(); ; {
		n, err := run(ctx, query, r.Keep.Microseconds(), int64(r.Batch))
		if err != nil {
			return removed, false, fmt.Errorf("purge %s.inbox_events: %w", schema, err)
		}

		removed += n
		if n < int64(r.Batch) {
			return removed, true, nil
		}

		if time.Since(begin) >= r.Budget {
			return removed, false, nil
		}
	}
}

func (r Retention) withDefaults() Retention {
	if r.Keep == 0 {
		r.Keep = DefaultKeep
	}
	if r.Batch == 0 {
		r.Batch = DefaultBatch
	}
	if r.Budget == 0 {
		r.Budget = DefaultBudget
	}
	return r
}

func (r Retention) check() error {
	var errs []error
	if r.Keep < time.Microsecond {
		errs = append(errs, fmt.Errorf("%w: keep is %s: set how long redeliveries are possible", ErrInvalid, r.Keep))
	}
	if r.Batch < 1 || r.Batch > maxBatch {
		errs = append(errs, fmt.Errorf("%w: batch is %d, 1 to %d are allowed", ErrInvalid, r.Batch, maxBatch))
	}
	if r.Budget < 0 {
		errs = append(errs, fmt.Errorf("%w: budget is %s: it cannot be negative", ErrInvalid, r.Budget))
	}
	return errors.Join(errs...)
}
