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
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// router reads the table for events whose type has no route, and stores them as rows. When their
// type gets a route it hands them to its destinations. It has a position like any destination, and
// no lane. One goroutine does all of it.
type router struct {
	e      *Engine
	pos    position.Position
	reader *tail.Reader
	wake   chan struct{} // capacity 1
	hint   atomic.Bool
	seek   atomic.Bool

	routes   routes.Table
	loaded   time.Time // when the routes were read; zero: they must be read
	skip     []string
	skipped  map[string]bool
	said     map[string]bool // types whose lack of a route has been reported
	pending  []unroutedEvent
	unsorted bool // there may be rows whose type has gained a route
	dirty    bool
	yielded  bool  // there is more to read, but other units wait for the connection
	gapIDs   int64 // ids in gaps after the last read
	checkAt  time.Time
	nextAt   time.Time
	readAt   time.Time // of the last read
	gapWait  time.Duration
	savedAt  time.Time
	saves    uint64
	figures  atomic.Pointer[observe.PositionStats]
}

// routerGapPoll is the first pause between two reads of invisible ids.
const routerGapPoll = 50 * time.Millisecond

type unroutedEvent struct {
	id        int64
	eventType string
}

func newRouter(e *Engine, p position.Position) *router {
	r := &router{
		e: e, pos: p, wake: make(chan struct{}, 1), reader: tail.NewReader(p.Head, p.Open, e.witnesses),
		routes: routes.NewTable(nil), skipped: make(map[string]bool), said: make(map[string]bool), gapWait: routerGapPoll,
	}
	r.hint.Store(true)
	r.figures.Store(&observe.PositionStats{Head: p.Head})
	return r
}

func (r *router) stats() observe.PositionStats { return *r.figures.Load() }

