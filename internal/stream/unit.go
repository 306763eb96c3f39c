package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/aggregates"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/exactly"
	"github.com/notifyd/notifyd/internal/flight"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/replay"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/observe"
)

const (
	// skipAhead is how many times as many rows as events are read at once, where most are
	// of types that others get.
	skipAhead = 10
	// handPoll is how often a destination checks whether it has been handed the events that had no
	// route.
	handPoll = 50 * time.Millisecond
	// heldPoll is the pause between two looks whether new events may be read again, after
	// many of them had to wait for others of their aggregates that the destination has failed over.
	heldPoll = 50 * time.Millisecond
)

// unit reads the table for one destination, hands the events to the lane, and records their
// outcomes. One goroutine does all of that, one step after the other, so that there is no order but
// the order of its steps. Only the answers come from other goroutines, by way of the parcels.
//
// What it has in memory belongs to its parts. They know what common has, and get the rest from the
// unit, step by step. The unit owns the order of the steps, and the position that they lead to. Some
// parts have pointers into it, so it must not be copied.
type unit struct {
	common

	reader *tail.Reader
	gate   gate
	shelf  shelf
	ledger ledger
	next   next
	types  routes.Types
	order  order
	former position.Former   // what former shards may have done of what is left to read
	exact  *exactly.Position // nil unless the destination keeps a copy
	replay *replay.Sender

	checkAt time.Time // when to check the sequence next
	routed  bool      // its routes are stored
	loaded  bool      // its stored rows are loaded
	from    int64     // where it began to read
	yielded bool      // there may be more work, but other units wait for the connection
	waits   bool      // its only line is held: it reads nothing

	figures atomic.Pointer[observe.PositionStats]
	seen    atomic.Pointer[seen] // nil before it has read
	hint    atomic.Bool          // there may be events to read
	seek    atomic.Bool          // rows may be due
}

func newUnit(e *Engine, lane dispatch.StreamLane, p position.Position) *unit {
	u := &unit{
		common: common{e: e, name: p.Destination, part: partOf(place{p.Destination, p.Part}), lane: lane, limit: newLimit(lane.Destination()), pos: p, wake: make(chan struct{}, 1)},
		order:  newOrder(lane, e.keys),
	}
	u.exact = e.exact(lane.Destination(), &u.pos, func(ctx context.Context, f func(*session.Conn) error) error { return e.pool.use(ctx, &u.pos.Lease, f) })
	u.pos.Exact = u.exact != nil
	u.replay = replay.NewSender(u.forReplay())
	u.gate = gate{common: &u.common, seals: u.pos.Exact}
	u.gate.keep = func(a *dispatch.Answer) {
		u.answered(a)
		u.ledger.dirty = true
	}
	u.begin(p.Head, p.Open)
	u.figures.Store(&observe.PositionStats{Destination: p.Destination, Part: p.Part, Loading: true, Head: p.Head})
	return u
}

// forReplay returns what a replay needs of the unit.
func (u *unit) forReplay() replay.Shard {
	s := replay.Shard{
		Outbox: u.e.Outbox, Lane: u.lane, Keys: u.e.keys, Limits: u.e.limits, Witnesses: u.e.witnesses, Log: u.e.log,
		Gets: u.gets, Passes: u.passes, Valid: u.pos.Valid, Wake: u.poke, Changed: func() { u.ledger.dirty = true }, Write: u.owned,
	}
	if u.limit != nil {
		s.Page = u.limit.page
	}
	return s
}

// begin makes the memory of the unit that of one that has just been taken over.
func (u *unit) begin(head int64, open tail.Ranges) {
	u.reader, u.from = tail.NewReader(head, open, u.e.witnesses), head
	u.gate.flight, u.shelf, u.ledger = flight.New(u.pos.Valid, u.poke), newShelf(&u.common, &u.order, &u.ledger), ledger{}
	u.next, u.types, u.former = next{gapWait: firstGapPoll}, routes.NewTypes(), u.pos.Former
	u.checkAt, u.routed, u.loaded, u.waits = time.Time{}, false, false, false
	u.replay.Forget()
	u.exact.Forget()
	u.hint.Store(true)
}

