package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/internal/withheld"
	"github.com/notifyd/notifyd/observe"
)

// unroutedScanner reads the table for events whose type has no route, and stores them as rows. When their type gains a
// route, it hands them to the destinations. It has a position like a shard of a destination, and no lane. One goroutine
// does all of it.
type unroutedScanner struct {
	e      *Engine
	pos    position.Position
	reader *tail.Reader
	wake   chan struct{} // capacity 1
	hint   atomic.Bool
	seek   atomic.Bool

	routes  routes.Table
	loaded  time.Time // when the routes were read; zero: they must be read
	skip    []string
	skipped map[string]bool
	warned  map[string]bool // types whose lack of a route has been logged
	pending []unroutedEvent
	// withheld has rows that the database refuses.
	withheld withheld.Set[[]unroutedEvent]
	rescan   bool // there may be rows whose type has gained a route
	// late has the events that were withheld while others were handed out: a destination that has got those still gets these.
	late map[int64]bool
	// covered is the id up to which a read has looked for all gaps since the routes were loaded.
	covered  int64
	progress progress
	yielded  bool  // there is more to read, but other shards wait for the connection
	gapIDs   int64 // ids in gaps after the last read
	checkAt  time.Time
	nextAt   time.Time
	readAt   time.Time // of the last read
	gapWait  time.Duration
	figures  atomic.Pointer[observe.PositionStats]
}

// routerGapPoll is the first pause between two reads of invisible ids.
const routerGapPoll = 50 * time.Millisecond

type unroutedEvent struct {
	id        int64
	eventType string
	stored    bool // it has a row
}

// idsOf returns the ids of events, never nil.
func idsOf(all []unroutedEvent) []int64 {
	ids := make([]int64, len(all))
	for i, e := range all {
		ids[i] = e.id
	}
	return ids
}

func newUnroutedScanner(e *Engine, p position.Position) *unroutedScanner {
	r := &unroutedScanner{
		e:        e,
		pos:      p,
		wake:     make(chan struct{}, 1),
		withheld: withheld.NewSet[[]unroutedEvent](),
		reader:   tail.NewReader(p.Head, p.Open, e.writers),
		covered:  math.MinInt64,
		routes:   routes.NewTable(nil),
		skipped:  make(map[string]bool),
		warned:   make(map[string]bool),
		gapWait:  routerGapPoll,
		late:     make(map[int64]bool),
	}

	r.hint.Store(true)
	r.figures.Store(&observe.PositionStats{Head: p.Head})

	return r
}

func (r *unroutedScanner) stats() observe.PositionStats { return *r.figures.Load() }

// wakeUp reports that there may be events to read, and with seek that routes may have changed. It never blocks.
func (r *unroutedScanner) wakeUp(seek bool) {
	// Events without a route are not urgent: the next poll finds them.
	if !seek {
		return
	}

	r.seek.Store(true)
	r.hint.Store(true)

	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// reportScanner is the name of the unrouted scanner in reports.
const reportScanner = "unrouted scanner"

// run works until ctx ends. It returns an error if the scanner's position is lost.
func (r *unroutedScanner) run(ctx context.Context) error {
	pauses := store.NewPauses()
	defer r.e.accepted(reportScanner)

	for ctx.Err() == nil {
		err := r.e.pool.use(ctx, &r.pos.Lease, func(conn *session.Conn) error { return r.work(ctx, conn) })
		r.publish()
		switch {
		case errors.Is(err, position.ErrFenced), errors.Is(err, lease.ErrMoved), permanent(err):
			return err
		case err != nil && ctx.Err() == nil:
			r.e.report(reportScanner, err)
			sleep.For(ctx, pauses.After(err))
		case err == nil:
			pauses.Reset()
			r.e.accepted(reportScanner)
			if !r.yielded {
				r.wait(ctx)
			}
		}
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSaveWithin)
	defer cancel()

	r.pos.WriteWhole()
	return r.e.pool.use(ctx, &r.pos.Lease, func(conn *session.Conn) error { return r.save(ctx, conn) })
}

func (r *unroutedScanner) wait(ctx context.Context) {
	next := r.nextAt
	switch {
	case r.pos.Behind(): // no delivery depends on it
		next = earlier(next, r.progress.at.Add(r.e.limits.PollInterval))
	case r.progress.dirty:
		next = earlier(next, r.progress.dueAt())
	}

	if len(r.withheld.Rows) > 0 {
		next = earlier(next, r.withheld.Until())
	}

	if scan, ok := r.reader.NextScan(); ok {
		if pause := r.progress.at.Add(followEvery); scan.Before(pause) && !r.destinationWaits() {
			scan = pause // no destination waits for the gaps
		}
		next = earlier(next, scan)
	}

	timer := time.NewTimer(max(0, time.Until(next)))
	defer timer.Stop()

	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-timer.C:
	}
}

