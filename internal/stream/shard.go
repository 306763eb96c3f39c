package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/aggregates"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/exactly"
	"github.com/notifyd/notifyd/internal/flight"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/replay"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/internal/withheld"
	"github.com/notifyd/notifyd/observe"
)

const (
	// skipAhead is the ratio of rows to events in one read, while most rows are of types that other destinations get.
	skipAhead = 10
	// handPoll is how often a destination checks whether the unrouted scanner has handed over its events.
	handPoll = 50 * time.Millisecond
	// heldPoll is the pause until new events may be read again, after many events had to wait for failed ones of their
	// aggregates.
	heldPoll = 50 * time.Millisecond
)

// shard reads the table for one shard of a destination, hands the events to the lane, and records their outcomes. One
// goroutine does all of it, one step after the other, so the order of steps is the only order. Only answers come from
// other goroutines, in the batches.
//
// Its parts own its memory. They know common, and get the rest from the shard, step by step. The shard owns the order
// of the steps and the resulting position. Some parts have pointers into the shard, so it must not be copied.
type shard struct {
	common

	reader   *tail.Reader
	inFlight inFlight
	stored   stored
	progress progress
	next     next
	types    routes.Types
	order    order
	former   position.Former   // the ids above the head that former shards may have done
	exact    *exactly.Position // nil unless the destination keeps a copy of its position
	replay   *replay.Sender

	checkAt      time.Time // next check of the sequence
	routed       bool      // the routes are stored
	loaded       bool      // the stored rows are loaded
	from         int64     // the head when it began to read
	yielded      bool      // there may be more work, but other shards wait for the connection
	readLittle   bool      // the last read had the first gap only, because many events wait for it
	totalBlocked bool      // its only queue is blocked: it reads nothing

	figures atomic.Pointer[observe.PositionStats]
	seen    atomic.Pointer[seen] // nil before the first read
	hint    atomic.Bool          // there may be events to read
	seek    atomic.Bool          // rows may be due
}

func newShard(e *Engine, lane dispatch.StreamLane, p position.Position) *shard {
	sh := &shard{
		common: common{
			e: e, name: p.Destination, reportAs: reportName(shardKey{p.Destination, p.Shard}),
			lane: lane, limit: newLimit(lane.Destination()), pos: p, wake: make(chan struct{}, 1),
		},
		order: newOrder(lane, e.keys),
	}

	sh.exact = e.exact(lane.Destination(), &sh.pos, func(ctx context.Context, f func(*session.Conn) error) error {
		return e.pool.use(ctx, &sh.pos.Lease, f)
	})
	sh.pos.Exact = sh.exact != nil

	sh.replay = replay.NewSender(sh.forReplay())
	sh.inFlight = inFlight{common: &sh.common, checkpoints: sh.pos.Exact}

	sh.inFlight.store = func(a *dispatch.Answer) {
		sh.answered(a)
		sh.progress.dirty = true
	}

	sh.reset(p.Watermark)
	sh.figures.Store(&observe.PositionStats{Destination: p.Destination, Shard: p.Shard, Loading: true, Head: p.Head})
	return sh
}

// forReplay returns the shard's interface to a replay.
func (sh *shard) forReplay() replay.Shard {
	s := replay.Shard{
		Outbox:  sh.e.Outbox,
		Lane:    sh.lane,
		Keys:    sh.e.keys,
		Limits:  sh.e.limits,
		Writers: sh.e.writers,
		Log:     sh.e.log,
		Gets:    sh.gets,
		Passes:  sh.passes,
		Valid:   sh.pos.Valid,
		Wake:    sh.poke,
		Changed: func() { sh.progress.dirty = true },
		Write:   sh.writeOwned,
	}

	if sh.limit != nil {
		s.Page = sh.limit.page
	}
	return s
}

// reset returns the memory of the shard to the state after a take-over.
func (sh *shard) reset(at idset.Watermark) {
	sh.reader = tail.NewReader(at.Head, at.Open, sh.e.writers)
	sh.from = at.Head

	sh.inFlight.events = flight.New(sh.pos.Valid, sh.poke)
	sh.stored = newStored(&sh.common, &sh.order, &sh.progress)
	sh.progress = progress{}
	sh.next = next{gapWait: firstGapPoll}
	sh.types = routes.NewTypes()
	sh.former = sh.pos.Former

	sh.checkAt = time.Time{}
	sh.routed = false
	sh.loaded = false
	sh.totalBlocked = false
	sh.readLittle = false

	sh.replay.Forget()
	sh.exact.Forget()

	sh.hint.Store(true)
}

