package queue

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
)

// Maintenance maintains leases and other rows that no claim finds, on the connection that proves that the relay is alive.
// It implements [LeaseStore], [Housekeeper] and [Companions].
type Maintenance struct {
	*store.Session
	rows    deliveries.Leases
	deletes bool // see SessionOptions.Delete

	checked *pgx.Conn // the session on which TakeOver checked the relay's own leases; Do guards it
	walk    walk      // progress of Reroute
}

// NewMaintenance returns a Maintenance that connects on first use. The caller closes it.
func NewMaintenance(c *store.Connector, o SessionOptions) *Maintenance {
	return &Maintenance{
		Session: store.NewSession(c, store.SessionOptions{Owner: o.Owner, Program: o.Program, Refused: o.Refused}),
		rows:    deliveries.Leases{Owner: o.Owner, Length: o.Lease}, deletes: o.Delete, walk: newWalk(),
	}
}

// Finish implements [LeaseStore].
func (k *Maintenance) Finish(ctx context.Context, done, put []deliveries.Entry) (fenced int, err error) {
	err = k.Do(ctx, "settle leased deliveries", func(ctx context.Context, c *session.Conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			affected, err := k.rows.Finish(ctx, tx, done, put)
			if err != nil {
				return err
			}
			fenced = len(done) + len(put) - affected
			var ids []int64
			for _, e := range slices.Concat(done, put) {
				ids = append(ids, e.EventID)
			}
			return k.finishEvents(ctx, tx, ids)
		})
	})
	return fenced, err
}

func (k *Maintenance) finishEvents(ctx context.Context, tx pgx.Tx, ids []int64) error {
	for _, sql := range []string{sqlLock, sqlForget, sqlFinish} {
		if sql == sqlForget && !k.deletes {
			continue
		}
		if _, err := tx.Exec(ctx, sql, ids); err != nil {
			return err
		}
	}
	return nil
}

// Renew implements [LeaseStore].
func (k *Maintenance) Renew(ctx context.Context, tokens []int64) error {
	return k.Do(ctx, "renew leases", func(ctx context.Context, c *session.Conn) error {
		return k.rows.Renew(ctx, c.Conn, tokens)
	})
}

// TakeOver implements [Housekeeper]. It takes over an expired lease, and at once a lease whose owner's advisory lock
// is free. A lease whose settlement is running waits for the next call.
//
// After each loss of the session, TakeOver also takes over leases of this relay that the relay does not know. A crash
// of PostgreSQL, or a failover to a lagging server, may undo the last commits, and with them the end of a leased
// delivery. TakeOver calls mine on the new session. A lease that is not live then ended in a commit; if the row still
// has the lease, that commit is lost.
func (k *Maintenance) TakeOver(ctx context.Context, mine func() deliveries.Tokens) (n int, err error) {
	for {
		some, err := k.takeOverSome(ctx, mine)
		n += some
		if err != nil || some < deliveries.TakeOverBatch {
			return n, err
		}
	}
}

func (k *Maintenance) takeOverSome(ctx context.Context, mine func() deliveries.Tokens) (n int, err error) {
	err = k.Do(ctx, "take over leases", func(ctx context.Context, c *session.Conn) error {
		own := 0
		if k.checked != c.Conn {
			own, err = k.rows.TakeOverLost(ctx, c.Conn, mine())
			if err != nil || own == deliveries.TakeOverBatch {
				n = own
				return err
			}
			k.checked = c.Conn
		}
		n, err = k.rows.TakeOver(ctx, c.Conn)
		n += own
		return err
	})
	return n, err
}

const (
	// reroutePage bounds the rows that one statement of Reroute reads and changes: some ten milliseconds. The
	// statement reads at least one row of each type. After a timeout the pages are smaller, down to leastPage.
	reroutePage = 2000
	leastPage   = 20
	// rerouteFor bounds one call of Reroute, so that the leases of dead relays do not wait long. After each page the
	// Maintenance's session is free for others.
	rerouteFor = 500 * time.Millisecond
)

// walk is the progress of Reroute through the unrouted events in id order. It reads each event once, however many
// dead index entries it leaves behind.
type walk struct {
	after int64 // the walk continues after this event
	page  int
}

func newWalk() walk { return walk{after: math.MinInt64, page: reroutePage} }

// Reroute implements [Housekeeper]. Only one goroutine may call it.
func (k *Maintenance) Reroute(ctx context.Context, match func(string) bool) (n int, more bool, err error) {
	var routed []string
	err = k.Do(ctx, "list event types without a route", func(ctx context.Context, c *session.Conn) (err error) {
		routed, err = deliveries.UnroutedTypes(ctx, c, match)
		return err
	})
	if err != nil || len(routed) == 0 {
		k.walk.after = math.MinInt64
		return 0, false, err
	}
	for begin := time.Now(); time.Since(begin) < rerouteFor; {
		var some int
		err := k.Do(ctx, "make due the events whose type has gained a route", func(ctx context.Context, c *session.Conn) (err error) {
			k.walk.after, some, more, err = deliveries.Reroute(ctx, c, routed, k.walk.after, k.walk.page)
			return err
		})
		n += some
		switch {
		case store.IsCanceled(err):
			k.walk.page = max(k.walk.page/4, leastPage)
			return n, true, err
		case err != nil:
			return n, true, err
		case !more:
			k.walk = newWalk()
			return n, false, nil
		}
		k.walk.page = min(2*k.walk.page, reroutePage)
	}
	return n, true, nil
}

// Claimers implements [Companions].
func (k *Maintenance) Claimers(ctx context.Context) (pids []int32, err error) {
	err = k.Do(ctx, "list the sessions that claim", func(ctx context.Context, c *session.Conn) error {
		rows, err := c.Query(ctx, `SELECT pid FROM pg_stat_activity
			WHERE application_name = $1 AND datname = current_database() AND pid IS NOT NULL ORDER BY pid`, "notifyd/"+roleClaim)
		if err != nil {
			return err
		}
		pids, err = pgx.CollectRows(rows, pgx.RowTo[int32])
		return err
	})
	return pids, err
}

var (
	_ LeaseStore  = (*Maintenance)(nil)
	_ Housekeeper = (*Maintenance)(nil)
	_ Companions  = (*Maintenance)(nil)
)
