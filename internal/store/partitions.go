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

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/sleep"
)

const (
	// dropAgain is how long until a partition that could not be dropped is checked again: a check may read all of it.
	dropAgain = time.Hour
	// dropSoonAgain is the same for a partition that only its lock, or a lagging destination of a stream, kept.
	dropSoonAgain = 10 * time.Minute
	// keysEvery is how often keys of deleted events are searched, unless a partition was dropped.
	keysEvery = 24 * time.Hour
	// keysBatch is how many keys one statement checks, and keysPause the pause between two statements.
	keysBatch = 1000
	keysPause = 50 * time.Millisecond
	// extensions is the number of calls until events go into a partition that the first call made. If writers are in
	// the way, later calls do it.
	extensions = 3
)

// Range is the range of event ids above After, up to Upto.
type Range struct{ After, Upto int64 }

// AllIDs returns the range of all ids.
func AllIDs() Range { return Range{math.MinInt64, math.MaxInt64} }

// Upkeep is the result of [Partitions.Keep].
type Upkeep struct {
	// Partitioned is false for a plain table; all other fields are then zero.
	Partitioned bool
	// Made and Dropped are names of partitions.
	Made, Dropped []string
	// Kept maps each partition that is old enough to drop, and was just checked, to the reason why it could not be
	// dropped.
	Kept map[string]string
	// Purge lists the ranges whose delivered events must be deleted one by one: partitions that stay, and ids outside
	// all partitions.
	Purge []Range
}

// Partitions maintains a table that [outboxsql.Partition] has partitioned by day: it creates partitions ahead, and
// drops expired ones. Several relays may do so concurrently. Only one goroutine may use a Partitions.
type Partitions struct {
	connector *Connector
	kept      map[string]keptPartition
	keysDone  time.Time
}

// staying is a partition that could not be dropped.
type keptPartition struct {
	until time.Time // time of the next check
	// whole reports that the partition will soon be dropped as a whole: only its lock, or a lagging destination of a
	// stream, was in the way.
	whole bool
}

// NewPartitions returns a Partitions that connects for each call.
func NewPartitions(c *Connector) *Partitions {
	return &Partitions{connector: c, kept: make(map[string]keptPartition)}
}

// day is a partition as outbox_partitions() returns it.
type day struct {
	Name      string
	Low, High int64
	Closed    *time.Time
}

// Keep creates the partitions of the day of at and of the following days. It drops partitions whose events have all
// been done for longer than keep; in a stream, those whose events were all written longer ago than keep and
// delivered. A zero at means the time of the database.
func (p *Partitions) Keep(ctx context.Context, at time.Time, keep time.Duration) (u Upkeep, err error) {
	conn, err := p.connector.Open(ctx, "partitions")
	if err != nil {
		return u, err
	}
	defer Close(ctx, conn.Conn)

	u.Partitioned, err = IsPartitioned(ctx, conn)
	if err != nil || !u.Partitioned {
		return u, err
	}

	// Checking a partition may take long, but holds no lock that other sessions wait for.
	if err := conn.Set(ctx, "statement_timeout", "0"); err != nil {
		return u, fmt.Errorf("keep partitions: %w", err)
	}

	if at.IsZero() {
		if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at); err != nil {
			return u, fmt.Errorf("keep partitions: %w", err)
		}
	}

	return u, errors.Join(
		p.extend(ctx, conn, at, &u),
		p.drop(ctx, conn, at, keep, &u),
		p.forgetKeys(ctx, conn, at, len(u.Dropped)),
	)
}

// cured adds the cure to an error, if known.
func cured(what string, err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return nil
	case session.IsHidden(err):
		return fmt.Errorf("%s: %w: %s", what, err, session.HiddenCure)
	case ok && pg.Code == "42501": // insufficient_privilege
		return fmt.Errorf("%s: %w: run the statements of `notifyd migrate --print-grants`", what, err)
	case ok && pg.Code == "42883": // undefined_function
		return fmt.Errorf("%s: %w: run `notifyd migrate --partitions daily`", what, err)
	}

	return fmt.Errorf("%s: %w", what, err)
}

func (p *Partitions) extend(ctx context.Context, conn *session.Conn, at time.Time, u *Upkeep) error {
	for range extensions {
		rows, err := conn.Query(ctx, `SELECT outbox_partitions_extend($1, $2)`, at, pgschema.PartitionsAhead)
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

func (p *Partitions) drop(ctx context.Context, conn *session.Conn, at time.Time, keep time.Duration, u *Upkeep) error {
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
	past := int64(math.MinInt64) // last id of the previous partition
	for _, d := range days {
		below := max(d.Low, math.MinInt64+1) - 1
		if below > past {
			u.Purge = append(u.Purge, Range{past, below})
		}

		past = d.High - 1
		if d.Closed == nil || d.Closed.After(before) || d.High > last+1 {
			continue
		}

		if s, ok := p.kept[d.Name]; ok && at.Before(s.until) {
			if !s.whole {
				u.Purge = append(u.Purge, Range{below, past})
			}
			continue
		}

		why, err := p.dropOne(ctx, conn, d.Name, before)
		if err != nil {
			return err
		}

		p.record(d.Name, why, at, u)
		if !p.kept[d.Name].whole {
			u.Purge = append(u.Purge, Range{below, past})
		}
	}

	u.Purge = joined(append(u.Purge, Range{past, math.MaxInt64}))
	return nil
}

// dropOne drops a partition, or returns the reason why it could not.
func (p *Partitions) dropOne(ctx context.Context, conn *session.Conn, name string, before time.Time) (why *string, err error) {
	err = conn.QueryRow(ctx, `SELECT outbox_partition_drop($1, $2)`, name, before).Scan(&why)
	return why, cured("drop the partition "+name, err)
}

// note records the outcome for a partition.
func (p *Partitions) record(name string, why *string, at time.Time, u *Upkeep) {
	if why == nil {
		delete(p.kept, name)
		u.Dropped = append(u.Dropped, name)
		return
	}

	u.Kept[name] = *why

	s := keptPartition{until: at.Add(dropAgain)}
	if strings.HasPrefix(*why, "busy: ") || strings.HasPrefix(*why, "behind: ") {
		s = keptPartition{until: at.Add(dropSoonAgain), whole: true}
	}

	p.kept[name] = s
}

// joined merges adjacent ranges.
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

// forgetKeys deletes the idempotency keys of deleted events.
func (p *Partitions) forgetKeys(ctx context.Context, conn *session.Conn, at time.Time, dropped int) error {
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

		if !sleep.For(ctx, keysPause) {
			return fmt.Errorf("delete idempotency keys: %w", context.Cause(ctx))
		}
	}
}

// IsPartitioned reports whether outbox_events is partitioned. A session from before the partitioning continues with
// its statements, which find the same rows.
func IsPartitioned(ctx context.Context, conn pgschema.Querier) (yes bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTripTimeout, errNoAnswer)
	defer cancel()

	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('outbox_events') AND relkind = 'p')`).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("check whether outbox_events is partitioned: %w", err)
	}

	return yes, nil
}
