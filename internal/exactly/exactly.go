package exactly

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/backoff"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/safecall"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

// Host is a position's interface to its shard. Only the position's Sequence changes.
type Host struct {
	Store    delivery.PositionStore
	Position *position.Position
	Name     string // of the destination
	Schema   string // of the outbox
	// LongestPause bounds the pause between two tries to open the destination.
	LongestPause time.Duration
	Log          *slog.Logger
	// Use lends a connection.
	Use func(ctx context.Context, f func(conn *session.Conn) error) error
	// Report reports why the destination cannot be opened, and nil once it can: see dispatch.ReportDestination.
	Report func(err error, repeat bool) (pause time.Duration)
	// Observe reports an incident.
	Observe func(delivery.Incident)
}

// Position is a position with a copy at the destination. Only the goroutine of the shard uses it; the copy's progress
// has a lock, because deliveries read it. A nil Position belongs to a destination without a copy.
type Position struct {
	Host

	progress   *progress
	opened     bool
	failing    bool   // it could not be opened
	refused    string // why the copy must not be used, as it was reported
	reopen     bool   // the outcome of a transaction is unknown
	cause      string // why, until it is written
	checkpoint int64
	pauses     backoff.Pauses
	warned     bool // the log has the warning about too many gaps
}

// New returns the position of a shard that has just been taken over.
func New(h Host) *Position {
	return &Position{Host: h, pauses: backoff.NewPauses(firstOpen, h.LongestPause, 2)}
}

// Opened reports whether the shard may begin: the destination has returned its copy.
func (x *Position) Opened() bool { return x == nil || x.opened }

// Forget makes the shard open the destination again.
func (x *Position) Forget() {
	if x != nil {
		x.opened = false
	}
}

// NoteReturned records the error with which a delivery was returned.
func (x *Position) NoteReturned(err error) {
	if x != nil && errors.Is(err, delivery.ErrReopen) {
		x.reopen = true
		x.cause = causeOf(err)
	}
}

// causeOf returns the text of an error without the words of [delivery.ErrReopen] before it, which each layer adds.
func causeOf(err error) string {
	text := safecall.Text(err)
	for {
		rest, ok := strings.CutPrefix(text, delivery.ErrReopen.Error()+": ")
		if !ok {
			return text
		}
		text = rest
	}
}

// MustReopen reports whether the destination must be opened again, because the outcome of a transaction is unknown.
func (x *Position) MustReopen() bool { return x != nil && x.reopen }

const (
	firstOpen = 100 * time.Millisecond
	// MaxGaps is the number of ranges of invisible ids up to which a position with a copy continues. Each copy has all
	// of them, and must fit into a message of the destination; without the copy nothing could be delivered.
	MaxGaps = 16_384
)

// OnlyGaps reports whether only gaps may be read, because a copy would become too large.
func (x *Position) OnlyGaps(ctx context.Context, r *tail.Reader) bool {
	switch {
	case x == nil:
		return false
	case r.GapStats().Ranges < MaxGaps:
		x.warned = false
		return false
	}

	if pids := r.GapStats().PIDs; !x.warned && len(pids) > 0 {
		x.warned = true
		x.Log.WarnContext(ctx, "too many gaps for a position copy",
			"destination", x.Name, "ranges", MaxGaps, "pids", pids)
	}

	return true
}

// ownPosition is the row of the shard's position.
type ownPosition struct {
	idset.Watermark

	id         string // of the position: a forgotten and recreated one has another id
	checkpoint int64
	void       int64 // copies with a checkpoint up to this one do not count
	delivered  int64
	last       int64 // the last assigned id
	sequence   string
}

const sqlOwn = `SELECT p.id::text, p.head, p.open::text, p.sealed, p.void, p.delivered,
	outbox_last_id(), coalesce(pg_get_serial_sequence('outbox_events', 'id'), '')
	FROM outbox_positions AS p WHERE p.number = $1 AND p.epoch = $2 FOR UPDATE OF p`

