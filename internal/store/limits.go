package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/limit"
	"github.com/notifyd/notifyd/internal/session"
)

// roleLimits is the role of the session that takes from rate limits.
const roleLimits = "limits"

// Limits takes from the rate limits that all relays share. It connects on first use. It is safe for concurrent use;
// its creator closes it.
type Limits struct {
	onDemand

	tidy time.Time // when to delete expired rows; guarded by onDemand.mu
}

// NewLimits returns Limits that connect on first use. report receives the result of each reservation; nil is good.
func NewLimits(c *Connector, report func(error)) *Limits {
	return &Limits{onDemand: onDemand{connector: c, role: roleLimits, report: report}}
}

const (
	// limitTimeout bounds one reservation: claims wait for it.
	limitTimeout = 2 * time.Second
	// tidyEvery is how often expired rows are deleted, and tidyRows how many at once.
	tidyEvery = time.Minute
	tidyRows  = 10_000
)

// sqlReserve reserves events for each key within its limit. The clock is the database's, read once per row, after the
// wait for the row's lock. A time further ahead than the burst comes from another limit or another clock: it counts
// as the burst.
const sqlReserve = `WITH asked AS MATERIALIZED (SELECT clock_timestamp() AS now)
INSERT INTO outbox_limits AS l (destination, key, tat, granted)
SELECT $1, a.key, asked.now + ceil(least(a.want, $4::bigint) * $5::float8) * interval '1 microsecond', least(a.want, $4::bigint)
FROM asked, unnest($2::text[], $3::bigint[]) AS a(key, want) ORDER BY a.key COLLATE "C"
ON CONFLICT (destination, key) DO UPDATE SET (tat, granted) = (
	SELECT b.base + ceil(g.n * $5::float8) * interval '1 microsecond', g.n
	FROM (SELECT clock_timestamp() AS now OFFSET 0) AS c,
	LATERAL (SELECT greatest(c.now, least(l.tat, c.now + $4::bigint * $5::float8 * interval '1 microsecond')) AS base) AS b,
	LATERAL (SELECT least(excluded.granted,
		floor($4::bigint - extract(epoch FROM b.base - c.now)::float8 * 1000000 / $5::float8)::bigint) AS n) AS g)
RETURNING key, granted, (extract(epoch FROM tat - clock_timestamp()) * 1000000)::bigint`

// sqlTidy deletes rows that no longer limit anything. The margin protects rows in use.
const sqlTidy = `DELETE FROM outbox_limits WHERE (destination, key) IN (SELECT destination, key FROM outbox_limits
	WHERE tat < clock_timestamp() - interval '1 minute' LIMIT $1 FOR UPDATE SKIP LOCKED)`

// Reserve implements limit.Reserve.
func (l *Limits) Reserve(ctx context.Context, destination string, t limit.Terms, asks []limit.Request) (all []limit.Reservation, err error) {
	what := fmt.Sprintf("take from the rate limit of %q", destination)
	err = l.do(ctx, limitTimeout, what, func(ctx context.Context, conn *session.Conn) error {
		all, err = l.take(ctx, conn, destination, t, asks)
		return err
	})
	return all, err
}

func (l *Limits) take(ctx context.Context, conn *session.Conn, destination string, t limit.Terms, asks []limit.Request) ([]limit.Reservation, error) {
	keys := make([]string, len(asks))
	wants := make([]int64, len(asks))
	for i, a := range asks {
		keys[i] = a.Key
		wants[i] = int64(a.N)
	}

	rows, err := conn.Query(ctx, sqlReserve, destination, keys, wants, int64(t.Burst), float64(t.Gap)/float64(time.Microsecond))
	if err != nil {
		return nil, err
	}

	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (g limit.Reservation, err error) {
		var lead int64
		err = r.Scan(&g.Key, &g.N, &lead)
		g.Lead = time.Duration(lead) * time.Microsecond
		return g, err
	})
	if err == nil {
		err = session.CheckChanged("reserve", int64(len(all)), int64(len(asks)))
	}

	if now := time.Now(); err == nil && now.After(l.tidy) {
		l.tidy = now.Add(tidyEvery)
		_, err = conn.Exec(ctx, sqlTidy, tidyRows)
	}

	return all, err
}