// work reads all available events, and hands out events that have gained a route.
func (r *unroutedScanner) work(ctx context.Context, conn *session.Conn) error {
	if !time.Now().Before(r.checkAt) {
		if err := r.pos.CheckIDs(ctx, conn, r.e.Log, r.reader.Watermark()); err != nil {
			return err
		}
		r.checkAt = time.Now().Add(r.e.limits.PollInterval)
	}

	start := time.Now()
	r.yielded = false
	for full := true; full && ctx.Err() == nil; {
		r.yielded = r.e.pool.mustYield(start)
		if r.yielded {
			return nil
		}

		if r.seek.Swap(false) || time.Since(r.loaded) >= r.e.limits.PollInterval {
			if err := r.load(ctx, conn); err != nil {
				return err
			}
		}

		if r.canFinish() {
			if err := r.handOut(ctx, conn); err != nil {
				return err
			}
		}

		if r.follow() && !r.destinationWaits() && time.Since(r.readAt) < r.e.limits.PollInterval {
			err := r.save(ctx, conn)
			if err == nil {
				err = r.findWriters(ctx, conn)
			}
			r.nextAt = time.Now().Add(followEvery)
			return err
		}

		var err error
		began := time.Now()
		full, err = r.read(ctx, conn)
		if err != nil {
			return err
		}

		othersRead := r.e.Polling() || r.e.loading.Load() > 0
		if full && othersRead && !r.destinationWaits() {
			r.pause(ctx, routerShare*time.Since(began))
		}

		retriesWithheld := len(r.withheld.Rows) > 0 && !time.Now().Before(r.withheld.Until())
		if retriesWithheld || r.progress.due() || len(r.pending) >= maxPending {
			if err := r.save(ctx, conn); err != nil {
				return err
			}
		}
	}

	if err := r.handOut(ctx, conn); err != nil {
		return err
	}

	return r.findWriters(ctx, conn)
}

// findWriters finds the transactions that may fill gaps, if a scan is due.
func (r *unroutedScanner) findWriters(ctx context.Context, conn *session.Conn) error {
	if !r.reader.NeedsScan(time.Now()) {
		return nil
	}

	l, err := r.e.writers.Scan(ctx, conn, r.pos.Server)
	if err != nil {
		return err
	}

	r.reader.Apply(l)
	r.nextAt = time.Now()

	return nil
}

// followEvery is the pause between two attempts to follow the shards. The scanner still reads once per poll interval,
// because only a read ends gaps from before the shard's first read.
const followEvery = 250 * time.Millisecond

// seen has the ids that a shard has read since it began, and the types of all their events. types is nil if there are
// too many.
type seen struct {
	tail.Seen

	types []string
}

// follow moves the scanner's head to the head of a shard of this relay, if all event types that the shard has read have
// routes. Then no event between the two heads is unrouted, and the scanner does not read them again. It reports whether
// the head has moved.
func (r *unroutedScanner) follow() (did bool) {
	for _, s := range r.e.seen(r.pos.Server) {
		if s.Head > r.reader.Head() && r.allRouted(s.types) {
			did = r.reader.Follow(s.Seen) || did
		}
	}

	r.progress.dirty = r.progress.dirty || did
	return did
}

