package exactly

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

// Host is what a shard lends to its position at the destination. Nothing of it changes but the position's Sequence.
type Host struct {
	Keeper   delivery.PositionKeeper
	Position *position.Position
	Name     string // of the destination
	Schema   string // of the outbox
	// LongestPause bounds the pause between two tries to open the destination.
	LongestPause time.Duration
	Log          *slog.Logger
	// Use lends a connection.
	Use func(ctx context.Context, f func(conn *session.Conn) error) error
	// Report reports why the destination cannot be opened, and with nil that it can: see dispatch.ReportDestination.
	Report func(err error, news bool) (pause time.Duration)
	// Observe reports an incident.
	Observe func(delivery.Incident)
}

// Position is a position of which the destination keeps a copy. Only the goroutine of the shard uses it; the progress that the
// destination stores has a lock, because deliveries read it. A nil Position is that of a destination without a copy.
type Position struct {
	Host

	progress *progress
	opened   bool
	faulted  bool   // it could not be opened
	refused  string // why the copy must not be used, as it was reported
	reopen   bool   // what became of a transaction is not known
	sealed   int64
	pause    *backoff.ExponentialBackOff
	told     bool // the log says that there are too many gaps to go on
}

// New returns the position of a shard that has just been taken over.
func New(h Host) *Position {
	return &Position{Host: h, pause: backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstOpen),
		backoff.WithMaxInterval(h.LongestPause), backoff.WithMultiplier(2), backoff.WithMaxElapsedTime(0))}
}

// Opened reports whether the shard may begin: it has been told where the destination is.
func (x *Position) Opened() bool { return x == nil || x.opened }

// Forget makes the shard open the destination again.
func (x *Position) Forget() {
	if x != nil {
		x.opened = false
	}
}

// Doubt takes note of the error that a delivery was returned with.
func (x *Position) Doubt(err error) {
	if x != nil && errors.Is(err, delivery.ErrReopen) {
		x.reopen = true
	}
}

// InDoubt reports whether the destination has to be opened again, because it is not known what became of a transaction.
func (x *Position) InDoubt() bool { return x != nil && x.reopen }

const (
	firstOpen = 100 * time.Millisecond
	// MaxGaps is up to how many ranges of invisible ids a position with a copy goes on: all are in each copy, which
	// must fit into a message of the destination, and without one nothing would be delivered at all.
	MaxGaps = 16_384
)

// Crowded reports whether only gaps may be read, because a copy would become too large.
func (x *Position) Crowded(ctx context.Context, r *tail.Reader) bool {
	switch {
	case x == nil:
		return false
	case r.GapStats().Ranges < MaxGaps:
		x.told = false
		return false
	}
	if pids := r.GapStats().PIDs; !x.told && len(pids) > 0 {
		x.told = true
		x.Log.WarnContext(ctx, "a destination that keeps its position reads no new events until a transaction that is open for long ends: it hides whether too many ids have events",
			"destination", x.Name, "ranges", MaxGaps, "pids", pids)
	}
	return true
}

