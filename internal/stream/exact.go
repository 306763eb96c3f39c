package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

// A destination that keeps its position in its own transactions gets each event exactly once. The
// position in the database follows it, and does not decide alone: DESIGN.md has the proof.
//
// Before events are handed over, the unit writes a seal, a number, and waits until it is on disk. What the
// destination stores relies on no later state of the database. So a database without the seal has
// lost something that the destination knows, and one with it has lost nothing of that. Each owner begins
// with a random seal: of two copies of a database, none has the seals of the other.

// exact is the part of a unit whose destination keeps its position: it finds out where that is, owns the
// progress that the destination stores, and counts the seals. Only the goroutine of the unit uses it. The
// progress has a lock, because deliveries read it.
type exact struct {
	*common

	keeper   delivery.PositionKeeper
	progress *progress
	opened   bool
	faulted  bool   // it could not be opened
	refused  string // why the copy must not be used, as it was reported
	reopen   bool   // what became of a transaction is not known
	sealed   int64
	pause    *backoff.ExponentialBackOff
	told     bool // the log says that there are too many gaps to go on
}

// newExact returns nil for a destination that does not keep its position.
func newExact(c *common) *exact {
	k := c.lane.Destination().Position
	if k == nil {
		return nil
	}
	return &exact{common: c, keeper: k, pause: backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstOpen),
		backoff.WithMaxInterval(c.lane.Destination().LongestPause), backoff.WithMultiplier(2), backoff.WithMaxElapsedTime(0))}
}

// doubt takes note of an answer that a delivery was given back with.
func (x *exact) doubt(err error) {
	if x != nil && errors.Is(err, delivery.ErrReopen) {
		x.reopen = true
	}
}

const (
	firstOpen = 100 * time.Millisecond
	// MaxGaps is up to how many ranges of invisible ids a position with a copy goes on: all are in each copy, which
	// must fit into a message of the destination, and without one nothing would be delivered at all.
	MaxGaps = 16_384
)

// crowded reports whether only gaps may be read, because a copy would become too large.
func (x *exact) crowded(ctx context.Context, r *tail.Reader) bool {
	switch {
	case x == nil:
		return false
	case r.GapStats().Ranges < MaxGaps:
		x.told = false
		return false
	}
	if pids := r.GapStats().PIDs; !x.told && len(pids) > 0 {
		x.told = true
		x.e.log.WarnContext(ctx, "a destination that keeps its position reads no new events until a transaction that is open for long ends: it hides whether too many ids have events",
			"destination", x.name, "ranges", MaxGaps, "pids", pids)
	}
	return true
}

// errReopen ends the work with what a unit has in memory: the destination knows better.
var errReopen = errors.New("what became of a transaction is not known")

// ownPosition is the row of the unit's position.
type ownPosition struct {
	cut

	id        string // of the position: one that was forgotten and made anew has another
	sealed    int64
	void      int64 // copies with a seal up to this one do not count
	delivered int64
	last      int64 // the last id that was given out
	sequence  string
}

const sqlOwn = `SELECT p.id::text, p.head, p.open::text, p.sealed, p.void, p.delivered,
	outbox_last_id(), coalesce(pg_get_serial_sequence('outbox_events', 'id'), '')
	FROM outbox_positions AS p WHERE p.unit = $1 AND p.epoch = $2 FOR UPDATE OF p`

// own reads the position. It waits for a statement that is changing it, and in a transaction keeps others from that.
func (x *exact) own(ctx context.Context, db rowQuerier) (own ownPosition, err error) {
	var open string
	err = db.QueryRow(ctx, sqlOwn, x.pos.Unit, x.pos.Epoch).Scan(&own.id, &own.head, &open, &own.sealed, &own.void, &own.delivered, &own.last, &own.sequence)
	if isNoRows(err) {
		return own, errFenced
	}
	if err == nil {
		own.open, err = tail.ParseRanges(open)
	}
	if err != nil {
		return own, fmt.Errorf("read the position of %q: %w", x.name, err)
	}
	return own, nil
}

// rowQuerier is a connection or a transaction.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// owner is what a copy of a position says of the position that it was made of.
type owner struct {
	// Position is the position's id.
	Position string `json:"position"`
	// System is the identifier of the PostgreSQL cluster, empty where the relay may not see it.
	System      string `json:"system,omitempty"`
	Database    string `json:"database"`
	Schema      string `json:"schema"`
	Destination string `json:"destination"`
	Part        int    `json:"part"`
}