// allRouted reports whether destinations read all remaining events of these types.
func (r *unroutedScanner) allRouted(some []string) bool {
	for _, t := range some {
		if r.maySkip(t); !r.skipped[t] {
			return false
		}
	}
	return len(some) > 0
}

// canFinish reports whether a handover can end without another read: a destination need not wait until the scanner has
// read a backlog that the destination will read as well.
func (r *unroutedScanner) canFinish() bool {
	for range r.complete() {
		return true
	}
	return false
}

// complete returns the routes of destinations that wait only for stored events: the scanner has read all events that
// they had passed. Gaps do not delay it, if a read after the begin of the routes has not found their events. Then each
// of these ids is dead, or its event was not committed when the routes began: the destination has the id among its own
// open ids, and reads the event itself.
func (r *unroutedScanner) complete() iter.Seq[*routes.Range] {
	return func(yield func(*routes.Range) bool) {
		at := r.reader.Watermark()
		for to := range r.routes.Waiting() {
			read := to.From.Head <= r.covered || to.From.Within(at)
			if read && !yield(to) {
				return
			}
		}
	}
}

// destinationWaits reports whether a destination waits for the scanner to read further.
func (r *unroutedScanner) destinationWaits() bool {
	for range r.routes.Waiting() {
		return true
	}
	return false
}

const (
	// routerBatch is the ratio of the scanner's rows per read to a destination's: it mostly reads only ids.
	routerBatch = 10
	// routerShare is the scanner's pause, in multiples of the time of its read, while there is a backlog or a shard
	// loads its stored deliveries. Events without a route are not urgent.
	routerShare = 4
)

// pause leaves the database to the shards. A call of wakeUp with seek ends it.
func (r *unroutedScanner) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-timer.C:
	}
}

// load reads the routes of all destinations.
func (r *unroutedScanner) load(ctx context.Context, conn *session.Conn) error {
	all, err := routes.Read(ctx, conn, nil)
	if err != nil {
		return err
	}

	r.loaded = time.Now()

	if !r.routes.Is(all) {
		r.routes = routes.NewTable(all)
		r.rescan = true
		r.covered = math.MinInt64
		r.skip = nil
		r.skipped = make(map[string]bool)
	}

	return nil
}

// read reads once, and reports whether there is more to read at once.
func (r *unroutedScanner) read(ctx context.Context, conn *session.Conn) (more bool, err error) {
	r.hint.Store(false)
	r.readAt = time.Now()
	head := r.reader.Head()
	b, err := r.reader.Read(ctx, conn, tail.Query{
		Limit:      routerBatch * r.e.limits.Batch,
		Bytes:      r.e.limits.Bytes,
		EventBytes: r.e.limits.EventBytes,
		Skip:       r.skip,
		Assigned:   r.e.last.Load(),
	})
	if err != nil {
		r.reader = r.reader.After(r.reader.Head(), r.reader.Gaps())
		return false, err
	}

	for i := range b.Events {
		e := &b.Events[i]
		if r.skipped[e.Type] {
			continue
		}

		if v := r.routes.Of(e.Type); r.routes.Unrouted(v, e.ID) {
			r.pending = append(r.pending, unroutedEvent{id: e.ID, eventType: e.Type})
			if due, late := r.routes.Due(v, e.ID); due {
				r.rescan = true // it has gained a route since
				if late {       // a former owner has withheld it
					r.late[e.ID] = true
				}
			} else if !r.routes.Gotten(v) {
				r.warnOnce(e)
			}
		}
	}

	for i := range b.Events {
		r.maySkip(b.Events[i].Type)
	}
	if !b.Full {
		r.extendHead()
	}

	r.covered = max(r.covered, b.Last)
	if !b.Full {
		r.covered = r.reader.Head()
	}

	gapIDs := r.reader.Gaps().IDs()
	if b.Seen > 0 || r.reader.Head() != head || gapIDs != r.gapIDs {
		r.progress.dirty = true
	}
	r.gapIDs = gapIDs
	wait := r.e.limits.PollInterval

	if r.reader.Gaps().Len() > 0 {
		wait = min(wait, r.gapWait)
		r.gapWait = min(2*r.gapWait, r.e.limits.PollInterval)
	} else {
		r.gapWait = routerGapPoll
	}

	r.nextAt = time.Now().Add(wait)
	r.e.began()

	return b.Full, nil
}