// run works until ctx ends, which means that the unit must be given away, and leaves no delivery
// running. It returns an error if the unit is lost.
func (u *unit) run(ctx context.Context) error {
	u.lane.Own(u.poke)
	pauses := store.NewPauses()
	defer u.e.accepted(u.part)
	defer u.publish()
	for ctx.Err() == nil {
		err := u.open(ctx)
		if err == nil {
			err = u.e.pool.use(ctx, &u.pos.Lease, func(conn *session.Conn) error {
				if ok, err := u.prepare(ctx, conn); err != nil || !ok {
					return err
				}
				return u.work(ctx, conn)
			})
		}
		u.publish()
		switch {
		case errors.Is(err, position.ErrFenced), errors.Is(err, lease.ErrMoved), final(err):
			return u.leave(ctx, err)
		case errors.Is(err, errReopen):
			if err := u.restart(ctx); err != nil {
				return err
			}
		case err != nil && ctx.Err() == nil:
			u.e.report(u.part, err)
			sleep(ctx, pauses.After(err))
		case err == nil:
			pauses.Reset()
			u.e.accepted(u.part)
			if !u.yielded {
				u.wait(ctx)
			}
		}
	}
	return u.leave(ctx, nil)
}

// errReopen ends the work with what a unit has in memory: the destination knows better.
var errReopen = errors.New("what became of a transaction is not known")

// open finds out where the destination is, before anything is read.
func (u *unit) open(ctx context.Context) error {
	if u.exact.Opened() {
		return nil
	}
	// Before the position moves to where the destination is.
	err := u.e.pool.use(ctx, &u.pos.Lease, func(conn *session.Conn) error { return u.checkIDs(ctx, conn) })
	if err != nil {
		return err
	}
	at, err := u.exact.Open(ctx)
	if err != nil {
		return err
	}
	u.reader, u.from = tail.NewReader(at.Head, at.Open, u.e.witnesses), at.Head
	return nil
}

// handOver hands the parcels that wait to the lane, after a seal.
func (u *unit) handOver(ctx context.Context, conn *session.Conn) error {
	switch {
	case u.exact.InDoubt():
		return errReopen
	case len(u.gate.staged) == 0:
		return nil
	}
	if err := u.exact.Seal(ctx, conn); err != nil {
		return err
	}
	head, open := u.account(true)
	u.exact.Advance(head, open, maps.Keys(u.shelf.running))
	u.gate.release()
	return nil
}