// run works until ctx ends, which means that the shard must be released. When it returns, no delivery is running. It
// returns an error if the shard is lost.
func (sh *shard) run(ctx context.Context) error {
	sh.lane.Own(sh.poke)
	pauses := store.NewPauses()
	defer sh.e.accepted(sh.reportAs)
	defer sh.e.accepted(sh.reportSingle())
	defer sh.publish()

	for ctx.Err() == nil {
		err := sh.openExact(ctx)
		if err == nil {
			err = sh.e.pool.use(ctx, &sh.pos.Lease, func(conn *session.Conn) error {
				return engine.Protected("a shard", func() error {
					if ok, err := sh.prepare(ctx, conn); err != nil || !ok {
						return err
					}
					return sh.work(ctx, conn)
				})
			})
		}

		sh.publish()
		switch {
		case errors.Is(err, position.ErrFenced), errors.Is(err, lease.ErrMoved), errors.Is(err, engine.ErrPanicked), permanent(err):
			return sh.leave(ctx, err)
		case errors.Is(err, errReopen):
			if err := sh.restart(ctx); err != nil {
				return err
			}
		case err != nil && ctx.Err() == nil:
			sh.e.report(sh.reportAs, err)
			sleep.For(ctx, pauses.After(err))
		case err == nil:
			pauses.Reset()
			sh.accepted()
			if !sh.yielded {
				sh.wait(ctx)
			}
		}
	}
	return sh.leave(ctx, nil)
}

// accepted ends the report of a refused statement, unless the search for due rows is still refused. Events of the table are
// read meanwhile.
func (sh *shard) accepted() {
	if !sh.stored.due.Refused {
		sh.e.accepted(sh.reportAs)
	}
}

// errReopen discards the memory of a shard: the copy of the position at the destination decides.
var errReopen = errors.New("the outcome of a transaction is unknown")

// openExact reads the copy of the position at the destination, before anything else is read.
func (sh *shard) openExact(ctx context.Context) error {
	if sh.exact.Opened() {
		return nil
	}

	// First, because Open moves the position to the copy.
	err := sh.e.pool.use(ctx, &sh.pos.Lease, func(conn *session.Conn) error { return sh.checkIDs(ctx, conn) })
	if err != nil {
		return err
	}

	at, err := sh.exact.Open(ctx)
	if err != nil {
		return err
	}

	sh.reader = tail.NewReader(at.Head, at.Open, sh.e.writers)
	sh.from = at.Head
	return nil
}

// releaseStaged hands the staged batches to the lane, after a checkpoint.
func (sh *shard) releaseStaged(ctx context.Context, conn *session.Conn) error {
	switch {
	case sh.exact.MustReopen():
		return errReopen
	case len(sh.inFlight.staged) == 0:
		return nil
	}

	if err := sh.exact.Checkpoint(ctx, conn); err != nil {
		return err
	}

	sh.exact.Advance(sh.watermark(true), maps.Keys(sh.stored.running))
	sh.inFlight.release()
	return nil
}

// restart discards the memory of the shard, once none of its deliveries is in flight, and begins at the destination's
// copy of the position.
func (sh *shard) restart(ctx context.Context) error {
	if !sh.drain() {
		return sh.lastSave(ctx, nil)
	}

	if !sh.stored.pending.empty() || sh.replay.Running() {
		// The destination keeps neither certain failures nor the deliveries of a replay. If this write fails, the
		// events are read again.
		if err := sh.e.pool.use(ctx, &sh.pos.Lease, func(conn *session.Conn) error { return sh.save(ctx, conn) }); err != nil {
			sh.e.report(sh.reportAs, err)
		}
	}

	counted := sh.progress
	sh.reset(sh.pos.Watermark)
	sh.progress.acknowledged = counted.acknowledged
	sh.progress.written = counted.acknowledged
	sh.progress.saves = counted.saves

	sh.lane.Own(sh.poke)
	return nil
}

// checkIDs checks the ids that the shard has passed.
func (sh *shard) checkIDs(ctx context.Context, conn *session.Conn) error {
	if err := sh.pos.CheckIDs(ctx, conn, sh.e.Log, sh.reader.Watermark()); err != nil {
		return err
	}

	sh.checkAt = time.Now().Add(sh.e.limits.PollInterval)
	return nil
}

// prepare does the work that precedes the first read, and once per poll interval. It reports whether that work is complete.
func (sh *shard) prepare(ctx context.Context, conn *session.Conn) (done bool, err error) {
	l := loader{common: &sh.common, order: &sh.order, stored: &sh.stored, reader: sh.reader, write: sh.writeOwned}

	if !time.Now().Before(sh.checkAt) {
		if err := sh.checkIDs(ctx, conn); err != nil {
			return false, err
		}
		if sh.loaded {
			return true, l.findParked(ctx, conn)
		}
	}

	if sh.loaded {
		return true, nil
	}

	if ok, err := sh.handed(ctx, conn); err != nil || !ok {
		sh.next.at = time.Now().Add(handPoll)
		return false, err
	}

	if err := l.load(ctx, conn); err != nil {
		return false, err
	}

	// A delayed event that is due may come after events that the previous owner had in memory.
	if sh.order.kept && !sh.order.total && sh.reader.Gaps().Len() > 0 {
		sh.stored.readThrough = max(sh.stored.readThrough, sh.reader.Head())
	}

	// If another shard was ahead when the routes changed, events from the unrouted scanner may come after unread
	// events.
	if sh.order.kept {
		sh.stored.readThrough = max(sh.stored.readThrough, sh.types.Before.Head)
	}

	// Before the stored queues are checked.
	if err := sh.replay.Find(ctx, conn); err != nil {
		return false, err
	}

	sh.loaded = true
	return true, nil
}

