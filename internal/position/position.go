package position

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/observe"
)

// Position is the row of one shard, as it was when this relay loaded it.
type Position struct {
	lease.Lease

	// The ids of the watermark are acknowledged.
	idset.Watermark

	// Delivered is how many deliveries the destination has acknowledged so far.
	Delivered int64
	// Shards is the number of shards of the destination. Former has the positions of its shards before that number
	// changed.
	Shards int
	Former Former

	// Exact reports that the destination keeps a copy. Then each write has all ids, because the two are compared.
	Exact bool
	// Sequence identifies the sequence that assigned the ids when the position began.
	Sequence string

	seen    anchor
	row     string    // ctid of the row at this relay's last write; empty: not known
	behind  bool      // the last write has left out the ids
	wholeAt time.Time // when many ranges are written again
}

const (
	setSave = `UPDATE outbox_positions SET head = $3::bigint, open = $4::text::int8multirange,
	delivered = delivered + $5::bigint, updated_at = clock_timestamp(),
	last_error = CASE WHEN $5::bigint = 0 THEN last_error END, failed_at =
		CASE WHEN $5::bigint = 0 THEN failed_at END, ` + SQLSeen + ` WHERE number = $1::int AND epoch = $2::bigint`

	// sqlSave writes the position of a shard. It changes one row, or none if another relay owns the shard, or a person
	// moved the position. It finds the row by ctid: under an old snapshot all versions since stay, and a search by the
	// key would read them.
	sqlSave = setSave + ` AND ctid = $6::text::tid RETURNING ctid::text`
	// sqlSaveByKey writes the position after another writer has changed the row.
	sqlSaveByKey = setSave + ` RETURNING ctid::text`

	setKeep = `UPDATE outbox_positions SET delivered = delivered + $3::bigint, updated_at = clock_timestamp()
		WHERE number = $1::int AND epoch = $2::bigint`
	// sqlKeep locks the position as sqlSave does, and leaves its ids as they are. sqlKeepByKey is to it as sqlSaveByKey
	// is to sqlSave.
	sqlKeep      = setKeep + ` AND ctid = $4::text::tid RETURNING ctid::text`
	sqlKeepByKey = setKeep + ` RETURNING ctid::text`
)

// pruneEvery is the average number of saves per save that finds the row by its key.
const pruneEvery = 16

// Save writes the watermark, and the number of events acknowledged since the last write.
// With many ranges, most writes leave the ids unchanged. Then [Position.Behind] is true, and a crash repeats more. Save
// returns false if the shard no longer belongs to this owner, and the caller starts nothing more.
func (p *Position) Save(ctx context.Context, db Querier, at idset.Watermark, delivered int64) (ok bool, err error) {
	began := time.Now()
	if len(at.Open) > observe.ManyRanges && !p.Exact && began.Before(p.wholeAt) {
		p.behind = true
		return p.update(ctx, db, sqlKeep, sqlKeepByKey, p.PositionID, p.Epoch, delivered)
	}

	ok, err = p.update(ctx, db, sqlSave, sqlSaveByKey, p.PositionID, p.Epoch, at.Head, at.Open.String(), delivered)
	if ok {
		p.behind = false
		p.wholeAt = time.Now().Add(wholeAfter(time.Since(began)))
	}

	return ok, err
}

// update changes the row of the position by its place, or else by its key.
func (p *Position) update(ctx context.Context, db Querier, byPlace, byKey string, args ...any) (ok bool, err error) {
	err = pgx.ErrNoRows

	// An UPDATE by ctid removes no earlier versions from the page; one by the key does.
	if p.row != "" && rand.IntN(pruneEvery) > 0 { //nolint:gosec // spreads work, hides nothing
		err = db.QueryRow(ctx, byPlace, append(slices.Clone(args), p.row)...).Scan(&p.row)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = db.QueryRow(ctx, byKey, args...).Scan(&p.row)
	}

	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, p.CheckIgnored(ctx, db, "save")
	case err != nil:
		return false, fmt.Errorf("save a position: %w", err)
	}

	return true, nil
}