// own reads the position. It waits for a statement that is changing the row. In a transaction it locks the row.
func (x *Position) own(ctx context.Context, db position.Querier) (own ownPosition, err error) {
	err = db.QueryRow(ctx, sqlOwn, x.Position.PositionID, x.Position.Epoch).
		Scan(&own.id, &own.Head, &own.Open, &own.checkpoint, &own.void, &own.delivered, &own.last, &own.sequence)
	if errors.Is(err, pgx.ErrNoRows) {
		return own, position.ErrFenced
	}
	if err != nil {
		return own, fmt.Errorf("read the position of %q: %w", x.Name, err)
	}

	return own, nil
}

// owner identifies the position of a copy.
type owner struct {
	// Position is the position's id.
	Position string `json:"position"`
	// System is the identifier of the PostgreSQL cluster, empty if the relay may not read it.
	System      string `json:"system,omitempty"`
	Database    string `json:"database"`
	Schema      string `json:"schema"`
	Destination string `json:"destination"`
	Shard       int    `json:"shard"`
}

// withoutPosition returns the owner without the position's id: the same for a forgotten and recreated position.
func (o owner) withoutPosition() owner {
	o.Position = ""
	return o
}

func (o owner) String() string {
	text := fmt.Sprintf("destination %q, shard %d, of schema %q of database %q", o.Destination, o.Shard, o.Schema, o.Database)
	if o.System != "" {
		text += " of the PostgreSQL cluster " + o.System
	}
	return text
}

// identify returns the owner in the position's copies.
func (x *Position) identify(ctx context.Context, conn *session.Conn) (o owner, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, position.RoundTrip, position.ErrSlow)
	defer cancel()

	own, err := x.own(ctx, conn)
	if err != nil {
		return o, err
	}

	o = owner{Position: own.id, Schema: x.Schema, Destination: x.Name, Shard: x.Position.Shard}
	if err := conn.QueryRow(ctx, `SELECT current_database()`).Scan(&o.Database); err != nil {
		return o, fmt.Errorf("read the name of the database: %w", err)
	}

	err = conn.QueryRow(ctx, `SELECT system_identifier::text FROM pg_control_system()`).Scan(&o.System)
	if _, refused := errors.AsType[*pgconn.PgError](err); err != nil && !refused { // by default all roles may call it
		return o, fmt.Errorf("read the identifier of the cluster: %w", err)
	}

	return o, nil
}

// shardName returns the unambiguous name of the shard at the destination.
func (o owner) shardName() string { return ShardName(o.Database, o.Schema, o.Destination, o.Shard) }

// ShardName returns the name by which a destination that keeps a copy of its position knows a shard.
func ShardName(database, schema, destination string, shard int) string {
	return fmt.Sprintf("%s/%s/%s/%d", url.PathEscape(database), url.PathEscape(schema), url.PathEscape(destination), shard)
}

// Open opens the destination, and returns where the shard begins. All earlier deliveries of the shard have ended then.
// While the destination does not answer, or has the position of another shard, Open tries again.
func (x *Position) Open(ctx context.Context) (at idset.Watermark, err error) {
	for ctx.Err() == nil {
		var self owner

		// First, because another owner must not be disturbed.
		err := x.Use(ctx, func(conn *session.Conn) (err error) {
			self, err = x.identify(ctx, conn)
			return err
		})
		if err != nil {
			return at, err
		}

		p := &progress{owner: self, done: make(map[int64]int)}
		copied, err := x.copied(ctx, p)
		if err != nil {
			x.fail(ctx, err)
			continue
		}

		x.pauses.Reset()
		x.refused = ""
		if x.failing {
			x.failing = false
			x.Report(nil, false)
		}

		at, err = x.adopt(ctx, self, copied)
		if err != nil {
			return at, err
		}

		x.progress = p
		x.opened = true
		x.reopen = false
		return at, nil
	}
	return at, context.Cause(ctx)
}