// restart forgets what the unit has in memory, once nothing of it is under way, and lets it begin
// anew where the destination is.
func (u *unit) restart(ctx context.Context) error {
	if !u.drain() {
		return u.lastSave(ctx, nil)
	}
	if !u.shelf.pending.empty() || u.replay.Running() {
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

// checkIDs checks the ids that the unit has passed.
func (u *unit) checkIDs(ctx context.Context, conn *session.Conn) error {
	if err := u.pos.CheckIDs(ctx, conn, tail.Watermark{Head: u.reader.Head(), Open: u.reader.Gaps()}); err != nil {
		return err
	}
	u.checkAt = time.Now().Add(u.e.limits.PollInterval)
	return nil
}

// prepare does the work that precedes the first read. It reports whether it is complete.
func (u *unit) prepare(ctx context.Context, conn *session.Conn) (done bool, err error) {
	if !time.Now().Before(u.checkAt) {
		if err := u.checkIDs(ctx, conn); err != nil {
			return false, err
		}
	}
	if u.loaded {
		return true, nil
	}
	if ok, err := u.handed(ctx, conn); err != nil || !ok {
		u.next.at = time.Now().Add(handPoll)
		return false, err
	}
	l := loader{common: &u.common, order: &u.order, shelf: &u.shelf, reader: u.reader, write: u.owned}
	if err := l.load(ctx, conn); err != nil {
		return false, err
	}
	// A delayed event that is due may come after events that the previous owner had in memory.
	if u.order.kept && !u.order.total && u.reader.Gaps().Len() > 0 {
		u.shelf.early = max(u.shelf.early, u.reader.Head())
	}
	// Another shard was ahead when the routes changed: what the router has handed over may come after events that are still to be read.
	if u.order.kept {
		u.shelf.early = max(u.shelf.early, u.types.Before.Head)
	}
	// Before its stored lines are looked at.
	if err := u.replay.Look(ctx, conn); err != nil {
		return false, err
	}
	u.loaded = true
	return true, nil
}

// handed reports whether the destination has been handed all events that had no route before it had
// one. Its first call stores the routes of the destination.
func (u *unit) handed(ctx context.Context, conn *session.Conn) (bool, error) {
	if !u.routed {
		if err := u.note(ctx, conn); err != nil {
			return false, fmt.Errorf("store the routes of %q: %w", u.name, err)
		}
		u.routed = true
	}
	waits, err := routes.Unhanded(ctx, conn, u.name)
	return !waits, err
}

// note stores the routes of the destination, if they have changed, and keeps those by which it
// still has to read.
func (u *unit) note(ctx context.Context, conn *session.Conn) error {
	wanted := u.e.wantedOf(u.name)
	changed := false
	err := u.owned(ctx, conn, func(tx pgx.Tx) error {
		all, err := routes.Read(ctx, tx, &u.name)
		if err != nil {
			return err
		}
		// The unit will read its open events itself, with the current routes.
		head, open := u.account(true)
		head, open = u.pos.Bound(head, open)
		at := tail.Watermark{Head: head, Open: open}
		last := routes.Newest(all)
		changed = last == nil || !last.Equal(&wanted.Routes)
		if changed && u.pos.Shards > 1 {
			return errLayout // they change for all shards together
		}
		if changed {
			change := routes.Change{All: u.e.routes, To: wanted.Wanted, Last: last, At: u.former.Passed(at), Passed: at}
			if err := change.Store(ctx, tx); err != nil {
				return err
			}
			if all, err = routes.Read(ctx, tx, &u.name); err != nil {
				return err
			}
			last = routes.Newest(all)
		}
		if !last.From.Within(head, open) { // only of one that has, or had, several shards
			u.types.Before = last.From
		}
		u.types.Former = slices.DeleteFunc(all, func(s routes.Span) bool { return !s.Ended || s.Until.Within(head, open) })
		return routes.Noted(ctx, tx, u.name)
	})
	if err == nil && changed {
		return u.e.announce(ctx, conn)
	}
	return err
}

// work works for as long as there is anything to do.
func (u *unit) work(ctx context.Context, conn *session.Conn) error {
	began := time.Now()
	defer func() { u.reader.Wait() }()
	for ctx.Err() == nil {
		u.collect()
		u.reader.Wait() // the connection may be that of a read
		if err := u.handOver(ctx, conn); err != nil {
			return err
		}
		if u.yielded = u.e.pool.wanted(began); u.yielded {
			return nil
		}
		if u.seek.Swap(false) {
			u.shelf.searchNow()
			u.replay.LookNow()
		}
		if err := u.replay.Look(ctx, conn); err != nil {
			return err
		}
		if u.ledger.due() || u.shelf.aggregates.AnyNext() || len(u.shelf.pending.rows) >= maxPending {
			if err := u.store(ctx, conn); err != nil {
				return err
			}
		}
		did, err := u.feed(ctx, conn)
		if err != nil {
			return err
		}
		if !did {
			return u.look(ctx, conn)
		}
	}
	return nil
}

// collect processes the answers.
func (u *unit) collect() {
	acknowledged, news := u.gate.flight.Take(u.answered)
	u.ledger.acknowledged += acknowledged
	replayed := u.replay.Take(func(a *dispatch.Answer, row deliveries.Entry) { u.shelf.settle(a, entry{Entry: row, replayed: true}) }, u.exact.Doubt)
	u.ledger.dirty = u.ledger.dirty || news || replayed
}

// answered records the outcome of a delivery, except for a fresh event that was delivered.
func (u *unit) answered(a *dispatch.Answer) {
	if a.Verdict == dispatch.VerdictReleased {
		u.gate.flight.GiveBack(a.Delivery)
		u.exact.Doubt(a.Err)
		return
	}
	u.shelf.settle(a, entry{Entry: deliveries.Entry{Key: u.shelf.nameOf(a)}})
}

// feed hands the next events to the lane, if it has room. It reports whether it did anything.
func (u *unit) feed(ctx context.Context, conn *session.Conn) (did bool, err error) {
	if o := u.lane.Order(dispatch.Key{}); o.Stopped {
		u.collect()
		if !u.lane.GoOn(o.Returned) {
			return true, nil
		}
	}
	u.waits = false
	held := u.shelf.totalHeld()
	if len(u.gate.flight.Returned) > 0 && !held {
		return u.gate.feedAgain(0, len(u.gate.flight.Returned)), nil
	}
	if u.gate.shut() {
		return false, nil
	}
	if u.shelf.early > 0 {
		return u.read(ctx, conn)
	}
	if held { // of what the lane has returned, the stored event goes that all others wait for
		if i := slices.IndexFunc(u.gate.flight.Returned, func(d dispatch.Delivery) bool { return d.Leads }); i >= 0 {
			return u.gate.feedAgain(i, 1), nil
		}
	}
	// A total order takes all rows that are due before others: one without a name holds nothing back until it was taken.
	first := u.order.total && !time.Now().Before(u.shelf.dueAt)
	if !first && u.shelf.aggregates.AnyReady() {
		return u.feedStored(ctx, conn)
	}
	u.shelf.dueTurn = !u.shelf.dueTurn || first
	if u.shelf.dueTurn && !time.Now().Before(u.shelf.dueAt) {
		if did, err = u.feedDue(ctx, conn); did || err != nil {
			return did, err
		}
		if first && !time.Now().Before(u.shelf.dueAt) { // the lane has no capacity
			if held {
				u.e.began()
			}
			return false, nil
		}
	}
	if u.waits = u.shelf.totalHeld(); u.waits {
		u.e.began()
		return false, nil
	}
	if did, err = u.read(ctx, conn); did || err != nil || u.gate.stuck {
		return did, err
	}
	return u.feedReplay(ctx, conn)
}

// feedReplay hands over events of a replay, as far as live events leave room. It reports whether it did anything.
func (u *unit) feedReplay(ctx context.Context, conn *session.Conn) (did bool, err error) {
	p, caughtUp, did, err := u.replay.Feed(ctx, conn, replay.Live{
		Head: u.reader.Head(), Room: u.e.memory()/2 - u.gate.flight.Bytes,
		Open: func() tail.Ranges {
			_, open := u.account(true)
			return open
		},
	})
	if p != nil {
		u.gate.pass(p, nil)
	}
	if caughtUp {
		u.shelf.searchNow()
	}
	return did, err
}

// read reads the next events of the table.
func (u *unit) read(ctx context.Context, conn *session.Conn) (did bool, err error) {
	if !u.readsNow() {
		return false, nil
	}
	if u.shelf.early == 0 && u.lane.Waits(false) {
		u.next.at = time.Now().Add(heldPoll) // it is the turn of what is stored
		return false, nil
	}
	granted := u.gate.grant(u.e.limits.Batch)
	if granted == 0 {
		return false, nil
	}
	return u.readNext(ctx, conn, granted)
}

// readsNow reports whether the table must be read.
func (u *unit) readsNow() bool {
	return u.next.more || !time.Now().Before(u.next.at) || u.hint.Load() || u.shelf.early > 0
}

// readNext reads up to so many events, for which the lane has room.
func (u *unit) readNext(ctx context.Context, conn *session.Conn, granted int) (did bool, err error) {
	now := time.Now()
	before := u.reader.Head()
	announced, b, err := u.nextBatch(ctx, conn, granted)
	if err != nil {
		u.lane.Return(granted)
		// A reader cannot be used after an error, and has not moved.
		u.reader = tail.NewReader(u.reader.Head(), u.reader.Gaps(), u.e.witnesses)
		u.hint.Store(true)
		return false, err
	}
	u.setFull(b.Full)
	if room := u.e.memory() - u.gate.flight.Bytes - b.Bytes; room > 0 && b.Full && granted == u.e.limits.Batch && u.shelf.early == 0 && u.exact == nil {
		q := u.query(ctx, granted)
		q.Bytes = min(q.Bytes, room)
		u.reader.Begin(ctx, conn, q) // it runs while this batch is handed over
	}
	u.hand(&b, granted)
	u.types.Forget(u.reader.Head(), u.reader.Gaps())
	if b.Seen > 0 && u.pos.Shards == 1 { // a shard does not learn the types of the others
		u.seen.Store(&seen{tail.Seen{From: u.from, Head: u.reader.Head(), Gaps: u.reader.Gaps()}, u.types.Met()})
	}
	if u.former != nil && u.former.Over(u.reader.Head(), u.reader.Gaps()) {
		u.former = nil
	}
	// Finding that ids are dead is progress as well.
	gapIDs := u.reader.Gaps().IDs()
	if u.reader.Head() != before || b.Seen > 0 || gapIDs != u.next.gapIDs {
		u.ledger.dirty = true
	}
	u.e.wake.Saw(b.Seen, b.Full, announced)
	u.next.plan(now, u.e.wake.Pause(), u.e.limits.PollInterval, b.Seen > 0, gapIDs)
	if u.shelf.early > 0 && (!b.Full || b.Last > before && u.reader.Head() >= u.shelf.early) { // the gaps come first
		u.shelf.early, u.ledger.dirty = 0, true
	}
	u.e.began()
	return b.Full || b.Seen > 0, nil
}

// freshFor is how long after its begin a batch that was read ahead is handed over. After that it is read again: what it says of
// delays has become wrong.
const freshFor = time.Second

// nextBatch returns the batch that was read ahead, or reads one; announced says whether events were announced before.
func (u *unit) nextBatch(ctx context.Context, conn *session.Conn, granted int) (announced bool, b tail.Batch, err error) {
	if at, ok := u.reader.Begun(); ok && time.Since(at) < freshFor {
		b, err = u.reader.Take()
		return u.hint.Load(), b, err // events may have been announced after the read began: it is not the last one
	}
	announced = u.hint.Swap(false)
	b, err = u.reader.Read(ctx, conn, u.query(ctx, granted))
	return announced, b, err
}

// query returns the read of so many events.
func (u *unit) query(ctx context.Context, n int) tail.Query {
	return tail.Query{
		Shard: u.slice(),
		Limit: n, Rows: skipAhead * n, Bytes: u.e.limits.Bytes, EventBytes: u.e.limits.EventBytes, Skip: u.types.Skip,
		Stay: u.exact.Crowded(ctx, u.reader) || u.order.total && u.shelf.early > 0 && u.shelf.early <= u.reader.Head(), Assigned: u.e.last.Load(),
	}
}

// slice returns the shard to read, where the destination has several, or had until a moment ago: then the hashes tell what
// is done.
func (u *unit) slice() tail.Shard {
	if u.pos.Shards == 1 && u.former == nil {
		return tail.Shard{}
	}
	return tail.Shard{Part: u.pos.Part, Of: u.pos.Shards}
}

// setFull records whether there is more to read, also for the state of the relay.
func (u *unit) setFull(full bool) {
	switch {
	case full && !u.next.more:
		u.e.wake.Behind(1)
	case !full && u.next.more:
		u.e.wake.Behind(-1)
	}
	u.next.more = full
}

// hand routes the events of a read and hands them to the lane.
func (u *unit) hand(b *tail.Batch, granted int) {
	p := u.gate.parcel()
	all := p.Room(len(b.Events))
	eventType, wanted := "", false // of the previous event: often the same
	for i := range b.Events {
		e := &b.Events[i]
		if i == 0 || e.Type != eventType {
			eventType, wanted = e.Type, u.types.Wants(e.Type, u.gets)
		}
		if (!wanted || u.types.Before.Has(e.ID)) && !u.types.Formerly(e.Type, e.ID) {
			continue
		}
		if b.Hashes != nil && u.former.Done(e.ID, b.Hashes[i]) {
			continue
		}
		e.Destination, e.Outbox, e.Attempt = u.name, u.e.Outbox, 1
		if b.Delays != nil && b.Delays[i] > 0 {
			u.shelf.pending.put(entry{Entry: deliveries.Entry{Ref: deliveries.Ref{EventID: e.ID}, EventType: e.Type, State: deliveries.Retry, Delay: b.Delays[i], Own: true}, fresh: true})
			continue
		}
		if u.shelf.ahead(e.ID) {
			u.shelf.put(entry{Entry: deliveries.Entry{Ref: deliveries.Ref{EventID: e.ID}, EventType: e.Type, State: deliveries.Parked, Key: u.order.name(e)}, fresh: true}, u.order.line)
			u.shelf.aggregates.Move(u.order.line, totalName, aggregates.Parked)
			continue
		}
		passes, refused := u.passes(e, b.Refused[e.ID])
		if !passes {
			continue // and so does the position
		}
		d := dispatch.Delivery{Event: e, Refused: refused, Expires: u.lane.Destination().Expires(e.CreatedAt, time.Time{})}
		if b.Delays != nil && b.Delays[i] < 0 {
			d.Expires = u.lane.Destination().Expires(e.CreatedAt, time.Now().Add(b.Delays[i]))
		}
		d.Key = u.order.of(e)
		all = append(all, d)
	}
	for _, d := range all[min(granted, len(all)):] { // of a batch that was read ahead
		u.gate.flight.GiveBack(d)
	}
	all = all[:min(granted, len(all))]
	u.gate.deliver(p, all, nil, granted)
}

// save writes the position, and the outcomes with it. It is one transaction, which writes nothing
// if the unit is not ours any more. It does not end with ctx: an interrupted statement may reach
// the server after the last one of the unit, and take the position back.
func (u *unit) save(ctx context.Context, conn *session.Conn) error {
	limit := position.RoundTrip
	if at, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(at))
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, position.ErrSlow)
	defer cancel()
	if u.exact != nil {
		// What has failed by now is a row, and passed, and what fails later is neither: a successor
		// that found both would deliver it twice.
		u.collect()
	}
	return u.saveCount(ctx, conn, u.count())
}