// handed reports whether the destination has got all events that had no route before it had one. The first call stores
// the routes of the destination.
func (sh *shard) handed(ctx context.Context, conn *session.Conn) (bool, error) {
	if !sh.routed {
		if err := sh.storeRoutes(ctx, conn); err != nil {
			return false, fmt.Errorf("store the routes of %q: %w", sh.name, err)
		}
		sh.routed = true
	}
	waits, err := routes.Unhanded(ctx, conn, sh.name)
	return !waits, err
}

// storeRoutes stores the routes of the destination, if they have changed, and remembers the former routes that still
// apply to unread events.
func (sh *shard) storeRoutes(ctx context.Context, conn *session.Conn) error {
	wanted := sh.e.wantedOf(sh.name)
	changed := false
	sh.pos.WriteWhole() // the routes begin at the position
	err := sh.writeOwned(ctx, conn, func(tx pgx.Tx) error {
		all, err := routes.Read(ctx, tx, &sh.name)
		if err != nil {
			return err
		}

		// The shard will read its open events with the current routes.
		at := sh.watermark(true)

		last := routes.Newest(all)
		changed = last == nil || !last.Equal(&wanted.Routes)
		if changed && sh.pos.Shards > 1 {
			return errLayout // the routes change for all shards together
		}

		if changed {
			change := routes.Change{All: sh.e.routes, To: wanted.Wanted, Last: last, At: sh.former.Passed(at), Passed: at}
			if err := change.Store(ctx, tx); err != nil {
				return err
			}
			all, err = routes.Read(ctx, tx, &sh.name)
			if err != nil {
				return err
			}
			last = routes.Newest(all)
		}

		if !last.From.Within(at) { // only if the destination has, or had, several shards
			sh.types.Before = last.From
		}

		sh.types.Former = slices.DeleteFunc(all, func(s routes.Range) bool { return !s.Ended || s.Until.Within(at) })
		return routes.Noted(ctx, tx, sh.name)
	})

	if err == nil && changed {
		return sh.e.announce(ctx, conn)
	}
	return err
}

// work works for as long as there is anything to do.
func (sh *shard) work(ctx context.Context, conn *session.Conn) error {
	began := time.Now()
	defer func() { sh.reader.Wait() }()

	for ctx.Err() == nil {
		sh.collect()
		sh.reader.Wait() // a begun read may be using the connection
		if err := sh.releaseStaged(ctx, conn); err != nil {
			return err
		}

		mustCheck := !time.Now().Before(sh.checkAt)
		sh.yielded = mustCheck || sh.e.pool.mustYield(began)
		if sh.yielded {
			return nil
		}

		if sh.seek.Swap(false) {
			sh.stored.due.Now()
			sh.replay.FindNow()
		}

		if err := sh.replay.Find(ctx, conn); err != nil {
			return err
		}

		sh.stored.retryWithheld()
		if sh.progress.due() || sh.stored.aggregates.AnyNext() || sh.stored.mustWrite() {
			if err := sh.store(ctx, conn); err != nil {
				return err
			}
		}

		did, err := sh.feed(ctx, conn)
		if err != nil {
			return err
		}

		if !did {
			return sh.findWriters(ctx, conn)
		}
	}
	return nil
}

// collect processes the answers.
func (sh *shard) collect() {
	acknowledged, changed := sh.inFlight.events.Take(sh.answered)
	sh.progress.acknowledged += acknowledged

	replayed := sh.replay.Take(func(a *dispatch.Answer, row deliveries.Entry) {
		sh.stored.settle(a, entry{
			Entry:    row,
			replayed: true,
		})
	}, sh.exact.NoteReturned)

	sh.progress.dirty = sh.progress.dirty || changed || replayed
}

// answered records the outcome of a delivery. It is not called for a fresh event that was delivered.
func (sh *shard) answered(a *dispatch.Answer) {
	if a.Verdict == dispatch.VerdictReleased {
		sh.inFlight.events.Return(a.Delivery)
		sh.exact.NoteReturned(a.Err)
		return
	}
	sh.stored.settle(a, entry{Entry: deliveries.Entry{Key: sh.stored.nameOf(a)}})
}

// feed hands the next events to the lane, if the lane has capacity. It reports whether it did anything.
func (sh *shard) feed(ctx context.Context, conn *session.Conn) (did bool, err error) {
	if o := sh.lane.Order(dispatch.Key{}); o.Stopped {
		sh.collect()
		if !sh.lane.GoOn(o.Returned) {
			return true, nil
		}
	}

	sh.totalBlocked = false
	held := sh.stored.totalHeld()
	if n := sh.unheld(); n > 0 && !held {
		if sh.fewToChoose(n) {
			did, err = sh.read(ctx, conn)
			if did || err != nil {
				return did, err
			}
		}
		return sh.inFlight.deliverReturned(0, n), nil
	}
	if sh.inFlight.cannotSend() {
		return false, nil
	}
	if sh.stored.readThrough > 0 {
		return sh.read(ctx, conn)
	}

	if held { // of the returned deliveries, only the stored event goes that blocks all others
		if i := slices.IndexFunc(sh.inFlight.events.Returned, func(d dispatch.Delivery) bool { return d.Leads }); i >= 0 {
			return sh.inFlight.deliverReturned(i, 1), nil
		}
	}

	// A total order takes all due rows before other rows: a row without a name blocks nothing until it is taken.
	first := sh.order.total && sh.stored.due.IsDue(time.Now())
	if !first && sh.stored.aggregates.AnyReady() {
		return sh.feedStored(ctx, conn)
	}
	sh.stored.dueTurn = !sh.stored.dueTurn || first
	if sh.stored.dueTurn && sh.stored.due.IsDue(time.Now()) {
		did, err = sh.feedDue(ctx, conn)
		if did || err != nil {
			return did, err
		}
		if first && sh.stored.due.IsDue(time.Now()) { // the lane has no capacity
			if held {
				sh.e.began()
			}
			return false, nil
		}
	}

	sh.totalBlocked = sh.stored.totalHeld()
	if sh.totalBlocked {
		sh.e.began()
		return false, nil
	}

	did, err = sh.read(ctx, conn)
	if did || err != nil || sh.inFlight.full {
		return did, err
	}
	return sh.feedReplay(ctx, conn)
}