// unusable is the error of a copy that the shard must not use. Only another configuration helps.
type unusable struct{ error }

func (r *unusable) Unwrap() error { return r.error }

// copied returns the destination's copy of the position, or nil.
func (x *Position) copied(ctx context.Context, p *progress) (*positionCopy, error) {
	text, err := x.Store.OpenPosition(delivery.WithCall(ctx, delivery.Call{Shard: p.owner.Shard}), p.owner.shardName(), p)
	if err != nil {
		return nil, err
	}

	c, err := decodeCopy(text)
	if err != nil {
		return nil, &unusable{err}
	}

	isOther := c != nil && c.Owner.Position != p.owner.Position
	if isOther && c.Owner.withoutPosition() != p.owner.withoutPosition() {
		return nil, &unusable{fmt.Errorf("the destination's position copy belongs to %v, not to %v: "+
			"destinations must not share a copy: set another transactional_id", c.Owner, p.owner)}
	}

	return c, nil
}

// fail reports why the destination cannot be opened, and waits until the next try. A try disturbs the shard whose copy
// was found.
func (x *Position) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}

	pause := x.pauses.Next()
	known := true
	if r, is := errors.AsType[*unusable](err); is {
		pause = x.LongestPause
		known = x.refused == r.Error()
		x.refused = r.Error()
	}

	x.failing = true
	x.noteFailure(ctx, safecall.Text(err))
	select {
	case <-ctx.Done():
	case <-time.After(max(pause, x.Report(err, !known))):
	}
}

// sqlFailed writes why the destination is down where status and events show find it: no event of it has a row.
const sqlFailed = `UPDATE outbox_positions SET last_error = $3, failed_at = clock_timestamp() WHERE number = $1 AND epoch = $2`

// noteFailure writes why the destination could not be opened.
func (x *Position) noteFailure(ctx context.Context, text string) {
	err := x.Use(ctx, func(conn *session.Conn) error {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), position.RoundTrip, position.ErrSlow)
		defer cancel()
		_, err := conn.Exec(ctx, sqlFailed, x.Position.PositionID, x.Position.Epoch, text)
		return err
	})
	if err != nil && ctx.Err() == nil {
		x.Log.DebugContext(ctx, "error of a destination not recorded", "destination", x.Name, "err", err)
	}
}

// trust is how far the copy of a position counts.
type trust uint8

const (
	trustNone  trust = iota // no copy, or it belongs to a forgotten position, or is older than the last move
	trustMoved              // the position was moved since: ids that it has passed are done, but not ids that were requested again
	trustLost               // the database has lost the checkpoint of the copy
	trustAhead              // the database has lost more: the copy has ids that were never assigned
	trustBoth               // ids that either position has passed are done
)

func (own *ownPosition) trust(c *positionCopy) trust {
	switch {
	case c == nil, c.Owner.Position != own.id:
		return trustNone
	case c.Checkpoint <= own.void && (own.checkpoint > own.void || c.Head > own.last): // an owner has adopted it
		return trustNone
	case c.Checkpoint <= own.void:
		return trustMoved
	case c.Head > own.last:
		return trustAhead
	case c.Checkpoint > own.checkpoint:
		return trustLost
	}
	return trustBoth
}

// maxStride bounds the distance between the last checkpoint of an owner and the first one of the next.
const maxStride = 1 << 32