// place is where the position is, or was: the same for one that was forgotten and made anew.
func (o owner) place() owner {
	o.Position = ""
	return o
}

func (o owner) String() string {
	text := fmt.Sprintf("destination %q, part %d, of schema %q of database %q", o.Destination, o.Part, o.Schema, o.Database)
	if o.System != "" {
		text += " of the PostgreSQL cluster " + o.System
	}
	return text
}

// identify returns what the copies of the position say of it.
func (x *exact) identify(ctx context.Context, conn *session.Conn) (o owner, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roundTrip, errSlow)
	defer cancel()
	own, err := x.own(ctx, conn)
	if err != nil {
		return o, err
	}
	o = owner{Position: own.id, Schema: x.e.Connector.Schema, Destination: x.name, Part: x.pos.Part}
	if err := conn.QueryRow(ctx, `SELECT current_database()`).Scan(&o.Database); err != nil {
		return o, fmt.Errorf("read the name of the database: %w", err)
	}
	err = conn.QueryRow(ctx, `SELECT system_identifier::text FROM pg_control_system()`).Scan(&o.System)
	if _, refused := errors.AsType[*pgconn.PgError](err); err != nil && !refused { // all may call it, unless somebody has changed that
		return o, fmt.Errorf("read the identifier of the cluster: %w", err)
	}
	return o, nil
}

// unitName returns the name of the unit, in which no part can be taken for another.
func (o owner) unitName() string { return UnitName(o.Database, o.Schema, o.Destination, o.Part) }

// UnitName returns the name by which a destination that keeps its position knows a unit.
func UnitName(database, schema, destination string, part int) string {
	return fmt.Sprintf("%s/%s/%s/%d", url.PathEscape(database), url.PathEscape(schema), url.PathEscape(destination), part)
}

// open finds out where the destination is, before anything is read: whatever the unit or an earlier
// owner had under way is over then.
func (u *unit) open(ctx context.Context) error {
	if u.exact == nil || u.exact.opened {
		return nil
	}
	// Before the position moves to where the destination is.
	err := u.e.pool.use(ctx, &u.pos.Lease, func(conn *session.Conn) error { return u.checkIDs(ctx, conn) })
	if err != nil {
		return err
	}
	at, err := u.exact.open(ctx)
	if err != nil {
		return err
	}
	u.reader = tail.NewReader(at.head, at.open, u.e.witnesses)
	u.ledger.head = at.head
	return nil
}

// open makes the destination answer, and returns where the unit begins. While it does not answer, or has the
// position of another unit, open tries again.
func (x *exact) open(ctx context.Context) (at cut, err error) {
	for ctx.Err() == nil {
		var us owner
		// Before: another owner must not be disturbed.
		err := x.e.pool.use(ctx, &x.pos.Lease, func(conn *session.Conn) (err error) {
			us, err = x.identify(ctx, conn)
			return err
		})
		if err != nil {
			return at, err
		}
		p := &progress{owner: us, done: make(map[int64]int)}
		copied, err := x.copied(ctx, p)
		if err != nil {
			x.fail(ctx, err)
			continue
		}
		x.pause.Reset()
		x.refused = ""
		if x.faulted {
			x.faulted = false
			x.e.d.ReportDestination(x.name, nil, false)
		}
		if at, err = x.adopt(ctx, us, copied); err != nil {
			return at, err
		}
		x.progress, x.opened, x.reopen = p, true, false
		return at, nil
	}
	return at, context.Cause(ctx)
}

// unusable is the error of a copy that the unit must not use. Only the configuration can change that.
type unusable struct{ error }

func (r *unusable) Unwrap() error { return r.error }

// copied returns the copy of the position that the destination has, nil if there is none.
func (x *exact) copied(ctx context.Context, p *progress) (*positionCopy, error) {
	text, err := x.keeper.OpenPosition(ctx, p.owner.unitName(), p)
	if err != nil {
		return nil, err
	}
	c, err := decodeCopy(text)
	if err == nil && c != nil && c.Owner.Position != p.owner.Position && c.Owner.place() != p.owner.place() {
		err = fmt.Errorf("the position that the destination keeps is that of %v, and not of %v: two destinations must not share it: set transactional_id to an id of its own", c.Owner, p.owner)
	}
	if err != nil {
		return nil, &unusable{err}
	}
	return c, nil
}

