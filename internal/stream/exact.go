package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
)

// A destination that keeps its position in its own transactions gets each event exactly once. The
// position in the database follows it, and does not decide alone: DESIGN.md has the proof.
//
// Before events are handed over, the unit writes a seal, a number, and waits until it is on disk. What the
// destination stores relies on no later state of the database. So a database without the seal has
// lost something that the destination knows, and one with it has lost nothing of that.

// exact is the part of a unit whose destination keeps its position: it finds out where that is, owns the
// progress that the destination stores, and counts the seals. Only the goroutine of the unit uses it. The
// progress has a lock, because deliveries read it.
type exact struct {
	*common

	keeper   delivery.PositionKeeper
	progress *progress
	opened   bool
	faulted  bool // it could not be opened
	reopen   bool // what became of a transaction is not known
	sealed   int64
	pause    *backoff.ExponentialBackOff
	told     bool // the log says that there are too many gaps to go on
}

// newExact returns nil for a destination that does not keep its position.
func newExact(c *common) *exact {
	k := c.lane.PositionKeeper()
	if k == nil {
		return nil
	}
	return &exact{common: c, keeper: k, pause: backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstOpen),
		backoff.WithMaxInterval(c.lane.LongestPause()), backoff.WithMultiplier(2), backoff.WithMaxElapsedTime(0))}
}

// doubt takes note of an answer that a delivery was given back with.
func (x *exact) doubt(err error) {
	if x != nil && errors.Is(err, delivery.ErrReopen) {
		x.reopen = true
	}
}

const (
	firstOpen = 100 * time.Millisecond
	// maxGaps is up to how many ranges of invisible ids a position with a copy goes on: all are in each copy, which
	// must fit into a message of the destination, and without one nothing would be delivered at all.
	maxGaps = 16_384
)

// crowded reports whether only gaps may be read, because a copy would become too large.
func (x *exact) crowded(ctx context.Context, r *Reader) bool {
	switch {
	case x == nil:
		return false
	case len(r.gaps.all) < maxGaps:
		x.told = false
		return false
	}
	if pids := r.GapStats().PIDs; !x.told && len(pids) > 0 {
		x.told = true
		x.e.log.WarnContext(ctx, "a destination that keeps its position reads no new events until a transaction that is open for long ends: it hides whether too many ids have events",
			"destination", x.name, "ranges", maxGaps, "pids", pids)
	}
	return true
}

// errReopen ends the work with what a unit has in memory: the destination knows better.
var errReopen = errors.New("what became of a transaction is not known")

// ownPosition is the row of the unit's position.
type ownPosition struct {
	cut

	sealed   int64
	void     int64 // copies with a seal up to this one do not count
	created  string
	last     int64 // the last id that was given out
	sequence string
	database string
}

const sqlOwn = `SELECT p.head, p.open::text, p.sealed, p.void, to_char(p.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
	coalesce(outbox_last_id(), 0), coalesce(pg_get_serial_sequence('outbox_events', 'id'), ''), current_database()
	FROM outbox_positions AS p WHERE p.unit = $1 AND p.epoch = $2`

func (x *exact) own(ctx context.Context, conn *pgx.Conn) (own ownPosition, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roundTrip, errSlow)
	defer cancel()
	var open string
	err = conn.QueryRow(ctx, sqlOwn, x.pos.Unit, x.pos.Epoch).Scan(&own.head, &open, &own.sealed, &own.void, &own.created, &own.last, &own.sequence, &own.database)
	if isNoRows(err) {
		return own, errFenced
	}
	if err == nil {
		own.open, err = ParseRanges(open)
	}
	if err != nil {
		return own, fmt.Errorf("read the position of %q: %w", x.name, err)
	}
	return own, nil
}

// open finds out where the destination is, before anything is read: whatever the unit or an earlier
// owner had under way is over then.
func (u *unit) open(ctx context.Context) error {
	if u.exact == nil || u.exact.opened {
		return nil
	}
	at, err := u.exact.open(ctx)
	if err != nil {
		return err
	}
	u.reader = NewReader(at.head, at.open, u.e.witnesses)
	u.ledger.head = at.head
	return nil
}

