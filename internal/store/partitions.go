package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// dropAgain is when a partition is looked at again that had to stay: that
	// may read all of it.
	dropAgain = time.Hour
	// dropSoonAgain is the same for one that nothing but its lock, or a destination
	// of a stream that lags, has kept.
	dropSoonAgain = 10 * time.Minute
	// keysEvery is how often the keys of vanished events are looked for, unless a
	// partition was dropped.
	keysEvery = 24 * time.Hour
	// keysBatch is how many keys are looked at by one statement, and keysPause
	// the time between two.
	keysBatch = 1000
	keysPause = 50 * time.Millisecond
	// extensions is how many calls it takes until events go into a partition that
	// was made by the first one. Where writers are in the way, later calls do it.
	extensions = 3
)

// Range are the ids of events above After, up to Upto.
type Range struct{ After, Upto int64 }

// AllIDs is the range of everything.
func AllIDs() Range { return Range{math.MinInt64, math.MaxInt64} }

// Upkeep is what [Partitions.Keep] has done and found.
type Upkeep struct {
	// Partitioned is false where the table is a plain one; nothing else is set then.
	Partitioned bool
	// Made and Dropped are names of partitions.
	Made, Dropped []string
	// Kept says of partitions that are old enough to be dropped, and were looked at
	// just now, why they could not be.
	Kept map[string]string
	// Purge is where delivered events have to be deleted one by one: in partitions
	// that have to stay, and outside of all ranges.
	Purge []Range
}

// Partitions keeps the partitions of a table that [outboxsql.Partition] has made
// one of days: makes them ahead, and drops those that have come to their end.
// Several relays may do so at once. One goroutine uses it.
type Partitions struct {
	connector *Connector
	stay      map[string]staying
	keysDone  time.Time
}

// staying is a partition that could not be dropped.
type staying struct {
	until time.Time // when it is looked at again
	// whole says that it will go as a whole before long: nothing but its lock was in
	// the way, or a destination of a stream has not come so far.
	whole bool
}

// NewPartitions returns what keeps the partitions; it connects for each time.
func NewPartitions(c *Connector) *Partitions {
	return &Partitions{connector: c, stay: make(map[string]staying)}
}

// day is a partition, as outbox_partitions() describes it.
type day struct {
	Name      string
	Low, High int64
	Closed    *time.Time
}

// Keep makes the partitions of the day at and of those after it, and drops those
// in which every event was done for longer than keep; of a stream, those in which every
// event was written longer ago than that and delivered. Zero as at is the time of
// the database.
func (p *Partitions) Keep(ctx context.Context, at time.Time, keep time.Duration) (u Upkeep, err error) {
	conn, err := p.connector.Connect(ctx, "partitions")
	if err != nil {
		return u, err
	}
	defer Close(ctx, conn)
	if u.Partitioned, err = IsPartitioned(ctx, conn); err != nil || !u.Partitioned {
		return u, err
	}
	// Looking through a partition may take as long as it takes: no lock is held
	// meanwhile that anybody waits for.
	if _, err := conn.Exec(ctx, `SET statement_timeout = 0`); err != nil {
		return u, fmt.Errorf("keep partitions: %w", err)
	}
	if at.IsZero() {
		if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at); err != nil {
			return u, fmt.Errorf("keep partitions: %w", err)
		}
	}
	return u, errors.Join(p.extend(ctx, conn, at, &u), p.drop(ctx, conn, at, keep, &u), p.forgetKeys(ctx, conn, at, len(u.Dropped)))
}