// heldFrom returns the first id that must wait for a gap: in a total order, the id of the first gap.
func (sh *shard) heldFrom() int64 {
	if sh.order.total {
		return sh.reader.FirstGap()
	}
	return math.MaxInt64
}

// unheld returns how many of the returned deliveries may go.
func (sh *shard) unheld() int {
	byID := func(d dispatch.Delivery, id int64) int { return cmp.Compare(d.Event.ID, id) }
	n, _ := slices.BinarySearchFunc(sh.inFlight.events.Returned, sh.heldFrom(), byID)
	return n
}

// fewToChoose reports whether the lane wants to choose its next delivery among more than n. The returned ones alone may
// all be bad events, and the good ones behind them. With exactly once, more events to choose among would be more ids in
// the copy of the position.
func (sh *shard) fewToChoose(n int) bool {
	if sh.order.total || sh.exact != nil {
		return false
	}

	among, ok := sh.lane.Chooses()
	return ok && n < among
}

// holdsMany reports whether only the first gap must be read: events wait behind it, and the returned deliveries fill a
// batch or their memory.
func (sh *shard) holdsMany() bool {
	all := sh.inFlight.events.Returned
	return sh.unheld() < len(all) && (len(all) >= sh.e.limits.Batch || flight.Size(all) >= sh.e.memory())
}

// feedReplay hands over events of a replay, within the capacity that live events leave. It reports whether it did
// anything.
func (sh *shard) feedReplay(ctx context.Context, conn *session.Conn) (did bool, err error) {
	p, caughtUp, did, err := sh.replay.Next(ctx, conn, replay.Live{
		Head: sh.reader.Head(), FreeBytes: sh.e.memory()/2 - sh.inFlight.events.Bytes,
		Open: func() idset.Set {
			return sh.watermark(true).Open
		},
	})

	if p != nil {
		sh.inFlight.send(p, nil)
	}

	if caughtUp {
		sh.stored.due.Now()
	}
	return did, err
}

// read reads the next events of the table.
func (sh *shard) read(ctx context.Context, conn *session.Conn) (did bool, err error) {
	if !sh.readsNow() {
		return false, nil
	}

	if sh.stored.readThrough == 0 && sh.lane.Waits(false) {
		sh.next.at = time.Now().Add(heldPoll) // stored deliveries go first
		return false, nil
	}

	reserved := sh.inFlight.reserve(sh.e.limits.Batch)
	if reserved == 0 {
		return false, nil
	}
	return sh.readNext(ctx, conn, reserved)
}

// readsNow reports whether the table must be read.
func (sh *shard) readsNow() bool {
	if sh.next.more || !time.Now().Before(sh.next.at) {
		return true
	}
	isAsked := sh.hint.Load() || sh.stored.readThrough > 0
	return isAsked || sh.readLittle && !sh.holdsMany()
}

// readNext reads up to reserved events, for which the lane has capacity.
func (sh *shard) readNext(ctx context.Context, conn *session.Conn, reserved int) (did bool, err error) {
	now := time.Now()

	before := sh.reader.Head()
	goes := sh.unheld()
	announced, b, err := sh.nextBatch(ctx, conn, reserved)
	if err != nil {
		sh.lane.Return(reserved)
		// A reader cannot be used after an error, and has not moved.
		sh.reader = sh.reader.After(sh.reader.Head(), sh.reader.Gaps())
		sh.hint.Store(true)
		return false, err
	}

	sh.setFull(b.Full)
	capacity := sh.e.memory() - sh.inFlight.events.Bytes - b.Bytes
	isFull := b.Full && reserved == sh.e.limits.Batch
	if isFull && capacity > 0 && sh.mayReadAhead() {
		q := sh.query(ctx, reserved)
		q.Bytes = min(q.Bytes, capacity)
		sh.reader.Begin(ctx, conn, q) // runs while this batch is handed over
	}

	sh.deliver(&b, reserved)
	sh.types.Forget(sh.reader.Watermark())
	if b.Seen > 0 && sh.pos.Shards == 1 { // a shard does not learn the types of the others
		sh.seen.Store(&seen{tail.Seen{From: sh.from, Head: sh.reader.Head(), Gaps: sh.reader.Gaps()}, sh.types.Met()})
	}

	if len(sh.former) > 0 && sh.former.Finished(sh.reader.Watermark()) {
		sh.former = nil
	}

	// The death of ids is progress as well.
	gapIDs := sh.reader.Gaps().IDs()
	if sh.reader.Head() != before || b.Seen > 0 || gapIDs != sh.next.gapIDs {
		sh.progress.dirty = true
	}

	sh.e.wake.Saw(b.Seen, b.Full, announced)
	sh.next.plan(now, sh.e.wake.Pause(), sh.e.limits.PollInterval, b.Seen > 0, gapIDs)

	isThrough := !b.Full || b.Last > before && sh.reader.Head() >= sh.stored.readThrough // the gaps come first
	if sh.stored.readThrough > 0 && isThrough {
		sh.stored.readThrough = 0
		sh.progress.dirty = true
	}

	sh.e.began()
	return b.Full || b.Seen > 0 || sh.unheld() > goes, nil
}