// open makes the destination answer, and returns where the unit begins. While it does not answer, open
// tries again.
func (x *exact) open(ctx context.Context) (at cut, err error) {
	for ctx.Err() == nil {
		var own ownPosition
		// Before: another owner must not be disturbed.
		err := x.e.pool.use(ctx, x.pos, func(conn *pgx.Conn) (err error) {
			own, err = x.own(ctx, conn)
			return err
		})
		if err != nil {
			return at, err
		}
		x.round.Rest() // it has its own time
		p := &progress{created: own.created, done: make(map[int64]int)}
		text, err := x.keeper.OpenPosition(ctx, fmt.Sprintf("%s-%s-%s-%d", own.database, x.e.Connector.Schema, x.name, x.pos.Part), p)
		if err != nil {
			if ctx.Err() == nil {
				x.faulted = true
				x.lane.Fault(err)
			}
			sleep(ctx, x.pause.NextBackOff())
			continue
		}
		x.pause.Reset()
		if x.faulted {
			x.faulted = false
			x.lane.Answers()
		}
		x.round.Begin()
		copied, err := decodeCopy(text)
		if err != nil {
			return at, fmt.Errorf("%w: %w", ErrIDs, err)
		}
		if at, err = x.adopt(ctx, own, copied); err != nil {
			return at, err
		}
		x.progress, x.opened, x.reopen = p, true, false
		return at, nil
	}
	return at, context.Cause(ctx)
}

// trust is what the copy of a position is worth.
type trust uint8

const (
	trustNone  trust = iota // there is none, or it is from before the position was moved
	trustLost               // the database has lost what it relies on
	trustAhead              // the database has lost more: the copy has ids that were never given out
	trustBoth               // what one of the two has passed is done
)

func (own *ownPosition) trust(c *positionCopy) trust {
	switch {
	case c == nil, c.Created != own.created, c.Sealed <= own.void:
		return trustNone
	case c.Head > own.last:
		return trustAhead
	case c.Sealed > own.sealed:
		return trustLost
	}
	return trustBoth
}

// adopt decides where the unit begins, and writes it.
func (x *exact) adopt(ctx context.Context, own ownPosition, c *positionCopy) (at cut, err error) {
	at = own.cut
	sealed, void := own.sealed, own.void
	var settled []settledRow
	switch own.trust(c) {
	case trustNone:
		if c != nil {
			x.e.log.InfoContext(ctx, "the position that the destination keeps is from before this one was made, or moved by hand; it does not count",
				"destination", x.name, "kept_head", c.Head, "head", own.head)
		} else if own.sealed > own.void {
			x.e.log.WarnContext(ctx, "the destination does not have the position that it kept: what was delivered since the last write of the one in the database is delivered again",
				"destination", x.name, "head", own.head)
		}
	case trustAhead:
		return at, fmt.Errorf("%w: it has given out ids up to %d, and destination %q has got events up to %d: the database was restored, or the table emptied. "+
			"Events with an id up to that would be taken for delivered. Let the sequence go on: SELECT setval('%s', %[4]d); what the database has not recorded as delivered is then delivered again",
			ErrIDs, own.last, x.name, c.Head, own.sequence)
	case trustLost:
		void, sealed = c.Sealed, c.Sealed
		err := fmt.Errorf("the database has lost what it knew when the destination got its last events, up to id %d: all above id %d, and what is open below, is delivered again",
			c.Head, own.head)
		x.e.log.ErrorContext(ctx, "events are delivered again", "destination", x.name, "err", err)
		x.lane.Repeats(err)
	case trustBoth:
		its, err := c.cut()
		if err != nil {
			return at, err
		}
		at, settled = at.both(its), c.Settled
	}
	err = x.e.pool.use(ctx, x.pos, func(conn *pgx.Conn) error { return x.writeAdopted(ctx, conn, adopted{at, sealed, void, settled}) })
	if err != nil {
		return at, err
	}
	x.sealed = sealed
	return at, nil
}