// extendHead makes gaps of the ids between the last event and the begin of a destination that waits for its handover.
// These ids were assigned, and may all have been rolled back: without a later event the reader would not pass them.
func (r *unroutedScanner) extendHead() {
	head := r.reader.Head()
	last := r.e.last.Load()
	for to := range r.routes.Waiting() {
		if to.From.Head <= last {
			head = max(head, to.From.Head)
		}
	}

	if head == r.reader.Head() {
		return
	}

	at := r.reader.Watermark()
	r.reader = tail.NewReader(head, at.Missing(head), r.e.writers)
}

// warnOnce logs once that a type has no route.
func (r *unroutedScanner) warnOnce(e *delivery.Event) {
	if r.warned[e.Type] || len(r.warned) >= routes.MaxTypes {
		return
	}
	r.warned[e.Type] = true
	r.e.log.Warn("no route matches this event type", "event_type", e.Type, "event_id", e.ID)
}

// maySkip adds the type to the types that reads skip, if destinations read all of its remaining events.
func (r *unroutedScanner) maySkip(eventType string) {
	lowest := r.reader.Head()
	if gaps := r.reader.Gaps(); gaps.Len() > 0 {
		lowest = gaps[0].From - 1
	}
	if r.skipped[eventType] || len(r.skip) >= routes.MaxTypes || !r.routes.Settled(r.routes.Of(eventType), lowest) {
		return
	}

	r.skipped[eventType] = true
	r.skip = append(r.skip, eventType)
}

// sqlUnrouted stores events without a route as rows.
const sqlUnrouted = `INSERT INTO outbox_deliveries (event_id, destination, event_type, state)
SELECT p.id, '', p.type, 'unrouted' FROM unnest($1::bigint[], $2::text[]) AS p(id, type) ON CONFLICT DO NOTHING`

// save writes the position and the rows of events without a route. It withholds rows that the database refuses alone.
func (r *unroutedScanner) save(ctx context.Context, conn *session.Conn) error {
	if len(r.withheld.Rows) > 0 && !time.Now().Before(r.withheld.Until()) {
		again, _ := r.withheld.Take()
		for _, e := range again {
			r.late[e.id] = true
			if !e.stored {
				r.pending = append(r.pending, e)
			}
		}

		r.progress.dirty = true
		r.rescan = true // their types may have gained a route
	}

	if !r.progress.dirty {
		return nil
	}

	withheldBefore := len(r.withheld.Rows)
	began := time.Now()

	err := r.write(ctx, conn, r.pending, nil)
	if session.IsOfRow(err) && len(r.pending) > 0 && !conn.IsClosed() {
		err = r.saveInHalves(ctx, conn, err)
	}
	if err != nil {
		return wholeOf(err)
	}

	r.e.report(reportScanner, nil)
	r.progress.dirty = r.pos.Behind() || len(r.withheld.Rows) > withheldBefore
	r.pending = nil
	r.progress.saved(0, began)
	r.endWithheld()

	return nil
}

// endWithheld ends the report of single events, once all are stored and handed out.
func (r *unroutedScanner) endWithheld() {
	if len(r.withheld.Rows) == 0 && !r.rescan && r.withheld.Ended() {
		r.e.accepted(reportScanner + ", single events")
	}
}

// saveInHalves withholds the rows that the database refuses, and writes the others. The next save passes these.
func (r *unroutedScanner) saveInHalves(ctx context.Context, conn *session.Conn, refusal error) error {
	refused, err := session.InHalves(r.pending, func(some []unroutedEvent) error { return r.write(ctx, conn, some, r.pending) })
	if err != nil {
		return err
	}
	return r.withhold(ctx, conn, refused, refusal)
}