// mayReadAhead reports whether the next batch may be read before this one is handed over: its events wait for nothing.
func (sh *shard) mayReadAhead() bool {
	return sh.stored.readThrough == 0 && sh.exact == nil && sh.heldFrom() == math.MaxInt64
}

// freshFor is how long a batch that was read ahead stays usable, from the begin of its read. Later its delays are
// wrong, and it is read again.
const freshFor = time.Second

// nextBatch returns the batch that was read ahead, or reads one. announced reports that events were announced before.
func (sh *shard) nextBatch(ctx context.Context, conn *session.Conn, reserved int) (announced bool, b tail.Batch, err error) {
	if at, ok := sh.reader.Begun(); ok && time.Since(at) < freshFor {
		b, err = sh.reader.Take()
		return sh.hint.Load(), b, err // events may have been announced after the read began, so another read follows
	}

	q := sh.query(ctx, reserved)
	announced = sh.hint.Swap(false)
	sh.readLittle = q.Reach == tail.ReachFirstGap
	b, err = sh.reader.Read(ctx, conn, q)
	return announced, b, err
}

// query returns a read of up to n events.
func (sh *shard) query(ctx context.Context, n int) tail.Query {
	q := tail.Query{
		Shard:      sh.tailShard(),
		Limit:      n,
		Rows:       skipAhead * n,
		Bytes:      sh.e.limits.Bytes,
		EventBytes: sh.e.limits.EventBytes,
		Skip:       sh.types.Skip,
		Assigned:   sh.e.last.Load(),
	}

	switch {
	case sh.holdsMany():
		q.Reach = tail.ReachFirstGap
	case sh.exact.OnlyGaps(ctx, sh.reader), sh.order.total && sh.hasReadHead():
		q.Reach = tail.ReachGaps
	}
	return q
}

// hasReadHead reports whether only gaps are left of the events that must be read before others are delivered.
func (sh *shard) hasReadHead() bool {
	return sh.stored.readThrough > 0 && sh.stored.readThrough <= sh.reader.Head()
}

// tailShard returns the shard to read if the destination has several, or had until recently: then the hashes tell which
// events former shards have done.
func (sh *shard) tailShard() tail.Shard {
	if sh.pos.Shards == 1 && len(sh.former) == 0 {
		return tail.Shard{}
	}
	return tail.Shard{Number: sh.pos.Shard, Of: sh.pos.Shards}
}

// setFull records whether there is more to read, also in the state of the relay.
func (sh *shard) setFull(full bool) {
	switch {
	case full && !sh.next.more:
		sh.e.wake.Behind(1)
	case !full && sh.next.more:
		sh.e.wake.Behind(-1)
	}
	sh.next.more = full
}

// deliver filters the events of a read by routes and hands them to the lane.
func (sh *shard) deliver(b *tail.Batch, reserved int) {
	p := sh.inFlight.batch()
	all := p.Alloc(len(b.Events))
	eventType := "" // of the previous event: often the same
	wanted := false

	for i := range b.Events {
		e := &b.Events[i]
		if i == 0 || e.Type != eventType {
			eventType = e.Type
			wanted = sh.types.Wants(e.Type, sh.gets)
		}

		if (!wanted || sh.types.Before.Has(e.ID)) && !sh.types.Formerly(e.Type, e.ID) {
			continue
		}
		if b.Hashes != nil && sh.former.Done(e.ID, b.Hashes[i]) {
			continue
		}

		e.Destination = sh.name
		e.Outbox = sh.e.Outbox
		e.Attempt = 1
		if b.Delays != nil && b.Delays[i] > 0 {
			late := deliveries.Entry{
				Ref:       deliveries.Ref{EventID: e.ID},
				EventType: e.Type,
				State:     deliveries.Retry,
				Delay:     b.Delays[i],
				Own:       true,
			}
			sh.stored.pending.put(entry{Entry: late, fresh: true, available: b.Clock.After(b.Delays[i])})
			continue
		}

		if sh.stored.storesUntried(e.ID) {
			sh.stored.addPending(entry{
				Entry: deliveries.Entry{
					Ref:       deliveries.Ref{EventID: e.ID},
					EventType: e.Type,
					State:     deliveries.Parked,
					Key:       sh.order.name(e),
				},
				fresh: true,
			}, sh.order.totalKey)
			sh.stored.aggregates.Move(sh.order.totalKey, totalName, aggregates.Parked)
			continue
		}

		passes, refused := sh.passes(e, b.Refused[e.ID])
		if !passes {
			continue // the position passes the event
		}

		written := b.Clock.Here(e.CreatedAt)
		d := dispatch.Delivery{Event: e, Refused: refused, Expires: sh.lane.Destination().Expires(written, time.Time{})}
		if b.Delays != nil && b.Delays[i] < 0 {
			d.Expires = sh.lane.Destination().Expires(written, time.Now().Add(b.Delays[i]))
		}
		d.Key = sh.order.of(e)
		all = append(all, d)
	}

	n := min(reserved, len(all)) // the rest is the surplus of a batch that was read ahead
	if len(sh.inFlight.events.Returned) > 0 || sh.heldFrom() < math.MaxInt64 {
		n = 0 // feed hands over the returned deliveries in the order of ids, up to the first gap
	}

	for _, d := range all[n:] {
		sh.inFlight.events.Return(d)
	}
	sh.inFlight.deliver(p, all[:n], nil, reserved)
}