// adopt decides where the shard begins, and writes the result. It locks the position from the read to the write: an
// abandoned statement of this shard may still arrive.
func (x *Position) adopt(ctx context.Context, self owner, c *positionCopy) (at idset.Watermark, err error) {
	var a adopted
	err = x.Use(ctx, func(conn *session.Conn) error {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), position.RoundTrip, position.ErrSlow)
		defer cancel()

		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
			own, err := x.own(ctx, tx)
			if err == nil {
				a, err = x.decide(&own, self, c)
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

	x.checkpoint = a.checkpoint
	x.cause = ""
	a.report(ctx)

	return a.Watermark, nil
}

// decide returns where the shard begins.
func (x *Position) decide(own *ownPosition, self owner, c *positionCopy) (a adopted, err error) {
	a = adopted{Watermark: own.Watermark, checkpoint: own.checkpoint, void: own.void, report: func(context.Context) {}}

	from := ""
	if c != nil && c.Owner != self {
		from = fmt.Sprintf(" (written for %v)", c.Owner)
	}

	trust := own.trust(c)
	usesCopy := c != nil && trust != trustNone
	if usesCopy && c.Head > 0 && position.Replaced(c.Sequence, x.Position.Sequence) {
		return a, fmt.Errorf("%w: the sequence or its table was restarted since destination %q got its last events, up to id %d%s: "+
			"events with such ids would count as delivered. "+
			"Stop all relays, then notifyd positions forget %[2]s, and start it with start_from: beginning, "+
			"which delivers all events that are kept, or with the first id to deliver",
			position.ErrIDs, x.Name, c.Head, from)
	}

	switch trust {
	case trustNone:
		switch {
		case c != nil:
			a.report = func(ctx context.Context) {
				x.Log.InfoContext(ctx, "position copy of the destination ignored",
					"destination", x.Name, "kept_head", c.Head, "head", own.Head)
			}
		case own.checkpoint > own.void && own.delivered > 0:
			a.report = func(ctx context.Context) {
				x.Log.WarnContext(ctx, "position copy of the destination missing",
					"destination", x.Name, "head", own.Head)
			}
		}

	case trustAhead:
		return a, fmt.Errorf("%w: it has given out ids up to %d, and destination %q has got events up to %d%s: "+
			"the database was restored, or the table emptied. Events up to that id would count as delivered. "+
			"Advance the sequence: SELECT setval('%s', %[4]d); "+
			"events that the database has not recorded as delivered are then delivered again",
			position.ErrIDs, own.last, x.Name, c.Head, from, own.sequence)

	case trustLost:
		a.void = c.Checkpoint
		a.checkpoint = c.Checkpoint
		a.report = func(ctx context.Context) {
			err := fmt.Errorf("the database has lost progress that the destination has, up to id %d%s: "+
				"events above id %d, and open ones below, are delivered again",
				c.Head, from, own.Head)
			x.Log.ErrorContext(ctx, "events are delivered again", "destination", x.Name, "err", err)
			x.Observe(delivery.Incident{Kind: delivery.IncidentRepeats, Time: time.Now(), Destination: x.Name, Err: err})
		}

	case trustMoved, trustBoth:
		its := c.Watermark
		if c.Checkpoint <= own.void {
			its = its.Back(own.Head) // ids above were requested again
		}

		a.Watermark = own.Or(its)
		a.settled = c.Settled
	}

	a.checkpoint += 1 + rand.Int64N(maxStride) //nolint:gosec // not a secret
	return a, nil
}

// adopted is where a shard begins.
type adopted struct {
	idset.Watermark

	checkpoint int64
	void       int64
	settled    []settledRow
	report     func(ctx context.Context)
}

const (
	// sqlDurable makes the commit wait for the disk, in the transaction of a statement with sqlDurable in its FROM.
	sqlDurable = `(SELECT set_config('synchronous_commit', 'on', true)) AS durable`
	sqlAdopt   = `UPDATE outbox_positions SET head = $3::bigint, open = $4::text::int8multirange, sealed = $5, void = $6,
		updated_at = clock_timestamp(),
		last_error = nullif($7::text, ''), failed_at = CASE WHEN $7::text <> '' THEN clock_timestamp() END, ` + position.SQLSeen + `
		FROM ` + sqlDurable + ` WHERE number = $1 AND epoch = $2`
	// ofSettled spares the rows of a replay with the original ids: the copy may be older than the replay.
	ofSettled = ` unnest($2::bigint[], $3::bigint[]) AS s(id, replays)
		WHERE d.destination = $1 AND d.event_id = s.id AND d.replays = s.replays AND d.state IN ('retry', 'parked')
		AND (d.replays > 0 OR d.ordering_key IS NULL OR d.ordering_key !~ '^#[^/]*$')`
	sqlSettled = `DELETE FROM outbox_deliveries AS d USING` + ofSettled
	// sqlNotSettled counts the rows that sqlSettled has left, because a trigger or a rule has ignored it.
	sqlNotSettled = `SELECT count(*) FROM outbox_deliveries AS d,` + ofSettled
	// sqlSettledToo audits the rows that sqlSettled deletes, as deliveries.SQLAcknowledged does.
	sqlSettledToo = `INSERT INTO outbox_audit (actor, action, event_id, destination, details)
		SELECT 'relay', 'delivered', d.event_id, d.destination, jsonb_build_object('event_type', d.event_type, 'replay', d.replays)
		FROM outbox_deliveries AS d JOIN unnest($2::bigint[], $3::bigint[]) AS s(id, replays) ON d.event_id = s.id AND d.replays = s.replays
		WHERE d.destination = $1 AND d.state IN ('retry', 'parked') AND d.replays > 0`
	sqlCheckpoint = `UPDATE outbox_positions SET sealed = $3 FROM ` + sqlDurable + ` WHERE number = $1 AND epoch = $2`
)

func (x *Position) writeAdopted(ctx context.Context, tx pgx.Tx, a *adopted) error {
	tag, err := tx.Exec(ctx, sqlAdopt, x.Position.PositionID, x.Position.Epoch, a.Head, a.Open.String(), a.checkpoint, a.void, x.cause)
	if err != nil {
		return fmt.Errorf("write the position of %q: %w", x.Name, err)
	}
	if err := session.CheckChanged("adopt a position", tag.RowsAffected(), 1); err != nil { // the transaction has locked the row
		return fmt.Errorf("write the position of %q: %w", x.Name, err)
	}

	ids := make([]int64, len(a.settled))
	replays := make([]int64, len(a.settled))
	for i, s := range a.settled {
		ids[i] = s[0]
		replays[i] = s[1]
	}
	if len(ids) == 0 {
		return nil
	}

	for _, sql := range []string{sqlSettledToo, sqlSettled} {
		if _, err := tx.Exec(ctx, sql, x.Name, ids, replays); err != nil {
			return fmt.Errorf("remove the delivered rows of %q: %w", x.Name, err)
		}
	}

	var left int64
	err = tx.QueryRow(ctx, sqlNotSettled, x.Name, ids, replays).Scan(&left)
	if err == nil {
		err = session.CheckChanged("remove", 0, left)
	}
	if err != nil {
		return fmt.Errorf("remove the delivered rows of %q: %w", x.Name, err)
	}

	return nil
}

// Checkpoint makes all ids that the shard has seen and written so far durable, under a number. It does not end with
// ctx: an interrupted statement may reach the server later.
func (x *Position) Checkpoint(ctx context.Context, conn *session.Conn) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), position.RoundTrip, position.ErrSlow)
	defer cancel()

	tag, err := conn.Exec(ctx, sqlCheckpoint, x.Position.PositionID, x.Position.Epoch, x.checkpoint+1)
	switch {
	case err != nil:
		return fmt.Errorf("write a checkpoint of the position of %q: %w", x.Name, err)
	case tag.RowsAffected() == 0:
		return cmp.Or(x.Position.CheckIgnored(ctx, conn, "write a checkpoint"), position.ErrFenced)
	}

	x.checkpoint++
	return nil
}

// Advance moves the progress that the destination stores to the shard's state after a checkpoint. running are the
// stored deliveries in flight, or with an unwritten result.
func (x *Position) Advance(at idset.Watermark, running iter.Seq[int64]) {
	x.progress.advance(x.checkpoint, at, running, x.Position.Sequence)
}