// CheckIgnored returns an error if the shard still belongs to this owner, after a statement that has not changed its row:
// then a trigger or a rule has ignored the write.
func (p *Position) CheckIgnored(ctx context.Context, db Querier, statement string) error {
	var mine int64
	err := db.QueryRow(ctx, `SELECT count(*) FROM outbox_positions WHERE number = $1::int AND epoch = $2::bigint`,
		p.PositionID, p.Epoch).Scan(&mine)
	if err == nil {
		err = session.CheckChanged(statement, 0, mine)
	}
	if err != nil {
		return fmt.Errorf("save a position: %w", err)
	}

	return nil
}

// Behind reports whether the last write has left out the ids: another one must follow.
func (p *Position) Behind() bool { return p.behind }

// WriteWhole makes the next write have all ids.
func (p *Position) WriteWhole() { p.wholeAt = time.Time{} }

// sqlPosition reads the position of a shard.
const sqlPosition = `SELECT head, open::text, delivered, shards, former::text, seen::text::bigint, seen_at
	FROM outbox_positions WHERE number = $1 AND epoch = $2`

// Load reads the position of a shard. It returns [ErrFenced] if the shard no longer belongs to this relay.
func Load(ctx context.Context, conn *session.Conn, l lease.Lease) (p Position, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTrip, ErrSlow)
	defer cancel()

	p.Lease = l
	var former string
	err = conn.QueryRow(ctx, sqlPosition, l.PositionID, l.Epoch).
		Scan(&p.Head, &p.Open, &p.Delivered, &p.Shards, &former, &p.seen.transaction, &p.seen.at)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return p, ErrFenced
	case err == nil:
		p.Former, err = ParseFormer(former)
	}

	if err != nil {
		return p, fmt.Errorf("load a position: %w", err)
	}

	p.seen.Watermark = p.Watermark
	return p, nil
}

// Querier is a connection or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

var (
	// ErrFenced means that another relay has the shard. For the search for events without a route it also means that
	// routes have changed, even by this relay.
	ErrFenced = errors.New("the shard was taken over, or routes have changed, since it was read")

	// ErrSlow is the cause of an interrupted use of a connection.
	ErrSlow = fmt.Errorf("the database did not answer within %v", RoundTrip)
)

// ErrIDs means that the sequence assigns ids again that a position has passed: it was set back, or restarted with its
// table. Events with such ids would be missed, so nothing is delivered until a person has moved the position.
var ErrIDs = errors.New("the sequence of outbox_events.id gives out ids again")

// errAltered means that the last id cannot be read at this moment.
var errAltered = errors.New("read the sequence: it is being altered")

// anchor is what a position had passed at a moment, with the number of the next transaction.
type anchor struct {
	idset.Watermark

	transaction *int64
	at          *time.Time
}