// save writes the position and the outcomes in one transaction, which writes nothing if this relay no longer owns the
// shard. It does not end with ctx: an interrupted statement may reach the server after the last write of the shard, and
// move the position back.
func (sh *shard) save(ctx context.Context, conn *session.Conn) error {
	limit := position.RoundTrip

	if at, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(at))
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, position.ErrSlow)
	defer cancel()

	if sh.exact != nil {
		// A failure until now is a row, and passed; a later failure is neither. A successor that found both would
		// deliver the event twice.
		sh.collect()
	}

	return sh.saveSnapshot(ctx, conn, sh.snapshot())
}

// snapshot begins a write. Events acknowledged later belong to the next write: in this one they are open.
func (sh *shard) snapshot() (c snapshot) {
	sh.progress.dirty = false

	c.at = sh.watermark(false)
	sh.noteRanges(len(c.at.Open))
	c.replay = sh.replay.Progress(sh.stored.withheld.Rows.fresh(true))
	return c
}

// noteRanges records the number of ranges of the position. It logs when there are many, with the server processes that
// may fill the oldest gap; 0 stands for a prepared transaction.
func (sh *shard) noteRanges(n int) {
	were := sh.progress.ranges

	sh.progress.ranges = n
	if n <= observe.ManyRanges || were > observe.ManyRanges {
		return
	}
	sh.e.log.Warn("a position has many open ranges: a crash repeats the deliveries of some seconds",
		"destination", sh.name, "shard", sh.pos.Shard, "ranges", n, "pids", sh.reader.GapStats().PIDs)
}

// saveSnapshot writes the snapshot. Deliveries continue meanwhile.
func (sh *shard) saveSnapshot(ctx context.Context, conn *session.Conn, c snapshot) error {
	began := time.Now()
	// Rows delivered before the snapshot must be removed with it. An event that has failed since is both open and a row
	// until the next write: the row counts.
	if sh.exact == nil {
		sh.collect()
	}

	delta := sh.progress.acknowledged - sh.progress.written
	w := &sh.stored.pending
	c.replay.CountFailed()

	if w.empty() && c.replay.Empty() {
		ok, err := sh.pos.Save(ctx, conn, c.at, delta)
		return sh.saved(ok, err, delta, began)
	}

	ok := false
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) (err error) {
		// First, because it locks the position against a successor.
		ok, err = sh.pos.Save(ctx, tx, c.at, delta)
		if err != nil || !ok {
			return cmp.Or(err, position.ErrFenced)
		}
		err = c.replay.Write(ctx, tx)
		if err != nil {
			return err
		}
		return w.write(ctx, tx, sh.name, sh.order.shard, sh.e.channel())
	})

	if err == nil {
		sh.replay.Written(&c.replay)
		// After the commit: a search for due rows finds only written ones.
		sh.stored.pendingWritten()
		sh.stored.nothingWithheld()
	}

	refusesRow := session.IsOfRow(err) && !conn.IsClosed()
	if ok && refusesRow && !w.empty() {
		delta = 0
		err = sh.saveInHalves(ctx, conn, err)
	}

	return sh.saved(ok, err, delta, began)
}

// wholeError hides the code of a refusal that is not of one row.
type wholeError struct{ error }

// wholeOf returns the error in a wholeError, and other errors as they are.
func wholeOf(err error) error {
	if whole, is := errors.AsType[wholeError](err); is {
		return whole.error
	}
	return err
}

// saveInHalves withholds the pending rows that the database refuses, and writes the others. It returns refusal, the error
// of the write of all rows together, if none is refused alone.
func (sh *shard) saveInHalves(ctx context.Context, conn *session.Conn, refusal error) error {
	s := &sh.stored
	all := s.pending

	buried := false
	refused, err := session.InHalves(all.events(), func(some []int64) error {
		part := all.of(some)
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
			// The next save passes the rows.
			if ok, err := sh.pos.Save(ctx, tx, sh.watermark(true), 0); err != nil || !ok {
				return wholeError{cmp.Or(err, position.ErrFenced)}
			}
			return part.write(ctx, tx, sh.name, sh.order.shard, sh.e.channel())
		})
		buried = buried || err == nil && part.then&checksBuried != 0
		return err
	})

	if err == nil && s.withheld.Rows.len()+len(refused) > withheld.Max {
		err = fmt.Errorf("%w: %w", withheld.ErrTooMany, refused[0].Err)
	}
	if err != nil {
		return wholeOf(err) // the rows that are written are written again
	}

	ids := make([]int64, 0, len(refused))
	for _, r := range refused {
		ids = append(ids, r.Item)
		s.withheld.Name(ctx, s.e.log, r.Item, s.name, r.Err)
	}
	s.pending = all.of(slices.DeleteFunc(all.events(), func(id int64) bool { return slices.Contains(ids, id) }))
	if buried {
		s.pending.then |= checksBuried
	}
	s.pendingWritten()
	s.withhold(all.of(ids))
	sh.progress.dirty = true
	if len(refused) == 0 {
		return refusal
	}
	sh.e.report(sh.reportSingle(), &withheld.Error{Event: refused[0].Item, N: s.withheld.Rows.len(), Err: refused[0].Err})
	return session.ForgetIgnored(ctx, conn.Conn, refused[0].Err)
}