// withhold withholds events whose rows the database refuses. It returns refusal, the error of the write of all rows
// together, if none is refused alone.
func (r *unroutedScanner) withhold(ctx context.Context, conn *session.Conn, refused []session.Refused[unroutedEvent], refusal error) error {
	switch {
	case len(refused) == 0:
		return refusal
	case len(r.withheld.Rows)+len(refused) > withheld.Max:
		return fmt.Errorf("%w: %w", withheld.ErrTooMany, refused[0].Err)
	}

	for _, one := range refused {
		r.withheld.Name(ctx, r.e.log, one.Item.id, "", one.Err)
		r.withheld.Rows = append(r.withheld.Rows, one.Item)
	}

	r.withheld.Wait()
	r.e.report(reportScanner+", single events", &withheld.Error{Event: refused[0].Item.id, N: len(r.withheld.Rows), Err: refused[0].Err})

	return session.ForgetIgnored(ctx, conn.Conn, refused[0].Err)
}

// write writes rows and the position in one transaction. The ids in open are open, as the withheld ones are.
func (r *unroutedScanner) write(ctx context.Context, conn *session.Conn, rows, open []unroutedEvent) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
		ok, err := r.pos.Save(ctx, tx, r.watermark(open), 0)
		switch {
		case err != nil || !ok:
			return wholeError{cmp.Or(err, position.ErrFenced)}
		case len(rows) == 0:
			return nil
		}

		ids := idsOf(rows)
		types := make([]string, len(rows))
		for i, p := range rows {
			types[i] = p.eventType
		}

		tag, err := tx.Exec(ctx, sqlUnrouted, ids, types)
		if err == nil && tag.RowsAffected() < int64(len(ids)) { // some have rows, or a write was ignored
			var stored int64
			err = tx.QueryRow(ctx, `SELECT count(*) FROM outbox_deliveries
				WHERE event_id = ANY($1::bigint[]) AND destination = ''`, ids).Scan(&stored)
			if err == nil && stored < int64(len(ids)) {
				err = &session.IgnoredError{Statement: "store events without a route", Rows: int64(len(ids)), Changed: stored}
			}
		}

		if err != nil {
			return fmt.Errorf("store events without a route: %w", err)
		}

		return nil
	})
}

// watermark returns the position to write. The gaps are open, some events, and the events whose rows are withheld.
func (r *unroutedScanner) watermark(some []unroutedEvent) idset.Watermark {
	at := r.reader.Watermark()
	for _, e := range slices.Concat(some, r.withheld.Rows) {
		if e.id <= at.Head {
			at.Open.Add(idset.Range{From: e.id, To: e.id})
		}
	}

	return at
}

func (r *unroutedScanner) publish() {
	gaps := r.reader.Gaps()
	r.figures.Store(&observe.PositionStats{
		Head: r.reader.Head(), Open: int64(len(r.pending)), Gaps: r.e.possible(gaps), Ranges: int64(gaps.Len()),
		OldestGap: r.reader.GapStats().Oldest, Saved: r.progress.saves, SavedAt: r.progress.at,
		OpenRanges: int64(gaps.Len()),
	})
}

// handBatch is how many events one transaction hands out.
const handBatch = 2000

// sqlWaiting reads a page of rows without a route, in the order of ids.
const sqlWaiting = deliveries.SQLUnroutedPage + `SELECT d.event_id, d.event_type, coalesce(e.aggregate_type, ''),
	coalesce(e.aggregate_id, ''), e.id IS NULL
FROM page AS d LEFT JOIN outbox_events AS e ON e.id = d.event_id ORDER BY d.event_id`

// sqlDecided reads rows of a former queue that are due and have no destination yet.
const sqlDecided = `SELECT d.event_id, d.event_type, coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, ''), e.id IS NULL
FROM (SELECT event_id, event_type FROM outbox_deliveries WHERE destination = '' AND state = 'retry' AND available_at <= now()
	ORDER BY available_at, event_id LIMIT $1) AS d
LEFT JOIN outbox_events AS e ON e.id = d.event_id ORDER BY d.event_id`