// hinted reports to the router that there may be events to read, and with seek that routes may have
// changed. It never blocks.
func (r *router) hinted(seek bool) {
	if seek {
		r.seek.Store(true)
	}
	// Events without a route are not urgent: they are left for the next poll.
	if !seek {
		return
	}
	r.hint.Store(true)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// partRouter is the router's name in reports.
const partRouter = "router"

// run works until ctx ends. It returns an error if the unit is lost.
func (r *router) run(ctx context.Context) error {
	pauses := store.NewPauses()
	defer r.e.accepted(partRouter)
	for ctx.Err() == nil {
		err := r.e.pool.use(ctx, &r.pos.Lease, func(conn *session.Conn) error { return r.work(ctx, conn) })
		r.publish()
		switch {
		case errors.Is(err, position.ErrFenced), errors.Is(err, lease.ErrMoved), final(err):
			return err
		case err != nil && ctx.Err() == nil:
			r.e.report(partRouter, err)
			sleep(ctx, pauses.After(err))
		case err == nil:
			pauses.Reset()
			r.e.accepted(partRouter)
			if !r.yielded {
				r.wait(ctx)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSaveWithin)
	defer cancel()
	return r.e.pool.use(ctx, &r.pos.Lease, func(conn *session.Conn) error { return r.save(ctx, conn) })
}

func (r *router) wait(ctx context.Context) {
	next := r.nextAt
	if r.dirty {
		next = earlier(next, r.savedAt.Add(saveEvery))
	}
	if look, ok := r.reader.NextLook(); ok {
		if pause := r.savedAt.Add(followEvery); look.Before(pause) && !r.hurried() {
			look = pause // no destination waits for the gaps
		}
		next = earlier(next, look)
	}
	timer := time.NewTimer(max(0, time.Until(next)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-timer.C:
	}
}

// work reads as far as there are events, and hands out those that have gained a route.
func (r *router) work(ctx context.Context, conn *session.Conn) error {
	if !time.Now().Before(r.checkAt) {
		if err := r.pos.CheckIDs(ctx, conn, tail.Watermark{Head: r.reader.Head(), Open: r.reader.Gaps()}); err != nil {
			return err
		}
		r.checkAt = time.Now().Add(r.e.limits.PollInterval)
	}
	start := time.Now()
	r.yielded = false
	for full := true; full && ctx.Err() == nil; {
		if r.yielded = r.e.pool.wanted(start); r.yielded {
			return nil
		}
		if r.seek.Swap(false) || time.Since(r.loaded) >= r.e.limits.PollInterval {
			if err := r.load(ctx, conn); err != nil {
				return err
			}
		}
		if r.awaited() {
			if err := r.handOut(ctx, conn); err != nil {
				return err
			}
		}
		if r.follow() && !r.hurried() && time.Since(r.readAt) < r.e.limits.PollInterval {
			err := r.save(ctx, conn)
			if err == nil {
				err = r.look(ctx, conn)
			}
			r.nextAt = time.Now().Add(followEvery)
			return err
		}
		var err error
		began := time.Now()
		if full, err = r.read(ctx, conn); err != nil {
			return err
		}
		if full && (r.e.Awake() || r.e.loading.Load() > 0) && !r.hurried() {
			r.pause(ctx, routerShare*time.Since(began))
		}
		if r.dirty && time.Since(r.savedAt) >= saveEvery || len(r.pending) >= maxPending {
			if err := r.save(ctx, conn); err != nil {
				return err
			}
		}
	}
	if err := r.handOut(ctx, conn); err != nil {
		return err
	}
	return r.look(ctx, conn)
}

// look finds the transactions of invisible ids, if that is due.
func (r *router) look(ctx context.Context, conn *session.Conn) error {
	if !r.reader.NeedsLook(time.Now()) {
		return nil
	}
	l, err := r.e.witnesses.Look(ctx, conn)
	if err != nil {
		return err
	}
	r.reader.Looked(l)
	r.nextAt = time.Now()
	return nil
}

// followEvery is the pause between two times at which the router follows the units. It still reads once per poll interval, because only
// a read ends gaps from before the unit's first read.
const followEvery = 250 * time.Millisecond

// seen has the ids that a unit has read since its begin, and the types of all their events. types is nil if there are too many.
type seen struct {
	tail.Seen

	types []string
}

// follow moves the router's head to that of a unit of this relay if all event types that the unit has read have routes. Then no event
// between the two heads is unrouted, and the router does not read them again. It reports whether the head has moved.
func (r *router) follow() (did bool) {
	for _, s := range r.e.seen(r.pos.Server) {
		if s.Head > r.reader.Head() && r.allRouted(s.types) {
			did = r.reader.Follow(s.Seen) || did
		}
	}
	r.dirty = r.dirty || did
	return did
}

// allRouted reports whether destinations read all of the remaining events of some types.
func (r *router) allRouted(some []string) bool {
	for _, t := range some {
		if r.maySkip(t); !r.skipped[t] {
			return false
		}
	}
	return len(some) > 0
}

// awaited reports whether a destination waits for the end of its handover without any read being
// necessary for that: it need not wait until the router has read a backlog that the destination
// will read by itself.
func (r *router) awaited() bool {
	for range r.complete() {
		return true
	}
	return false
}

// complete returns the routes of destinations that wait only to be handed stored events: the router has seen all that they had
// passed.
func (r *router) complete() iter.Seq[*routes.Span] {
	return func(yield func(*routes.Span) bool) {
		head, gaps := r.reader.Head(), r.reader.Gaps()
		for to := range r.routes.Waiting() {
			if to.From.Within(head, gaps) && !yield(to) {
				return
			}
		}
	}
}

// hurried reports whether a destination waits for the router to read further.
func (r *router) hurried() bool {
	for range r.routes.Waiting() {
		return true
	}
	return false
}

const (
	// routerBatch is how many times as many rows as a destination the router reads at once: mostly
	// only their ids.
	routerBatch = 10
	// routerShare is the router's pause, in multiples of the time of its read, while there is a
	// backlog, or a unit loads its stored deliveries: events without a route are not urgent.
	routerShare = 4
)

// pause lets other units read; a call of hinted with seek ends it.
func (r *router) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-timer.C:
	}
}

// load reads the routes of all destinations.
func (r *router) load(ctx context.Context, conn *session.Conn) error {
	all, err := routes.Read(ctx, conn, nil)
	if err != nil {
		return err
	}
	r.loaded = time.Now()
	if !r.routes.Is(all) {
		r.routes, r.unsorted = routes.NewTable(all), true
		r.skip, r.skipped = nil, make(map[string]bool)
	}
	return nil
}

// read reads once, and reports whether there is more at once.
func (r *router) read(ctx context.Context, conn *session.Conn) (more bool, err error) {
	r.hint.Store(false)
	r.readAt = time.Now()
	head := r.reader.Head()
	b, err := r.reader.Read(ctx, conn, tail.Query{Limit: routerBatch * r.e.limits.Batch, Bytes: r.e.limits.Bytes, EventBytes: r.e.limits.EventBytes, Skip: r.skip, Assigned: r.e.last.Load()})
	if err != nil {
		r.reader = tail.NewReader(r.reader.Head(), r.reader.Gaps(), r.e.witnesses)
		return false, err
	}
	for i := range b.Events {
		e := &b.Events[i]
		if r.skipped[e.Type] {
			continue
		}
		if v := r.routes.Of(e.Type); r.routes.Unrouted(v, e.ID) {
			r.pending = append(r.pending, unroutedEvent{e.ID, e.Type})
			if r.routes.Due(v, e.ID) {
				r.unsorted = true // it has gained a route since
			} else if !r.routes.Gotten(v) {
				r.say(e)
			}
		}
	}
	for i := range b.Events {
		r.maySkip(b.Events[i].Type)
	}
	if !b.Full {
		r.reach()
	}
	gapIDs := r.reader.Gaps().IDs()
	r.dirty = r.dirty || b.Seen > 0 || r.reader.Head() != head || gapIDs != r.gapIDs
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

// reach makes the ids that no event has, from the last event to where a destination begins that waits for its handover, gaps
// of the reader. They were assigned, and may all have been rolled back: without a later event the reader would not pass them.
func (r *router) reach() {
	head, last := r.reader.Head(), r.e.last.Load()
	for to := range r.routes.Waiting() {
		if to.From.Head <= last {
			head = max(head, to.From.Head)
		}
	}
	if head == r.reader.Head() {
		return
	}
	open := r.reader.Gaps()
	open.Add(tail.Range{From: r.reader.Head() + 1, To: head})
	r.reader = tail.NewReader(head, open, r.e.witnesses)
}

// say logs once that a type has no route.
func (r *router) say(e *delivery.Event) {
	if r.said[e.Type] || len(r.said) >= routes.MaxTypes {
		return
	}
	r.said[e.Type] = true
	r.e.log.Warn("no route matches this event type; its events wait for one", "event_type", e.Type, "event_id", e.ID)
}

// maySkip adds the type to those that reads skip, if destinations read all of its remaining events.
func (r *router) maySkip(eventType string) {
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

// save writes the position, and with it the rows of events without a route.
func (r *router) save(ctx context.Context, conn *session.Conn) error {
	if !r.dirty {
		return nil
	}
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
		ok, err := r.pos.Save(ctx, tx, r.reader.Head(), r.reader.Gaps(), 0)
		switch {
		case err != nil:
			return err
		case !ok:
			return position.ErrFenced
		case len(r.pending) == 0:
			return nil
		}
		ids, types := make([]int64, len(r.pending)), make([]string, len(r.pending))
		for i, p := range r.pending {
			ids[i], types[i] = p.id, p.eventType
		}
		if _, err := tx.Exec(ctx, sqlUnrouted, ids, types); err != nil {
			return fmt.Errorf("store events without a route: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.e.report(partRouter, nil)
	r.pending, r.dirty, r.savedAt = nil, false, time.Now()
	r.saves++
	return nil
}

func (r *router) publish() {
	gaps := r.reader.Gaps()
	r.figures.Store(&observe.PositionStats{
		Head: r.reader.Head(), Open: int64(len(r.pending)), Gaps: r.e.possible(gaps), Ranges: int64(gaps.Len()),
		OldestGap: r.reader.GapStats().Oldest, Saved: r.saves, SavedAt: r.savedAt,
	})
}

// handBatch is how many events one transaction hands out.
const handBatch = 2000

// sqlWaiting reads a page of rows without a route, in the order of ids.
const sqlWaiting = deliveries.SQLUnroutedPage + `SELECT d.event_id, d.event_type, coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, ''), e.id IS NULL
FROM page AS d LEFT JOIN outbox_events AS e ON e.id = d.event_id ORDER BY d.event_id`

// sqlDecided reads rows from the time as a queue that are due and have no destination yet.
const sqlDecided = `SELECT d.event_id, d.event_type, coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, ''), e.id IS NULL
FROM (SELECT event_id, event_type FROM outbox_deliveries WHERE destination = '' AND state = 'retry' AND available_at <= now()
	ORDER BY available_at, event_id LIMIT $1) AS d
LEFT JOIN outbox_events AS e ON e.id = d.event_id ORDER BY d.event_id`

// sqlHand inserts a row for each destination that gets an event, for the shard to which the event belongs.
func sqlHand() string {
	return `WITH n AS MATERIALIZED (SELECT destination, max(shards) AS shards FROM outbox_positions GROUP BY destination HAVING max(shards) > 1)
INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, shard)
SELECT p.id, p.destination, p.type, p.state, nullif(p.key, ''),
	coalesce((SELECT 1 + ` + outboxsql.Hash("e.") + ` % n.shards FROM n, outbox_events AS e WHERE n.destination = p.destination AND e.id = p.id),
		(SELECT 1 FROM n WHERE n.destination = p.destination), 0)
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[]) AS p(id, destination, type, state, key)
ON CONFLICT DO NOTHING`
}

// handOut gives events that had no route to destinations that get them now, and notifies waiting
// destinations when no such events are left.
func (r *router) handOut(ctx context.Context, conn *session.Conn) error {
	if r.dirty { // events that have just been read may be among them
		if err := r.save(ctx, conn); err != nil {
			return err
		}
	}
	moved, err := r.handStored(ctx, conn)
	if err != nil || ctx.Err() != nil {
		return err
	}
	told, err := r.finish(ctx, conn)
	if err != nil {
		return err
	}
	if moved || told {
		return r.e.announce(ctx, conn)
	}
	return nil
}

// handStored hands out all stored events that have gained a route, in order. Events for a
// destination that has not come yet stay.
func (r *router) handStored(ctx context.Context, conn *session.Conn) (moved bool, err error) {
	if r.unsorted {
		types, err := r.routedTypes(ctx, conn)
		if err != nil {
			return false, err
		}
		for after := int64(math.MinInt64); len(types) > 0 && ctx.Err() == nil; {
			all, err := r.hand(ctx, conn, sqlWaiting, types, after, handBatch)
			if err != nil {
				return moved, err
			}
			if len(all.looked) == 0 {
				break
			}
			moved, after = true, slices.Max(all.looked)
		}
		r.unsorted = ctx.Err() != nil
	}
	for ctx.Err() == nil {
		all, err := r.hand(ctx, conn, sqlDecided, handBatch)
		if err != nil {
			return moved, err
		}
		if len(all.looked) == 0 {
			break
		}
		moved = true
	}
	return moved, nil
}

// routedTypes returns the types of rows without a route that have gained one.
func (r *router) routedTypes(ctx context.Context, conn *session.Conn) ([]string, error) {
	types, err := deliveries.UnroutedTypes(ctx, conn, func(t string) bool { return r.routes.Gotten(r.routes.Of(t)) })
	if err != nil {
		return nil, fmt.Errorf("list event types without a route: %w", err)
	}
	return types, nil
}

// hand hands out some rows, and returns the rows that it has read.
func (r *router) hand(ctx context.Context, conn *session.Conn, query string, args ...any) (all handing, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
		// Locks the position against a successor, and proves that it is ours, and that the loaded
		// routes are current.
		if ok, err := r.pos.Save(ctx, tx, r.reader.Head(), r.reader.Gaps(), 0); err != nil || !ok {
			return cmp.Or(err, position.ErrFenced)
		}
		rows, err := tx.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		all = handing{kept: []int64{}} // never nil: <> ALL (NULL) is never true
		var e delivery.Event
		var missing bool
		_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.Type, &e.AggregateType, &e.AggregateID, &missing}, func() error {
			all.looked = append(all.looked, e.ID)
			if missing {
				all.missing, all.delays = append(all.missing, e.ID), append(all.delays, r.e.missing.Met("", e.ID).Microseconds())
			} else {
				r.share(&all, &e, query == sqlDecided)
			}
			return nil
		})
		if err != nil || len(all.looked) == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, sqlHand(), all.ids, all.names, all.types, all.states, all.keys); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlUndecided, all.kept); err != nil {
			return err
		}
		if len(all.missing) > 0 {
			if _, err := tx.Exec(ctx, sqlMissing, all.missing, all.delays, engine.ClassMissing, engine.ErrMissing.Error()); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `DELETE FROM outbox_deliveries WHERE destination = '' AND event_id = ANY($1) AND event_id <> ALL($2)`,
			all.looked, append(all.kept, all.missing...)) // kept is never nil
		return err
	})
	if err != nil {
		return handing{}, fmt.Errorf("hand out events that had no route: %w", err)
	}
	return all, nil
}

