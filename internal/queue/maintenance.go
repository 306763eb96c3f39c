package queue

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/withheld"
)

// Maintenance maintains leases and other rows that no claim finds, on the connection that proves that the relay is alive.
// It implements [LeaseStore], [Housekeeper] and [Companions].
type Maintenance struct {
	*store.Session
	rows    deliveries.Leases
	deletes bool // see SessionOptions.Delete

	checked *pgx.Conn // the session on which TakeOver checked the relay's own leases; Do guards it
	walk    walk      // progress of Reroute
	refused error     // an event that the last complete walk has passed
}

// NewMaintenance returns a Maintenance that connects on first use. The caller closes it.
func NewMaintenance(c *store.Connector, o SessionOptions) *Maintenance {
	return &Maintenance{
		Session: store.NewSession(c, store.SessionOptions{Owner: o.Owner, Program: o.Program, Refused: o.Refused}),
		rows:    deliveries.Leases{Owner: o.Owner, Length: o.Lease}, deletes: o.Delete, walk: newWalk(time.Time{}),
	}
}

// Finish implements [LeaseStore].
func (k *Maintenance) Finish(ctx context.Context, done, put []deliveries.Entry) (fenced int, err error) {
	err = k.Do(ctx, "settle leased deliveries", func(ctx context.Context, c *session.Conn) error {
		fenced, err = k.finish(ctx, c, done, put, k.deletes)
		if k.deletes && len(done)+len(put) == 1 && session.IsConstraint(err) {
			fenced, err = k.finish(ctx, c, done, put, false) // something references the event: it stays, and is marked
		}
		return errors.Join(err, session.ForgetIgnored(ctx, c.Conn, err))
	})
	return fenced, err
}

func (k *Maintenance) finish(ctx context.Context, c *session.Conn, done, put []deliveries.Entry, deletes bool) (fenced int, err error) {
	err = pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		affected, err := k.rows.Finish(ctx, tx, done, put)
		if err != nil {
			return err
		}
		fenced = len(done) + len(put) - affected
		var ids []int64
		for _, e := range slices.Concat(done, put) {
			ids = append(ids, e.EventID)
		}
		return finishEvents(ctx, tx, ids, deletes)
	})
	return fenced, err
}

// finishEvents marks the events without a delivery that is left, or deletes those of them without a dead letter.
func finishEvents(ctx context.Context, tx pgx.Tx, ids []int64, deletes bool) error {
	for _, sql := range []string{sqlLock, sqlForget, sqlFinish} {
		if sql == sqlForget && !deletes {
			continue
		}
		if _, err := tx.Exec(ctx, sql, ids); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, sqlFinished, ids)
	return ignoredFinish(err)
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
		var refused error
		if k.checked != c.Conn {
			own, refused = k.rows.TakeOverLost(ctx, c.Conn, mine())
			if refused != nil && !session.IsOfRow(refused) || own == deliveries.TakeOverBatch {
				n = own
				return refused
			}
			if refused == nil {
				k.checked = c.Conn
			}
		}

		n, err = k.rows.TakeOver(ctx, c.Conn)
		n += own
		return cmp.Or(err, refused)
	})

	return n, err
}

// Unpark implements [Housekeeper].
func (k *Maintenance) Unpark(ctx context.Context) (n int, err error) {
	err = k.Do(ctx, "make parked deliveries due", func(ctx context.Context, c *session.Conn) (err error) {
		n, err = deliveries.Unpark(ctx, c.Conn)
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

// walk is the progress of Reroute: one page of types after the other, and through the unrouted events of each page in id
// order. It reads each event once, however many dead index entries it leaves behind.
type walk struct {
	began  time.Time // with the first page of types
	rest   time.Time // it does not begin before
	types  []string  // of this page, those that have a route
	next   string    // the next page begins after this type; "" on the last one
	listed bool      // types and next are known
	after  int64     // it continues after this event
	page   int       // number of events

	refused error // an event that was passed, because the write of its row is refused or ignored
	passed  int   // number of such events
}

func newWalk(rest time.Time) walk { return walk{rest: rest, after: math.MinInt64, page: reroutePage} }

// restFactor is how long Reroute rests after many pages of types, as a multiple of the time that they took.
const restFactor = 10

// list reads a page of types.
func (k *Maintenance) list(ctx context.Context, match func(string) bool) error {
	if k.walk.listed {
		return nil
	}
	return k.Do(ctx, "list event types without a route", func(ctx context.Context, c *session.Conn) (err error) {
		k.walk.types, k.walk.next, err = deliveries.UnroutedTypes(ctx, c, k.walk.next, match)
		k.walk.listed = err == nil
		return err
	})
}

// Reroute implements [Housekeeper]. Only one goroutine may call it.
func (k *Maintenance) Reroute(ctx context.Context, match func(string) bool) (n int, more bool, err error) {
	begin := time.Now()
	if begin.Before(k.walk.rest) {
		return 0, false, k.refused
	}
	if k.walk.began.IsZero() {
		k.walk.began = begin
	}

	for time.Since(begin) < rerouteFor {
		if err := k.list(ctx, match); err != nil {
			k.walk = newWalk(time.Time{})
			return n, false, err
		}

		some, unfinished, err := k.rerouteTypes(ctx, begin)
		n += some
		if unfinished || err != nil {
			return n, true, cmp.Or(err, k.walk.refused, k.refused)
		}

		if k.walk.next == "" {
			var rest time.Time
			if took := time.Since(k.walk.began); took > rerouteFor {
				rest = time.Now().Add(restFactor * took)
			}
			k.refused = k.walk.refused
			k.walk = newWalk(rest)
			return n, false, k.refused
		}

		k.walk.listed = false
		k.walk.after = math.MinInt64
	}
	return n, true, cmp.Or(k.walk.refused, k.refused)
}

// rerouteTypes makes the events of a page of types due, for a bounded time since begin. It reports whether some are left.
func (k *Maintenance) rerouteTypes(ctx context.Context, begin time.Time) (n int, unfinished bool, err error) {
	for len(k.walk.types) > 0 {
		if time.Since(begin) >= rerouteFor {
			return n, true, nil
		}

		var some int
		var more bool
		err := k.Do(ctx, "make due the events whose type has gained a route", func(ctx context.Context, c *session.Conn) (err error) {
			k.walk.after, some, more, err = deliveries.Reroute(ctx, c, k.walk.types, k.walk.after, k.walk.page)
			return err
		})

		n += some

		switch {
		case store.IsCanceled(err):
			k.walk.page = max(k.walk.page/4, leastPage)
			return n, true, err
		case session.IsOfRow(err) && k.walk.page > 1:
			k.walk.page = max(k.walk.page/4, 1)
			continue
		case session.IsOfRow(err):
			if failed := k.passRefused(ctx, k.walk.types); failed != nil {
				return n, true, failed
			}
			k.walk.passed++
			k.walk.refused = &withheld.Error{Event: k.walk.after, N: k.walk.passed, Err: err}
			continue
		case err != nil:
			return n, true, err
		case !more:
			return n, false, nil
		}

		k.walk.page = min(2*k.walk.page, reroutePage)
	}
	return n, false, nil
}

// passRefused makes the walk pass the next event, whose row is refused alone.
func (k *Maintenance) passRefused(ctx context.Context, types []string) error {
	return k.Do(ctx, "pass an event", func(ctx context.Context, c *session.Conn) error {
		id, err := deliveries.NextUnrouted(ctx, c, types, k.walk.after)
		if err == nil {
			k.walk.after = id
		}
		return err
	})
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