// cured adds to an error what helps against it, where that is known.
func cured(what string, err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return nil
	case ok && pg.Code == "42501": // insufficient_privilege
		return fmt.Errorf("%s: %w: run what `notifyd migrate --print-grants` prints", what, err)
	case ok && pg.Code == "42883": // undefined_function
		return fmt.Errorf("%s: %w: run `notifyd migrate --partitions daily`", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (p *Partitions) extend(ctx context.Context, conn *pgx.Conn, at time.Time, u *Upkeep) error {
	for range extensions {
		rows, err := conn.Query(ctx, `SELECT outbox_partitions_extend($1, $2)`, at, outboxsql.PartitionsAhead)
		if err != nil {
			return cured("make partitions", err)
		}
		made, err := pgx.CollectRows(rows, pgx.RowTo[string])
		u.Made = append(u.Made, made...)
		if err != nil || len(u.Made) == 0 {
			return cured("make partitions", err)
		}
	}
	return nil
}

func (p *Partitions) drop(ctx context.Context, conn *pgx.Conn, at time.Time, keep time.Duration, u *Upkeep) error {
	rows, err := conn.Query(ctx, `SELECT name, low, high, closed::timestamptz FROM outbox_partitions()`)
	if err != nil {
		return cured("list partitions", err)
	}
	days, err := pgx.CollectRows(rows, pgx.RowToStructByPos[day])
	if err != nil {
		return cured("list partitions", err)
	}
	var last int64
	if err := conn.QueryRow(ctx, `SELECT outbox_last_id()`).Scan(&last); err != nil {
		return cured("list partitions", err)
	}
	u.Kept = make(map[string]string)
	before := at.Add(-keep)
	past := int64(math.MinInt64) // the last id of the partition before
	for _, d := range days {
		below := max(d.Low, math.MinInt64+1) - 1
		if below > past {
			u.Purge = append(u.Purge, Range{past, below})
		}
		past = d.High - 1
		if d.Closed == nil || d.Closed.After(before) || d.High > last+1 {
			continue
		}
		if s, ok := p.stay[d.Name]; ok && at.Before(s.until) {
			if !s.whole {
				u.Purge = append(u.Purge, Range{below, past})
			}
			continue
		}
		why, err := p.dropOne(ctx, conn, d.Name, before)
		if err != nil {
			return err
		}
		p.note(d.Name, why, at, u)
		if !p.stay[d.Name].whole {
			u.Purge = append(u.Purge, Range{below, past})
		}
	}
	u.Purge = joined(append(u.Purge, Range{past, math.MaxInt64}))
	return nil
}

// dropOne drops a partition, or says why it has not.
func (p *Partitions) dropOne(ctx context.Context, conn *pgx.Conn, name string, before time.Time) (why *string, err error) {
	err = conn.QueryRow(ctx, `SELECT outbox_partition_drop($1, $2)`, name, before).Scan(&why)
	return why, cured("drop the partition "+name, err)
}

// note notes what has become of a partition.
func (p *Partitions) note(name string, why *string, at time.Time, u *Upkeep) {
	if why == nil {
		delete(p.stay, name)
		u.Dropped = append(u.Dropped, name)
		return
	}
	u.Kept[name] = *why
	s := staying{until: at.Add(dropAgain)}
	if strings.HasPrefix(*why, "busy: ") || strings.HasPrefix(*why, "behind: ") {
		s = staying{until: at.Add(dropSoonAgain), whole: true}
	}
	p.stay[name] = s
}

// joined puts ranges that touch into one.
func joined(ranges []Range) []Range {
	all := ranges[:1]
	for _, r := range ranges[1:] {
		if last := &all[len(all)-1]; r.After == last.Upto {
			last.Upto = r.Upto
		} else {
			all = append(all, r)
		}
	}
	return all
}

// forgetKeys deletes the idempotency keys of events that have gone.
func (p *Partitions) forgetKeys(ctx context.Context, conn *pgx.Conn, at time.Time, dropped int) error {
	if dropped == 0 && at.Before(p.keysDone.Add(keysEvery)) {
		return nil
	}
	after := new(int64)
	*after = math.MinInt64
	for {
		if err := conn.QueryRow(ctx, `SELECT outbox_keys_purge($1, $2)`, *after, keysBatch).Scan(&after); err != nil {
			return cured("delete idempotency keys", err)
		}
		if after == nil {
			p.keysDone = at
			return nil
		}
		timer := time.NewTimer(keysPause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("delete idempotency keys: %w", context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// IsPartitioned reports whether outbox_events is. A session that was opened
// before it became so goes on with the statements that it has, which find the
// same rows.
func IsPartitioned(ctx context.Context, conn *pgx.Conn) (yes bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTripTimeout, fmt.Errorf("the database did not answer within %v", RoundTripTimeout))
	defer cancel()
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('outbox_events') AND relkind = 'p')`).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("look whether outbox_events is partitioned: %w", err)
	}
	return yes, nil
}