// adopted is where a unit begins.
type adopted struct {
	cut

	sealed  int64
	void    int64
	settled []settledRow
}

const (
	// sqlDurable makes the commit wait for the disk, in the transaction of the statement that has it
	// in its FROM.
	sqlDurable = `(SELECT set_config('synchronous_commit', 'on', true)) AS durable`
	sqlAdopt   = `UPDATE outbox_positions SET head = $3::bigint, open = $4::text::int8multirange, sealed = $5, void = $6, updated_at = clock_timestamp()
		FROM ` + sqlDurable + ` WHERE unit = $1 AND epoch = $2`
	sqlSettled = `DELETE FROM outbox_deliveries AS d USING unnest($2::bigint[], $3::bigint[]) AS s(id, replays)
		WHERE d.destination = $1 AND d.event_id = s.id AND d.replays = s.replays AND d.state IN ('retry', 'parked')`
	sqlSeal = `UPDATE outbox_positions SET sealed = $3 FROM ` + sqlDurable + ` WHERE unit = $1 AND epoch = $2`
)

func (x *exact) writeAdopted(ctx context.Context, conn *pgx.Conn, a adopted) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), roundTrip, errSlow)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sqlAdopt, x.pos.Unit, x.pos.Epoch, a.head, a.open.String(), a.sealed, a.void)
		if err != nil || tag.RowsAffected() == 0 {
			return cmp.Or(err, errFenced)
		}
		ids, replays := make([]int64, len(a.settled)), make([]int64, len(a.settled))
		for i, s := range a.settled {
			ids[i], replays[i] = s[0], s[1]
		}
		if len(ids) > 0 {
			_, err = tx.Exec(ctx, sqlSettled, x.name, ids, replays)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write where %q is: %w", x.name, err)
	}
	return nil
}

// handOver hands the parcels that wait to the lane, after a seal.
func (u *unit) handOver(ctx context.Context, conn *pgx.Conn) error {
	x := u.exact
	if x == nil || len(u.gate.staged) == 0 && !x.reopen {
		return nil
	}
	if x.reopen {
		return errReopen
	}
	if err := x.seal(ctx, conn); err != nil {
		return err
	}
	head, open := u.account(true)
	x.progress.advance(x.sealed, head, open, u.shelf.held)
	u.gate.release() //nolint:contextcheck // deliveries outlive the read
	return nil
}

// seal makes everything that the unit has seen and written so far durable, under a number. It does
// not end with ctx: see save.
func (x *exact) seal(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), roundTrip, errSlow)
	defer cancel()
	tag, err := conn.Exec(ctx, sqlSeal, x.pos.Unit, x.pos.Epoch, x.sealed+1)
	switch {
	case err != nil:
		return fmt.Errorf("seal the position of %q: %w", x.name, err)
	case tag.RowsAffected() == 0:
		return errFenced
	}
	x.sealed++
	return nil
}

// restart forgets what the unit has in memory, once nothing of it is under way, and lets it begin
// anew where the destination is.
func (u *unit) restart(ctx context.Context) error {
	if !u.drain() { //nolint:contextcheck // as in leave
		return u.lastSave(ctx, nil)
	}
	if !u.shelf.pending.empty() || u.aside.replay != nil {
		// What has failed for certain, and what a replay has delivered: of that the destination keeps nothing.
		// If it cannot be written, the events are read again.
		if err := u.e.pool.use(ctx, u.pos, func(conn *pgx.Conn) error { return u.save(ctx, conn) }); err != nil {
			u.e.report(u.part, err)
		}
	}
	counted := u.ledger
	u.begin(u.pos.Head, u.pos.Open)
	u.ledger.acknowledged, u.ledger.written, u.ledger.saves = counted.acknowledged, counted.acknowledged, counted.saves
	u.lane.Own(u.poke)
	return nil
}