// count begins a write. Events acknowledged from here on are for the next one: they were open when
// this one was counted.
func (u *unit) count() (c count) {
	u.ledger.dirty = false
	c.head, c.open = u.account(false)
	c.replay = u.replay.Count()
	return c
}

// saveCount writes the count. Deliveries continue meanwhile.
func (u *unit) saveCount(ctx context.Context, conn *session.Conn, c count) error {
	began := time.Now()
	// Rows delivered before the count must be removed with it. An event that has failed meanwhile
	// is both open and a row until the next write: the row counts.
	if u.exact == nil {
		u.collect()
	}
	delta := u.ledger.acknowledged - u.ledger.written
	w := &u.shelf.pending
	c.replay.Collected()
	if w.empty() && c.replay.Empty() {
		ok, err := u.pos.Save(ctx, conn, c.head, c.open, delta)
		return u.saved(ok, err, delta, began)
	}
	ok := false
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) (err error) {
		// First, because it locks the position against a successor.
		if ok, err = u.pos.Save(ctx, tx, c.head, c.open, delta); err != nil || !ok {
			return cmp.Or(err, position.ErrFenced)
		}
		if err = c.replay.Write(ctx, tx); err != nil {
			return err
		}
		return w.write(ctx, tx, u.name, u.order.shard)
	})
	if err == nil {
		u.replay.Counted(&c.replay)
		// Not before: a search for due rows finds only written ones.
		u.shelf.wrote()
	}
	return u.saved(ok, err, delta, began)
}