const (
	// SQLSeen makes a write of a position its anchor. All ids that the position has passed were visible before. A marked
	// position keeps its time: events with reused ids may have been written since.
	SQLSeen = `seen = pg_snapshot_xmax(pg_current_snapshot()), seen_at = CASE WHEN reused IS NULL THEN clock_timestamp() ELSE seen_at END`

	// sqlIDs reads the last id; it is NULL at the moment in which ALTER SEQUENCE replaces the file of the sequence. Of
	// the last hundred ids of an anchor it returns the ids of events that were written since: the sequence has assigned
	// these again. An UPDATE or a rewrite of the table gives an event another transaction, but the event is older.
	// Transaction numbers of rows have 32 bits. An event with a time in the future is from before the clock was set back.
	sqlIDs = `SELECT outbox_last_id(), pg_get_serial_sequence('outbox_events', 'id'), coalesce(p.sequence, ''),
		` + pgschema.Sequence + `, p.reused, s.next, clock_timestamp(),
		ARRAY(SELECT e.id FROM outbox_events AS e
			WHERE e.id > $3::bigint - 100 AND e.id <= $3 AND e.created_at > $5 AND e.created_at <= clock_timestamp()
				AND s.next - $4::bigint BETWEEN 1 AND 2147483647
				AND ((s.next - e.xmin::text::bigint) & 4294967295) <= s.next - $4 ORDER BY e.id)
	FROM outbox_positions AS p, (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next) AS s
	WHERE p.number = $1 AND p.epoch = $2`

	// sqlNewer returns the first passed id with an event that was written after an anchor; 0 without one. If the event
	// before it is newer as well, the result is the first id of the table. It reads ids where a sequence can assign ids
	// again: where retention has deleted events, and at the last ones. An UPDATE or a rewrite of the table does not change
	// created_at, and a time in the future is from before the clock was set back.
	//
	// The second column reports whether the table has kept events from before the anchor, and none of the ids that the position
	// had passed at the anchor has a newer one. Then newer events came since, in the usual way.
	sqlNewer = `WITH ends AS MATERIALIZED (
			(SELECT id, created_at FROM outbox_events WHERE id <= $1 ORDER BY id LIMIT 10000)
			UNION ALL (SELECT id, created_at FROM outbox_events WHERE id <= $1 ORDER BY id DESC LIMIT 10000)),
		newer AS (SELECT min(id) AS id FROM ends WHERE created_at > $2 AND created_at <= clock_timestamp()
			AND NOT id <@ $3::text::int8multirange)
	SELECT coalesce(CASE WHEN (SELECT created_at FROM outbox_events WHERE id < newer.id ORDER BY id DESC LIMIT 1) > $2
		THEN (SELECT min(id) FROM ends) ELSE newer.id END, 0),
		coalesce((SELECT bool_and(created_at <= $2 OR created_at > clock_timestamp()) FROM ends
			WHERE id <= $4 AND NOT id <@ $5::text::int8multirange), false)
	FROM newer`

	// sqlReused marks all positions that have passed possibly reused ids. The mark outlives its cause: the sequence may
	// overtake the position, and events with reused ids are still not delivered. An owned position may have passed more than
	// its row says. Positions do not keep a later anchor.
	sqlReused = `UPDATE outbox_positions SET reused = least(reused, $1), seen_at = least(seen_at, $4)
		WHERE (head > $1 OR owner IS NOT NULL
			OR EXISTS (SELECT FROM jsonb_array_elements(former) AS s, jsonb_array_elements(s) AS w
				WHERE (w ->> 'head')::bigint > $1))
		AND ($2 OR NOT coalesce(sequence = $3 OR sequence LIKE '% ' || $3, false))`

	sqlSequence = `UPDATE outbox_positions SET sequence = $3 WHERE number = $1 AND epoch = $2`
)

// standing is what one statement reads about the ids.
type standing struct {
	name     string // of the sequence
	last     int64  // the last id
	identity identity
	reused   *int64  // the mark
	again    []int64 // passed ids with newer events, among the last ones
	anchor   anchor
}

// CheckIDs checks whether the sequence has assigned ids again that a position has passed since its anchor. It then
// makes the given watermark the next anchor. The connection leads to the server life in which that was read, so a
// crash, which may take back ids together with their events, does not count.
func (p *Position) CheckIDs(ctx context.Context, conn *session.Conn, log *slog.Logger, read idset.Watermark) error {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTrip, ErrSlow)
	defer cancel()

	at, err := p.standing(ctx, conn)
	if err != nil {
		return err
	}

	// A position at 0 has passed no id that could be assigned again.
	passed := max(read.Head, p.Former.Head())
	isRestored := p.seen.transaction != nil && *p.seen.transaction > *at.anchor.transaction
	isOther := passed > 0 && (at.identity.replaced() || isRestored)
	isBehind := at.last < passed
	isReused := at.reused != nil || isBehind || len(at.again) > 0
	if !isReused && !isOther {
		if at.identity.replaced() { // nothing shows that the ids are the same
			at.identity.origin = at.identity.now
		}

		return p.passIDs(ctx, conn, at, read)
	}

	first, kept, err := p.firstNewer(ctx, conn, idset.Watermark{Head: passed, Open: read.Open})
	if err != nil {
		return err
	}

	var why string
	from := int64(0)

	switch {
	case at.reused != nil:
		why = fmt.Sprintf("ids above %d may have been given out again", *at.reused)
	case isBehind:
		why = fmt.Sprintf("%s is at %d", at.name, at.last)
		from = at.last
	case len(at.again) > 0:
		why = fmt.Sprintf("event %d was written after the position had passed its id", at.again[0])
		from = at.again[0] - 1
	case first > 0 && !kept, p.seen.at == nil:
		why = "the sequence or its table was restarted, or restored, since the position was written"
	default:
		log.WarnContext(ctx, "sequence or table has new files", "destination", p.Destination, "passed", passed)
		return p.passIDs(ctx, conn, at, read)
	}

	if first > 0 {
		from = min(from, first-1)
	}

	if at.reused == nil {
		if _, err := conn.Exec(ctx, sqlReused, from, !isOther, at.identity.now, p.seen.at); err != nil {
			return fmt.Errorf("mark the positions that have passed ids that are given out again: %w", err)
		}
	}

	// Only here: where retention has deleted many events, the search reads all of them.
	var highest int64
	if err := conn.QueryRow(ctx, `SELECT coalesce((SELECT id FROM outbox_events ORDER BY id DESC LIMIT 1), 0)`).Scan(&highest); err != nil {
		return fmt.Errorf("read the highest id: %w", err)
	}

	whose := "the unrouted scanner"
	if p.Destination != "" {
		whose = fmt.Sprintf("destination %q", p.Destination)
	}

	cure := pgschema.CureOfIDs(at.name, at.last, max(passed, highest), first, passed)

	return fmt.Errorf("%w: %s, and %s has passed %d: %s", ErrIDs, why, whose, passed, cure)
}