// sqlHand inserts a row for each destination that gets an event, in the shard of the event. It returns how many rows are
// missing because a trigger suppressed their insert. NOT IN compares by a hash; a join may compare each row with each
// other, for many seconds. OFFSET 0 makes the second condition a search by the primary key, for the few rows that are left.
func sqlHand() string {
	return `WITH n AS MATERIALIZED (SELECT destination, max(shards) AS shards
	FROM outbox_positions GROUP BY destination HAVING max(shards) > 1),
p AS MATERIALIZED (SELECT *
	FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[]) AS p(id, destination, type, state, key)),
made AS (INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, shard)
	SELECT p.id, p.destination, p.type, p.state, nullif(p.key, ''),
		coalesce((SELECT 1 + ` + pgschema.Hash("e.") + ` % n.shards FROM n, outbox_events AS e
			WHERE n.destination = p.destination AND e.id = p.id),
			(SELECT 1 FROM n WHERE n.destination = p.destination), 0)
	FROM p ON CONFLICT DO NOTHING RETURNING event_id, destination)
SELECT count(*) FROM (SELECT p.id, p.destination FROM p WHERE (p.id, p.destination) NOT IN (SELECT event_id, destination FROM made) OFFSET 0) AS other
WHERE NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = other.id AND d.destination = other.destination OFFSET 0)`
}

// sqlNotHanded counts the rows without a destination, among those of a page ($1), whose write a trigger or a rule has
// ignored: it should have deleted them, made them unrouted ($2), or delayed them ($3).
const sqlNotHanded = `SELECT count(*) FROM outbox_deliveries AS d WHERE d.destination = '' AND d.event_id = ANY($1)
AND NOT (d.event_id = ANY($2) AND d.state || '' = 'unrouted' OR d.event_id = ANY($3) AND d.xmin = pg_current_xact_id()::xid)`

// handOut stores events that had no route as rows of the destinations that get them now. It notifies waiting
// destinations when no such events are left.
func (r *unroutedScanner) handOut(ctx context.Context, conn *session.Conn) error {
	if r.progress.dirty { // events that have just been read may be among them
		if err := r.save(ctx, conn); err != nil {
			return err
		}
	}

	moved, err := r.handStored(ctx, conn)
	if err != nil || ctx.Err() != nil {
		return err
	}

	finished, err := r.finish(ctx, conn)
	if err != nil {
		return err
	}
	if moved || finished {
		return r.e.announce(ctx, conn)
	}

	return nil
}

// handStored hands out all stored events that have gained a route, in order. Events for a destination that no relay has
// begun yet stay.
func (r *unroutedScanner) handStored(ctx context.Context, conn *session.Conn) (moved bool, err error) {
	if r.rescan {
		for page := ""; ; {
			types, next, err := r.routedTypes(ctx, conn, page)
			if err != nil {
				return moved, err
			}

			some, err := r.handTypes(ctx, conn, types)
			moved = moved || some
			if err != nil {
				return moved, err
			}

			page = next
			if page == "" || ctx.Err() != nil {
				break
			}
		}

		r.rescan = ctx.Err() != nil
		r.endWithheld()
	}

	for ctx.Err() == nil {
		all, err := r.hand(ctx, conn, sqlDecided, handBatch)
		if err != nil {
			return moved, err
		}
		if len(all.read) == 0 {
			break
		}

		moved = true
	}

	return moved, nil
}

// handTypes hands out the stored events of some types, in order.
func (r *unroutedScanner) handTypes(ctx context.Context, conn *session.Conn, types []string) (moved bool, err error) {
	for after := int64(math.MinInt64); len(types) > 0 && ctx.Err() == nil; {
		all, err := r.hand(ctx, conn, sqlWaiting, types, after, handBatch)
		if err != nil || all.rows == 0 {
			return moved, err
		}
		moved = moved || len(all.read) > 0
		after = all.last
	}
	return moved, nil
}