// writeOwned writes rows other than the position, if this relay still owns the shard.
func (sh *shard) writeOwned(ctx context.Context, conn *session.Conn, f func(pgx.Tx) error) error {
	defer func() { sh.progress.dirty = sh.progress.dirty || sh.pos.Behind() }()
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
		at := sh.watermark(true)
		// It locks the position against a successor.
		if ok, err := sh.pos.Save(ctx, tx, at, 0); err != nil || !ok {
			return cmp.Or(err, position.ErrFenced)
		}
		return f(tx)
	})
}

// saved records the result of a write, and when it began.
func (sh *shard) saved(ok bool, err error, delta int64, began time.Time) error {
	sh.progress.dirty = sh.progress.dirty || err != nil || sh.pos.Behind()
	switch {
	case !ok && (err == nil || errors.Is(err, position.ErrFenced)):
		return position.ErrFenced
	case err != nil:
		return fmt.Errorf("write the position of %q: %w", sh.name, err)
	}
	sh.progress.saved(delta, began)
	return nil
}

// feedDue hands over due rows. After the last one, the search starts over when the next row is due.
func (sh *shard) feedDue(ctx context.Context, conn *session.Conn) (did bool, err error) {
	sh.inFlight.full = !sh.order.total && sh.lane.Waits(true)
	if sh.inFlight.full { // in a total order no new event goes before the only queue
		return false, nil
	}

	reserved := sh.inFlight.reserve(sh.e.limits.Batch)
	if reserved == 0 {
		return false, nil
	}

	sh.stored.failures = sh.lane.Order(dispatch.Key{}).Failures
	sh.collect() // failures until now are rows; later ones stop the lane from starting rows that lead their queues
	rows, more, err := sh.stored.readDue(ctx, conn, reserved)

	if err == nil && sh.stored.unwritten(rows) {
		sh.lane.Return(reserved)
		return true, sh.store(ctx, conn)
	}

	if err == nil && !more {
		more, err = sh.stored.endSearch(ctx, conn)
	}

	sh.stored.due.Refused = err != nil
	if err != nil {
		sh.lane.Return(reserved)
		return false, err
	}

	pending := len(sh.stored.pending.rows)
	all := make([]dispatch.Delivery, 0, len(rows))
	for i := range rows {
		if r := &rows[i]; !sh.replay.Holds(r.Key) && !sh.stored.withheld.Holds(sh.order.queue(r.Key), r.Event.ID) {
			all = sh.stored.takeDue(all, r)
		}
	}

	sh.stored.untried = len(sh.stored.pending.rows)-pending > len(all)

	if len(all) == 0 && !more {
		sh.stored.foundNone()
	}
	// Rows that are due together go in the order of ids.
	slices.SortFunc(all, func(a, b dispatch.Delivery) int { return cmp.Compare(a.Event.ID, b.Event.ID) })
	sh.inFlight.deliver(sh.inFlight.batch(), all, nil, reserved)
	return len(all) > 0 || more || sh.stored.aggregates.AnyReady(), nil
}

// store writes the pending rows, and then continues the queues whose first rows are finished. It writes first, so that
// it reads the queues as they are.
func (sh *shard) store(ctx context.Context, conn *session.Conn) error {
	if err := sh.save(ctx, conn); err != nil {
		return err
	}
	sh.accepted()
	holds := func(name string) bool { return sh.replay.Holds(name) || sh.stored.withheld.Holds(name, math.MaxInt64) }
	sh.stored.aggregates.Wrote(holds)
	return sh.stored.checkParked(ctx, conn, holds)
}

// feedStored continues aggregates that are ready. An aggregate is unblocked at the moment when its last stored row is
// handed over.
func (sh *shard) feedStored(ctx context.Context, conn *session.Conn) (did bool, err error) {
	// Unwritten rows may come before the stored ones.
	sh.stored.failures = sh.lane.Order(dispatch.Key{}).Failures
	sh.collect()
	switch {
	case !sh.stored.aggregates.AnyReady(): // the answers have moved the aggregates to other steps
		return true, nil
	case sh.stored.aggregates.UnwrittenReady():
		return true, sh.store(ctx, conn)
	}

	reserved := sh.inFlight.reserve(sh.e.limits.Batch)
	if reserved == 0 {
		return false, nil
	}

	read, err := sh.stored.readFirst(ctx, conn, reserved)
	if err != nil {
		sh.lane.Return(reserved)
		return false, err
	}

	sh.collect() // rows parked until now are among the pending ones
	all, unblock := sh.stored.takeFirst(&read)
	sh.inFlight.deliver(sh.inFlight.batch(), all, unblock, reserved)
	return true, nil
}