// standing reads the sequence, its files, the mark and the last passed ids.
func (p *Position) standing(ctx context.Context, conn *session.Conn) (s standing, err error) {
	var last *int64
	var next int64
	var before string
	var at time.Time

	err = conn.QueryRow(ctx, sqlIDs, p.PositionID, p.Epoch, p.seen.Head, p.seen.transaction, p.seen.at).
		Scan(&last, &s.name, &before, &s.identity.now, &s.reused, &next, &at, &s.again)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return s, ErrFenced
	case err != nil:
		return s, fmt.Errorf("read the sequence: %w", err)
	case last == nil:
		return s, errAltered
	}

	s.last = *last
	s.identity.read(before)
	s.again = slices.DeleteFunc(s.again, p.seen.Open.Contains)
	s.anchor = anchor{transaction: &next, at: &at}

	return s, nil
}

// passIDs makes a watermark the next anchor, and stores the present files.
func (p *Position) passIDs(ctx context.Context, conn *session.Conn, s standing, read idset.Watermark) error {
	p.seen = s.anchor
	p.seen.Watermark = idset.Watermark{Head: read.Head, Open: slices.Clone(read.Open)}
	p.Sequence = s.identity.origin

	if s.identity.before == s.identity.now {
		return nil
	}
	if _, err := conn.Exec(ctx, sqlSequence, p.PositionID, p.Epoch, s.identity.stored()); err != nil {
		return fmt.Errorf("store the sequence: %w", err)
	}

	return nil
}

// firstNewer returns the first passed id that may have been assigned again, 0 without one. An event that the position
// has passed since its anchor counts: it may have another event's id. kept reports that this is not so.
func (p *Position) firstNewer(ctx context.Context, conn *session.Conn, passed idset.Watermark) (first int64, kept bool, err error) {
	err = conn.QueryRow(ctx, sqlNewer, passed.Head, p.seen.at, passed.Open.String(), p.seen.Head, p.seen.Open.String()).Scan(&first, &kept)
	if err != nil {
		return 0, false, fmt.Errorf("find events that were written after the position had passed their ids: %w", err)
	}
	return first, kept, nil
}

// identity is what assigns the ids, each as [pgschema.Sequence] has it. A position stores the origin, from when its
// ids began, and the files at the last check if they are others.
type identity struct{ origin, before, now string }

// identityFields is the number of fields of one identity.
const identityFields = 3

// read parses the stored text. After a seek it is empty, and the present files become the origin.
func (i *identity) read(stored string) {
	fields := strings.Fields(stored)
	if len(fields) < identityFields {
		i.origin = i.now
		return
	}

	i.origin = strings.Join(fields[:identityFields], " ")
	i.before = strings.Join(fields[len(fields)-identityFields:], " ")
}

// stored returns the text to store.
func (i *identity) stored() string {
	if i.origin == i.now {
		return i.now
	}
	return i.origin + " " + i.now
}

// replaced reports whether the sequence or its table was replaced since the last check.
func (i *identity) replaced() bool { return Replaced(i.before, i.now) }

// Replaced reports whether another sequence assigns the ids, or the same one was restarted with its table. An altered
// sequence is the same; ALTER SEQUENCE ... RESTART shows in the ids.
func Replaced(before, now string) bool {
	b := strings.Fields(before)
	n := strings.Fields(now)
	if len(b) != 3 || len(n) != 3 {
		return false
	}

	return b[0] != n[0] || b[1] != n[1] && b[2] != n[2]
}