// routedTypes returns the types of rows without a route that have gained one, among a page of types.
func (r *unroutedScanner) routedTypes(ctx context.Context, conn *session.Conn, page string) (types []string, next string, err error) {
	types, next, err = deliveries.UnroutedTypes(ctx, conn, page, func(t string) bool { return r.routes.Gotten(r.routes.Of(t)) })
	if err != nil {
		return nil, "", fmt.Errorf("list event types without a route: %w", err)
	}
	return types, next, nil
}

// hand hands out some rows, and returns the rows of the query. It withholds the rows that the database refuses alone.
func (r *unroutedScanner) hand(ctx context.Context, conn *session.Conn, query string, args ...any) (handover, error) {
	all, err := r.handSome(ctx, conn, nil, query, args...)
	if session.IsOfRow(err) && !conn.IsClosed() {
		refused, halvesErr := session.InHalves(all.read, func(some []unroutedEvent) error {
			_, err := r.handSome(ctx, conn, idsOf(some), query, args...)
			return err
		})
		if halvesErr == nil {
			halvesErr = r.withhold(ctx, conn, refused, err)
			r.progress.dirty = true
		}

		err = halvesErr
	}

	if err != nil {
		return all, fmt.Errorf("hand out events that had no route: %w", wholeOf(err))
	}

	return all, nil
}

// handSome hands out the rows of a query in one transaction, or those of them that only has.
func (r *unroutedScanner) handSome(ctx context.Context, conn *session.Conn, only []int64, query string, args ...any) (all handover, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
		// Locks the position against a successor. Proves that this relay owns it, and that the loaded routes are
		// current.
		if ok, err := r.pos.Save(ctx, tx, r.watermark(nil), 0); err != nil || !ok {
			return wholeError{cmp.Or(err, position.ErrFenced)}
		}

		rows, err := tx.Query(ctx, query, args...)
		if err != nil {
			return wholeError{err}
		}

		all = handover{kept: []int64{}, missing: []int64{}} // never nil: <> ALL (NULL) is never true
		withheld := idsOf(r.withheld.Rows)
		var e delivery.Event
		var missing bool
		_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.Type, &e.AggregateType, &e.AggregateID, &missing}, func() error {
			all.rows++
			all.last = e.ID

			if slices.Contains(withheld, e.ID) || only != nil && !slices.Contains(only, e.ID) {
				return nil
			}

			all.read = append(all.read, unroutedEvent{id: e.ID, eventType: e.Type, stored: true})

			if missing {
				all.missing = append(all.missing, e.ID)
				all.delays = append(all.delays, r.e.missing.Met("", e.ID).Microseconds())
			} else {
				r.addRows(&all, &e, query == sqlDecided)
			}

			return nil
		})
		if err != nil {
			return wholeError{err}
		}
		if len(all.read) == 0 {
			return nil
		}

		return all.write(ctx, tx)
	})
	if err == nil {
		for _, e := range all.read {
			delete(r.late, e.id)
		}
	}

	return all, err
}

// write inserts the rows of the destinations, and deletes those without one.
func (h *handover) write(ctx context.Context, tx pgx.Tx) error {
	read := idsOf(h.read)

	var ignored, left int64
	if err := tx.QueryRow(ctx, sqlHand(), h.ids, h.names, h.types, h.states, h.keys).Scan(&ignored); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, sqlUndecided, h.kept); err != nil {
		return err
	}

	if len(h.missing) > 0 {
		if _, err := tx.Exec(ctx, sqlMissing, h.missing, h.delays, engine.ClassMissing, engine.ErrMissing.Error()); err != nil {
			return err
		}
	}

	_, err := tx.Exec(ctx, `DELETE FROM outbox_deliveries WHERE destination = '' AND event_id = ANY($1) AND event_id <> ALL($2)`,
		read, append(h.kept, h.missing...)) // kept is never nil
	if err != nil {
		return err
	}

	if err := tx.QueryRow(ctx, sqlNotHanded, read, h.kept, h.missing).Scan(&left); err != nil {
		return err
	}

	return session.CheckChanged("hand out", 0, ignored+left)
}