// findWriters finds the transactions that may fill gaps, if a scan is due.
func (sh *shard) findWriters(ctx context.Context, conn *session.Conn) error {
	if sh.totalBlocked || !sh.reader.NeedsScan(time.Now()) { // a scan is useful only before a read
		return nil
	}

	l, err := sh.e.writers.Scan(ctx, conn, sh.pos.Server)
	if err != nil || l == nil {
		return err
	}

	sh.reader.Apply(l)
	sh.next.at = time.Now() // gaps that have ended can be read now
	return nil
}

// wait waits until there is work.
func (sh *shard) wait(ctx context.Context) {
	at := time.Now().Add(sh.e.limits.PollInterval)

	if sh.progress.dirty {
		at = earlier(at, sh.progress.dueAt())
	}
	if !sh.stored.withheld.Rows.empty() {
		at = earlier(at, sh.stored.withheld.Until())
	}

	switch {
	case !sh.loaded:
		at = earlier(at, sh.next.at)
	case sh.totalBlocked:
		at = earlier(at, sh.stored.due.At())
	case !sh.inFlight.full:
		at = earlier(earlier(at, sh.next.at), earlier(sh.stored.due.At(), sh.replay.Due(at)))
		if scan, ok := sh.reader.NextScan(); ok {
			at = earlier(at, scan)
		}
	case sh.inFlight.leaseInvalid:
		at = earlier(at, time.Now().Add(leasePoll))
	}

	timer := time.NewTimer(max(0, time.Until(at)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-sh.wake:
	case <-timer.C:
	}
}

// leasePoll is how often a shard checks whether its lease is valid again.
const leasePoll = 20 * time.Millisecond

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// watermark returns the position to write. Withheld rows are open. With pending, rows that are not written yet are open;
// without, the same transaction writes them.
func (sh *shard) watermark(pending bool) idset.Watermark {
	more := sh.stored.withheld.Rows.fresh(false)
	if pending {
		more = append(more, sh.stored.pending.fresh(false)...)
	}
	at, _ := sh.inFlight.events.Watermark(sh.reader, more)
	return at
}

// leave ends a shard: no delivery starts, running ones finish, and the position is written. If why is set, the shard
// already belongs to another relay, and leave writes nothing. The successor repeats all deliveries that the position
// does not show as acknowledged.
func (sh *shard) leave(ctx context.Context, why error) error {
	if sh.drain() {
		sh.lane.Disown()
	}
	return errors.Join(why, sh.lastSave(ctx, why))
}

// drain withdraws deliveries that the lane has not begun, and waits for the others. It reports false if running
// deliveries are abandoned.
func (sh *shard) drain() bool {
	sh.lane.Withdraw()
	sh.inFlight.release() // the lane returns them
	sh.setFull(false)

	for sh.collect(); len(sh.inFlight.events.Batches) > 0 || sh.replay.InFlight(); sh.collect() {
		select {
		case <-sh.wake:
		case <-sh.e.abandoned:
			return false
		}
	}
	return true
}

// lastSaveWithin bounds the last write of a released position.
const lastSaveWithin = 5 * time.Second

// lastSave writes the position for the last time.
func (sh *shard) lastSave(ctx context.Context, why error) error {
	sh.collect()
	if why != nil || !sh.progress.dirty && sh.stored.pending.empty() {
		return nil
	}

	sh.pos.WriteWhole()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSaveWithin)
	defer cancel()

	pauses := store.NewPauses()
	for {
		err := sh.e.pool.use(ctx, &sh.pos.Lease, func(conn *session.Conn) error { return sh.save(ctx, conn) })
		switch {
		case err == nil:
			return nil
		case errors.Is(err, position.ErrFenced), errors.Is(err, lease.ErrMoved), ctx.Err() != nil:
			return err
		}

		sleep.For(ctx, pauses.After(err))
	}
}

// wakeUp reports that there may be events to read, and with seek that rows may be due. It never blocks.
func (sh *shard) wakeUp(seek bool) {
	sh.hint.Store(true)
	if seek {
		sh.seek.Store(true)
	}
	sh.poke()
}

// publish makes the figures of the shard visible to other goroutines.
func (sh *shard) publish() {
	gaps := sh.reader.Gaps()
	open := int64(sh.inFlight.events.Count() + len(sh.stored.pending.fresh(false)))
	sh.figures.Store(&observe.PositionStats{
		Destination: sh.name,
		Shard:       sh.pos.Shard,
		Loading:     !sh.loaded,
		Head:        sh.reader.Head(),
		Open:        open,
		Gaps:        sh.e.possible(gaps),
		Ranges:      int64(gaps.Len()),
		OldestGap:   sh.reader.GapStats().Oldest,
		Delivered:   uint64(max(0, sh.progress.acknowledged)),
		Saved:       sh.progress.saves,
		SavedAt:     sh.progress.at,
		OpenRanges:  int64(sh.progress.ranges),
	})
}

// stats returns the figures of the shard.
func (sh *shard) stats() observe.PositionStats {
	s := *sh.figures.Load()
	s.Blocked = sh.lane.Order(dispatch.Key{}).Aggregates
	return s
}