// fail reports why the destination cannot be opened, and waits until the next try, which disturbs the unit whose
// position was found there.
func (x *exact) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	pause, known := x.pause.NextBackOff(), true
	if r, is := errors.AsType[*unusable](err); is {
		pause, known = x.lane.Destination().LongestPause, x.refused == r.Error()
		x.refused = r.Error()
	}
	x.faulted = true
	sleep(ctx, max(pause, x.e.d.ReportDestination(x.name, err, !known)))
}

// trust is what the copy of a position is worth.
type trust uint8

const (
	trustNone  trust = iota // there is none, or it is of a position that was forgotten, or from before the last move
	trustMoved              // the position was moved since: what it has passed is done, but not what was asked for again
	trustLost               // the database has lost what it relies on
	trustAhead              // the database has lost more: the copy has ids that were never given out
	trustBoth               // what one of the two has passed is done
)

func (own *ownPosition) trust(c *positionCopy) trust {
	switch {
	case c == nil, c.Owner.Position != own.id:
		return trustNone
	case c.Sealed <= own.void && (own.sealed > own.void || c.Head > own.last): // an owner has taken it into account
		return trustNone
	case c.Sealed <= own.void:
		return trustMoved
	case c.Head > own.last:
		return trustAhead
	case c.Sealed > own.sealed:
		return trustLost
	}
	return trustBoth
}

// maxStride bounds the distance between the last seal of an owner and the first one of the next.
const maxStride = 1 << 32

// adopt decides where the unit begins, and writes it. The position stays locked from the read to the write: a
// statement of this unit that was given up may be on its way.
func (x *exact) adopt(ctx context.Context, us owner, c *positionCopy) (at cut, err error) {
	var a adopted
	err = x.e.pool.use(ctx, &x.pos.Lease, func(conn *session.Conn) error {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), roundTrip, errSlow)
		defer cancel()
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
			own, err := x.own(ctx, tx)
			if err == nil {
				a, err = x.decide(&own, us, c)
			}
			if err != nil {
				return err
			}
			return x.writeAdopted(ctx, tx, &a)
		})
	})
	if err != nil {
		return at, err
	}
	x.sealed = a.sealed
	a.report(ctx)
	return a.cut, nil
}

// decide returns where the unit begins.
func (x *exact) decide(own *ownPosition, us owner, c *positionCopy) (a adopted, err error) {
	a = adopted{cut: own.cut, sealed: own.sealed, void: own.void, report: func(context.Context) {}}
	from := ""
	if c != nil && c.Owner != us {
		from = fmt.Sprintf(" (written for %v)", c.Owner)
	}
	trust := own.trust(c)
	if c != nil && trust != trustNone && c.Head > 0 && replaced(c.Sequence, x.pos.sequence) {
		return a, fmt.Errorf("%w: the sequence or its table was restarted since destination %q got its last events, up to id %d%s: events that have got such an id would be taken for delivered. "+
			"Stop all relays, then notifyd positions forget %[2]s, and start it with start_from: beginning, which delivers all events that are kept, or with the first id to deliver",
			ErrIDs, x.name, c.Head, from)
	}
	switch trust {
	case trustNone:
		switch {
		case c != nil:
			a.report = func(ctx context.Context) {
				x.e.log.InfoContext(ctx, "the position that the destination keeps does not count: that of this database was made, or moved, since",
					"destination", x.name, "kept_head", c.Head, "head", own.head)
			}
		case own.sealed > own.void && own.delivered > 0:
			a.report = func(ctx context.Context) {
				x.e.log.WarnContext(ctx, "the destination does not have the position that it kept: what was delivered since the last write of the one in the database is delivered again",
					"destination", x.name, "head", own.head)
			}
		}
	case trustAhead:
		return a, fmt.Errorf("%w: it has given out ids up to %d, and destination %q has got events up to %d%s: the database was restored, or the table emptied. "+
			"Events with an id up to that would be taken for delivered. Let the sequence go on: SELECT setval('%s', %[4]d); what the database has not recorded as delivered is then delivered again",
			ErrIDs, own.last, x.name, c.Head, from, own.sequence)
	case trustLost:
		a.void, a.sealed = c.Sealed, c.Sealed
		a.report = func(ctx context.Context) {
			err := fmt.Errorf("the database has lost what it knew when the destination got its last events, up to id %d%s: all above id %d, and what is open below, is delivered again",
				c.Head, from, own.head)
			x.e.log.ErrorContext(ctx, "events are delivered again", "destination", x.name, "err", err)
			x.e.d.Observe(delivery.Incident{Kind: delivery.IncidentRepeats, Time: time.Now(), Destination: x.name, Err: err})
		}
	case trustMoved, trustBoth:
		its, err := c.cut()
		if err != nil {
			return a, err
		}
		if c.Sealed <= own.void {
			its.head = min(its.head, own.head) // what is above was asked for again
		}
		a.cut, a.settled = own.both(its), c.Settled
	}
	a.sealed += 1 + rand.Int64N(maxStride) //nolint:gosec // nobody has to guess it
	return a, nil
}