// sqlUndecided records that delayed events of a former queue have no route.
const sqlUndecided = `UPDATE outbox_deliveries SET state = 'unrouted', updated_at = now()
WHERE destination = '' AND event_id = ANY($1) AND state <> 'unrouted'`

// sqlMissing delays rows without a destination whose events are missing. They are then decided like rows of a former
// queue, since the search for events without a route may have ended.
const sqlMissing = `UPDATE outbox_deliveries AS d SET state = 'retry', updated_at = now(),
	available_at = clock_timestamp() + p.delay * interval '1 microsecond', error_class = $3, last_error = $4
FROM unnest($1::bigint[], $2::bigint[]) AS p(event_id, delay) WHERE d.destination = '' AND d.event_id = p.event_id`

// handover collects the rows to write.
type handover struct {
	rows    int             // number of rows in the page
	last    int64           // the last one
	read    []unroutedEvent // rows to hand out
	missing []int64         // the part of read whose events are missing
	delays  []int64         // until the next check of each, in microseconds
	kept    []int64         // rows that stay: no route, or a route to a destination that no relay has begun
	ids     []int64
	names   []string
	types   []string
	states  []string
	keys    []string
}

// addRows adds the rows of an event. A waiting destination finds them parked, and begins with the first of each
// aggregate. A working destination has already received all events that it had passed. But rows of a former queue that
// are due now become due rows of the destination.
func (r *unroutedScanner) addRows(all *handover, e *delivery.Event, decided bool) {
	v := r.routes.Of(e.Type)
	if !r.routes.Gotten(v) || !decided && r.routes.Awaited(v) {
		all.kept = append(all.kept, e.ID)
	}

	key := dispatch.OrderingKey(e)
	for to := range r.routes.Takers(v, e.ID) {
		if !decided && to.Handed && !r.late[e.ID] {
			continue
		}

		state := deliveries.Retry
		if key != "" && !to.Handed {
			state = deliveries.Parked
		}

		all.ids = append(all.ids, e.ID)
		all.names = append(all.names, to.Destination)
		all.types = append(all.types, e.Type)
		all.states = append(all.states, string(state))
		all.keys = append(all.keys, key)
	}
}

// finish notifies waiting destinations that they have got everything: the scanner has read all ids that they had passed
// when they got their route.
func (r *unroutedScanner) finish(ctx context.Context, conn *session.Conn) (finished bool, err error) {
	for to := range r.complete() {
		r.pos.WriteWhole()
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
			if ok, err := r.pos.Save(ctx, tx, r.watermark(nil), 0); err != nil || !ok {
				return cmp.Or(err, position.ErrFenced)
			}
			if away, err := r.away(ctx, tx, to); err != nil || away {
				return cmp.Or(err, errAway)
			}
			return routes.Handed(ctx, tx, to)
		})
		switch {
		case errors.Is(err, errAway):
			continue
		case err != nil:
			return finished, fmt.Errorf("finish handing out: %w", err)
		}

		to.Handed = true
		finished = true
	}
	return finished, nil
}

// errAway means that a destination must wait for a detached partition.
var errAway = errors.New("a partition with events from before the route is detached")

// away reports whether gaps below the begin of the routes lie in no partition: their events may be committed, and come
// back with the partition.
func (r *unroutedScanner) away(ctx context.Context, tx pgx.Tx, to *routes.Range) (bool, error) {
	at := r.reader.Watermark()
	if to.From.Within(at) {
		return false, nil
	}

	// A plain table has neither partitions nor the function that finds ids outside of them.
	var isPartitioned bool
	err := tx.QueryRow(ctx, `SELECT relkind = 'p' FROM pg_class WHERE oid = 'outbox_events'::regclass`).Scan(&isPartitioned)
	if err != nil || !isPartitioned {
		return false, err
	}

	var away idset.Set
	if err := tx.QueryRow(ctx, `SELECT outbox_away()::text`).Scan(&away); err != nil {
		return false, err
	}

	at.Open = at.Open.And(away)
	return !to.From.Within(at), nil
}