// sqlUndecided records that delayed events from the time as a queue have no route.
const sqlUndecided = `UPDATE outbox_deliveries SET state = 'unrouted', updated_at = now()
WHERE destination = '' AND event_id = ANY($1) AND state <> 'unrouted'`

// sqlMissing makes rows without a destination due later, because their events are missing. Then they are
// decided like those from the time as a queue, since the search for events without a route may have ended.
const sqlMissing = `UPDATE outbox_deliveries AS d SET state = 'retry', updated_at = now(),
	available_at = clock_timestamp() + p.delay * interval '1 microsecond', error_class = $3, last_error = $4
FROM unnest($1::bigint[], $2::bigint[]) AS p(event_id, delay) WHERE d.destination = '' AND d.event_id = p.event_id`

// handing collects the rows to write.
type handing struct {
	looked  []int64 // rows that were read
	missing []int64 // of these, those whose events are missing
	delays  []int64 // until the next looks at them, in microseconds
	kept    []int64 // rows that stay: they have no route, or one to a destination that has not come yet
	ids     []int64
	names   []string
	types   []string
	states  []string
	keys    []string
}

// share adds the rows of an event. A destination that waits for them finds them parked, and begins
// with the first of each aggregate. A working destination has received all events that it had
// passed; but deliveries decided in the time as a queue, and due now, it finds due.
func (r *router) share(all *handing, e *delivery.Event, decided bool) {
	v := r.routes.Of(e.Type)
	if !r.routes.Gotten(v) || !decided && r.routes.Awaited(v) {
		all.kept = append(all.kept, e.ID)
	}
	key := dispatch.OrderingKey(e)
	for to := range r.routes.Takers(v, e.ID) {
		if !decided && to.Handed {
			continue
		}
		state := deliveries.Retry
		if key != "" && !to.Handed {
			state = deliveries.Parked
		}
		all.ids, all.names, all.types = append(all.ids, e.ID), append(all.names, to.Destination), append(all.types, e.Type)
		all.states, all.keys = append(all.states, string(state)), append(all.keys, key)
	}
}

// finish notifies waiting destinations that they have been handed everything: the router has read
// as far as they had when they got their route, and seen all that they have seen.
func (r *router) finish(ctx context.Context, conn *session.Conn) (told bool, err error) {
	for to := range r.complete() {
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
			if ok, err := r.pos.Save(ctx, tx, r.reader.Head(), r.reader.Gaps(), 0); err != nil || !ok {
				return cmp.Or(err, position.ErrFenced)
			}
			return routes.Handed(ctx, tx, to)
		})
		if err != nil {
			return told, fmt.Errorf("finish handing out: %w", err)
		}
		to.Handed, told = true, true
	}
	return told, nil
}