// ownPosition is the row of the unit's position.
type ownPosition struct {
	tail.Watermark

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
func (x *Position) own(ctx context.Context, db position.Querier) (own ownPosition, err error) {
	var open string
	err = db.QueryRow(ctx, sqlOwn, x.Position.Unit, x.Position.Epoch).Scan(&own.id, &own.Head, &open, &own.sealed, &own.void, &own.delivered, &own.last, &own.sequence)
	if errors.Is(err, pgx.ErrNoRows) {
		return own, position.ErrFenced
	}
	if err == nil {
		own.Open, err = tail.ParseRanges(open)
	}
	if err != nil {
		return own, fmt.Errorf("read the position of %q: %w", x.Name, err)
	}
	return own, nil
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
func (x *Position) identify(ctx context.Context, conn *session.Conn) (o owner, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, position.RoundTrip, position.ErrSlow)
	defer cancel()
	own, err := x.own(ctx, conn)
	if err != nil {
		return o, err
	}
	o = owner{Position: own.id, Schema: x.Schema, Destination: x.Name, Part: x.Position.Part}
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

// Open makes the destination answer, and returns where the shard begins: whatever the shard or an earlier owner had
// under way is over then. While it does not answer, or has the
// position of another shard, Open tries again.
func (x *Position) Open(ctx context.Context) (at tail.Watermark, err error) {
	for ctx.Err() == nil {
		var us owner
		// Before: another owner must not be disturbed.
		err := x.Use(ctx, func(conn *session.Conn) (err error) {
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
			x.Report(nil, false)
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
func (x *Position) copied(ctx context.Context, p *progress) (*positionCopy, error) {
	text, err := x.Keeper.OpenPosition(delivery.WithShard(ctx, p.owner.Part), p.owner.unitName(), p)
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
func (x *Position) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	pause, known := x.pause.NextBackOff(), true
	if r, is := errors.AsType[*unusable](err); is {
		pause, known = x.LongestPause, x.refused == r.Error()
		x.refused = r.Error()
	}
	x.faulted = true
	select {
	case <-ctx.Done():
	case <-time.After(max(pause, x.Report(err, !known))):
	}
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
func (x *Position) adopt(ctx context.Context, us owner, c *positionCopy) (at tail.Watermark, err error) {
	var a adopted
	err = x.Use(ctx, func(conn *session.Conn) error {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), position.RoundTrip, position.ErrSlow)
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
	return a.Watermark, nil
}

// decide returns where the unit begins.
func (x *Position) decide(own *ownPosition, us owner, c *positionCopy) (a adopted, err error) {
	a = adopted{Watermark: own.Watermark, sealed: own.sealed, void: own.void, report: func(context.Context) {}}
	from := ""
	if c != nil && c.Owner != us {
		from = fmt.Sprintf(" (written for %v)", c.Owner)
	}
	trust := own.trust(c)
	if c != nil && trust != trustNone && c.Head > 0 && position.Replaced(c.Sequence, x.Position.Sequence) {
		return a, fmt.Errorf("%w: the sequence or its table was restarted since destination %q got its last events, up to id %d%s: events that have got such an id would be taken for delivered. "+
			"Stop all relays, then notifyd positions forget %[2]s, and start it with start_from: beginning, which delivers all events that are kept, or with the first id to deliver",
			position.ErrIDs, x.Name, c.Head, from)
	}
	switch trust {
	case trustNone:
		switch {
		case c != nil:
			a.report = func(ctx context.Context) {
				x.Log.InfoContext(ctx, "the position that the destination keeps does not count: that of this database was made, or moved, since",
					"destination", x.Name, "kept_head", c.Head, "head", own.Head)
			}
		case own.sealed > own.void && own.delivered > 0:
			a.report = func(ctx context.Context) {
				x.Log.WarnContext(ctx, "the destination does not have the position that it kept: what was delivered since the last write of the one in the database is delivered again",
					"destination", x.Name, "head", own.Head)
			}
		}
	case trustAhead:
		return a, fmt.Errorf("%w: it has given out ids up to %d, and destination %q has got events up to %d%s: the database was restored, or the table emptied. "+
			"Events with an id up to that would be taken for delivered. Let the sequence go on: SELECT setval('%s', %[4]d); what the database has not recorded as delivered is then delivered again",
			position.ErrIDs, own.last, x.Name, c.Head, from, own.sequence)
	case trustLost:
		a.void, a.sealed = c.Sealed, c.Sealed
		a.report = func(ctx context.Context) {
			err := fmt.Errorf("the database has lost what it knew when the destination got its last events, up to id %d%s: all above id %d, and what is open below, is delivered again",
				c.Head, from, own.Head)
			x.Log.ErrorContext(ctx, "events are delivered again", "destination", x.Name, "err", err)
			x.Observe(delivery.Incident{Kind: delivery.IncidentRepeats, Time: time.Now(), Destination: x.Name, Err: err})
		}
	case trustMoved, trustBoth:
		its, err := c.watermark()
		if err != nil {
			return a, err
		}
		if c.Sealed <= own.void {
			its.Head = min(its.Head, own.Head) // what is above was asked for again
		}
		a.Watermark, a.settled = own.Or(its), c.Settled
	}
	a.sealed += 1 + rand.Int64N(maxStride) //nolint:gosec // nobody has to guess it
	return a, nil
}

// adopted is where a unit begins.
type adopted struct {
	tail.Watermark

	sealed  int64
	void    int64
	settled []settledRow
	report  func(ctx context.Context)
}

const (
	// sqlDurable makes the commit wait for the disk, in the transaction of the statement that has it
	// in its FROM.
	sqlDurable = `(SELECT set_config('synchronous_commit', 'on', true)) AS durable`
	sqlAdopt   = `UPDATE outbox_positions SET head = $3::bigint, open = $4::text::int8multirange, sealed = $5, void = $6, updated_at = clock_timestamp(), ` + position.SQLSeen + `
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

func (x *Position) writeAdopted(ctx context.Context, tx pgx.Tx, a *adopted) error {
	tag, err := tx.Exec(ctx, sqlAdopt, x.Position.Unit, x.Position.Epoch, a.Head, a.Open.String(), a.sealed, a.void)
	if err != nil {
		return fmt.Errorf("write where %q is: %w", x.Name, err)
	}
	if tag.RowsAffected() == 0 {
		return position.ErrFenced
	}
	ids, replays := make([]int64, len(a.settled)), make([]int64, len(a.settled))
	for i, s := range a.settled {
		ids[i], replays[i] = s[0], s[1]
	}
	if len(ids) == 0 {
		return nil
	}
	for _, sql := range []string{sqlSettledToo, sqlSettled} {
		if _, err := tx.Exec(ctx, sql, x.Name, ids, replays); err != nil {
			return fmt.Errorf("remove what %q has got: %w", x.Name, err)
		}
	}
	return nil
}

// Seal makes everything that the shard has seen and written so far durable, under a number. It does
// not end with ctx: an interrupted statement may reach the server later.
func (x *Position) Seal(ctx context.Context, conn *session.Conn) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), position.RoundTrip, position.ErrSlow)
	defer cancel()
	tag, err := conn.Exec(ctx, sqlSeal, x.Position.Unit, x.Position.Epoch, x.sealed+1)
	switch {
	case err != nil:
		return fmt.Errorf("seal the position of %q: %w", x.Name, err)
	case tag.RowsAffected() == 0:
		return position.ErrFenced
	}
	x.sealed++
	return nil
}

// Advance moves the progress that the destination stores to what the shard knows after a seal. running are the stored
// deliveries that are under way, or whose result is not written yet.
func (x *Position) Advance(head int64, open tail.Ranges, running iter.Seq[int64]) {
	x.progress.advance(x.sealed, head, open, running, x.Position.Sequence)
}