// adopted is where a unit begins.
type adopted struct {
	cut

	sealed  int64
	void    int64
	settled []settledRow
	report  func(ctx context.Context)
}

const (
	// sqlDurable makes the commit wait for the disk, in the transaction of the statement that has it
	// in its FROM.
	sqlDurable = `(SELECT set_config('synchronous_commit', 'on', true)) AS durable`
	sqlAdopt   = `UPDATE outbox_positions SET head = $3::bigint, open = $4::text::int8multirange, sealed = $5, void = $6, updated_at = clock_timestamp(), ` + sqlSeen + `
		FROM ` + sqlDurable + ` WHERE unit = $1 AND epoch = $2`
	// sqlSettled keeps the rows of a replay under the ids of the first time: the copy may be older than the replay.
	sqlSettled = `DELETE FROM outbox_deliveries AS d USING unnest($2::bigint[], $3::bigint[]) AS s(id, replays)
		WHERE d.destination = $1 AND d.event_id = s.id AND d.replays = s.replays AND d.state IN ('retry', 'parked')
		AND (d.replays > 0 OR d.ordering_key IS NULL OR d.ordering_key !~ '^#[^/]*$')`
	// sqlSettledToo records what deliveries.SQLAcknowledged does, of the rows that sqlSettled deletes.
	sqlSettledToo = `INSERT INTO outbox_audit (actor, action, event_id, destination, details)
		SELECT 'relay', 'delivered', d.event_id, d.destination, jsonb_build_object('event_type', d.event_type, 'replay', d.replays)
		FROM outbox_deliveries AS d JOIN unnest($2::bigint[], $3::bigint[]) AS s(id, replays) ON d.event_id = s.id AND d.replays = s.replays
		WHERE d.destination = $1 AND d.state IN ('retry', 'parked') AND d.replays > 0`
	sqlSeal = `UPDATE outbox_positions SET sealed = $3 FROM ` + sqlDurable + ` WHERE unit = $1 AND epoch = $2`
)

func (x *exact) writeAdopted(ctx context.Context, tx pgx.Tx, a *adopted) error {
	tag, err := tx.Exec(ctx, sqlAdopt, x.pos.Unit, x.pos.Epoch, a.head, a.open.String(), a.sealed, a.void)
	if err != nil {
		return fmt.Errorf("write where %q is: %w", x.name, err)
	}
	if tag.RowsAffected() == 0 {
		return errFenced
	}
	ids, replays := make([]int64, len(a.settled)), make([]int64, len(a.settled))
	for i, s := range a.settled {
		ids[i], replays[i] = s[0], s[1]
	}
	if len(ids) == 0 {
		return nil
	}
	for _, sql := range []string{sqlSettledToo, sqlSettled} {
		if _, err := tx.Exec(ctx, sql, x.name, ids, replays); err != nil {
			return fmt.Errorf("remove what %q has got: %w", x.name, err)
		}
	}
	return nil
}

// handOver hands the parcels that wait to the lane, after a seal.
func (u *unit) handOver(ctx context.Context, conn *session.Conn) error {
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
	x.progress.advance(x.sealed, head, open, maps.Keys(u.shelf.running), u.pos.sequence)
	u.gate.release()
	return nil
}

// seal makes everything that the unit has seen and written so far durable, under a number. It does
// not end with ctx: see save.
func (x *exact) seal(ctx context.Context, conn *session.Conn) error {
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
	if !u.drain() {
		return u.lastSave(ctx, nil)
	}
	if !u.shelf.pending.empty() || u.aside.replay != nil {
		// What has failed for certain, and what a replay has delivered: of that the destination keeps nothing.
		// If it cannot be written, the events are read again.
		if err := u.e.pool.use(ctx, &u.pos.Lease, func(conn *session.Conn) error { return u.save(ctx, conn) }); err != nil {
			u.e.report(u.part, err)
		}
	}
	counted := u.ledger
	u.begin(u.pos.Head, u.pos.Open)
	u.ledger.acknowledged, u.ledger.written, u.ledger.saves = counted.acknowledged, counted.acknowledged, counted.saves
	u.lane.Own(u.poke)
	return nil
}