// owned writes other rows than the position, if the unit is still ours.
func (u *unit) owned(ctx context.Context, conn *session.Conn, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
		head, open := u.account(true)
		// It locks the position against a successor.
		if ok, err := u.pos.Save(ctx, tx, head, open, 0); err != nil || !ok {
			return cmp.Or(err, position.ErrFenced)
		}
		return f(tx)
	})
}

// saved records the result of a write, and when it began.
func (u *unit) saved(ok bool, err error, delta int64, began time.Time) error {
	u.ledger.dirty = u.ledger.dirty || err != nil
	switch {
	case !ok && (err == nil || errors.Is(err, position.ErrFenced)):
		return position.ErrFenced
	case err != nil:
		return fmt.Errorf("write the position of %q: %w", u.name, err)
	}
	u.ledger.saved(delta, began)
	return nil
}

// feedDue hands over rows that are due. After the last of them, the unit starts over when the next
// one is due.
func (u *unit) feedDue(ctx context.Context, conn *session.Conn) (did bool, err error) {
	if u.gate.stuck = !u.order.total && u.lane.Waits(true); u.gate.stuck { // nothing new goes before the one line of a total order
		return false, nil
	}
	granted := u.gate.grant(u.e.limits.Batch)
	if granted == 0 {
		return false, nil
	}
	u.shelf.failures = u.lane.Order(dispatch.Key{}).Failures
	u.collect() // what has failed until then is a row, and what fails later keeps the lane from those that lead
	rows, more, err := u.shelf.readDue(ctx, conn, granted)
	if err == nil && u.shelf.unwritten(rows) {
		u.lane.Return(granted)
		return true, u.store(ctx, conn)
	}
	if err == nil {
		err = u.shelf.planDue(ctx, conn, rows, more)
	}
	if err != nil {
		u.lane.Return(granted)
		return false, err
	}
	all := make([]dispatch.Delivery, 0, len(rows))
	for i := range rows {
		if !u.replay.Holds(rows[i].Key) {
			all = u.shelf.takeDue(all, &rows[i])
		}
	}
	if len(all) == 0 && !more {
		u.shelf.foundNone()
	}
	// Rows that are due together go in the order of ids.
	slices.SortFunc(all, func(a, b dispatch.Delivery) int { return cmp.Compare(a.Event.ID, b.Event.ID) })
	u.gate.deliver(u.gate.parcel(), all, nil, granted)
	return len(all) > 0 || more || u.shelf.aggregates.AnyReady(), nil
}

// store writes the pending rows, and then continues the lines whose first rows are finished: the
// write comes first, so that a line is read as it is.
func (u *unit) store(ctx context.Context, conn *session.Conn) error {
	if err := u.save(ctx, conn); err != nil {
		return err
	}
	u.e.report(u.part, nil)
	u.shelf.aggregates.Wrote(u.replay.Holds)
	return u.shelf.check(ctx, conn, u.replay.Holds)
}

// feedStored continues aggregates that are ready. When all stored rows of one have been handed over, its
// aggregate is unblocked at that very moment.
func (u *unit) feedStored(ctx context.Context, conn *session.Conn) (did bool, err error) {
	// Rows that are not written yet may come before the stored ones.
	u.shelf.failures = u.lane.Order(dispatch.Key{}).Failures
	u.collect()
	switch {
	case !u.shelf.aggregates.AnyReady(): // the answers have moved them on
		return true, nil
	case u.shelf.aggregates.UnwrittenReady():
		return true, u.store(ctx, conn)
	}
	granted := u.gate.grant(u.e.limits.Batch)
	if granted == 0 {
		return false, nil
	}
	read, err := u.shelf.readFirst(ctx, conn, granted)
	if err != nil {
		u.lane.Return(granted)
		return false, err
	}
	u.collect() // rows parked until now are among the pending ones
	all, unblock := u.shelf.takeFirst(&read)
	u.gate.deliver(u.gate.parcel(), all, unblock, granted)
	return true, nil
}

// look finds the transactions of invisible ids, if that is due.
func (u *unit) look(ctx context.Context, conn *session.Conn) error {
	if u.waits || !u.reader.NeedsLook(time.Now()) { // a look is worth what the next read makes of it
		return nil
	}
	l, err := u.e.witnesses.Look(ctx, conn)
	if err != nil || l == nil {
		return err
	}
	u.reader.Looked(l)
	u.next.at = time.Now() // gaps that were found to be over can be read now
	return nil
}

// wait waits until there is work.
func (u *unit) wait(ctx context.Context) {
	at := time.Now().Add(u.e.limits.PollInterval)
	if u.ledger.dirty {
		at = earlier(at, u.ledger.at.Add(u.ledger.wait))
	}
	switch {
	case !u.loaded:
		at = earlier(at, u.next.at)
	case u.waits:
		at = earlier(at, u.shelf.dueAt)
	case !u.gate.stuck:
		at = earlier(earlier(at, u.next.at), earlier(u.shelf.dueAt, u.replay.Due(at)))
		if look, ok := u.reader.NextLook(); ok {
			at = earlier(at, look)
		}
	case u.gate.unsure:
		at = earlier(at, time.Now().Add(unsurePoll))
	}
	timer := time.NewTimer(max(0, time.Until(at)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-u.wake:
	case <-timer.C:
	}
}

// unsurePoll is how often a unit checks whether its lease is valid again.
const unsurePoll = 20 * time.Millisecond

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// account returns the position to write. Rows that are still to be written are open, which pending
// includes, unless they are written in the same transaction.
func (u *unit) account(pending bool) (head int64, open tail.Ranges) {
	var more []int64
	if pending {
		more = u.shelf.pending.fresh
	}
	head, open, _ = u.gate.flight.Account(u.reader, more)
	return head, open
}

// leave ends a unit: no delivery starts any more, running ones finish, and the position is written,
// unless the unit already belongs to another relay, as why then shows. The successor repeats
// whatever the position does not show as acknowledged.
func (u *unit) leave(ctx context.Context, why error) error {
	if u.drain() {
		u.lane.Disown()
	}
	return errors.Join(why, u.lastSave(ctx, why))
}

// drain takes back what the lane has not begun, and waits for the rest. It reports false if running
// deliveries are abandoned.
func (u *unit) drain() bool {
	u.lane.Withdraw()
	u.gate.release() // the lane gives it back
	u.setFull(false)
	for u.collect(); len(u.gate.flight.Parcels) > 0 || u.replay.UnderWay(); u.collect() {
		select {
		case <-u.wake:
		case <-u.e.abandoned:
			return false
		}
	}
	return true
}

// lastSaveWithin bounds the last write of a position that is given away.
const lastSaveWithin = 5 * time.Second

// lastSave writes the position for the last time.
func (u *unit) lastSave(ctx context.Context, why error) error {
	u.collect()
	if why != nil || !u.ledger.dirty && u.shelf.pending.empty() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSaveWithin)
	defer cancel()
	pauses := store.NewPauses()
	for {
		err := u.e.pool.use(ctx, &u.pos.Lease, func(conn *session.Conn) error { return u.save(ctx, conn) })
		switch {
		case err == nil:
			return nil
		case errors.Is(err, position.ErrFenced), errors.Is(err, lease.ErrMoved), ctx.Err() != nil:
			return err
		}
		sleep(ctx, pauses.After(err))
	}
}

// hinted reports to the unit that there may be events to read, and with seek that rows may have
// become due. It never blocks.
func (u *unit) hinted(seek bool) {
	u.hint.Store(true)
	if seek {
		u.seek.Store(true)
	}
	u.poke()
}

// publish makes the unit's figures visible to other goroutines.
func (u *unit) publish() {
	gaps := u.reader.Gaps()
	open := int64(u.gate.flight.UnderWay() + len(u.shelf.pending.fresh))
	u.figures.Store(&observe.PositionStats{
		Destination: u.name, Part: u.pos.Part, Loading: !u.loaded, Head: u.reader.Head(), Open: open, Gaps: u.e.possible(gaps), Ranges: int64(gaps.Len()),
		OldestGap: u.reader.GapStats().Oldest, Delivered: uint64(max(0, u.ledger.acknowledged)), Saved: u.ledger.saves, SavedAt: u.ledger.at,
	})
}

// stats returns the figures of the unit.
func (u *unit) stats() observe.PositionStats {
	s := *u.figures.Load()
	s.Blocked = u.lane.Order(dispatch.Key{}).Aggregates
	return s
}
