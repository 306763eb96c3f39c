package stream

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/observe"
)

const (
	// saveEvery is how often a position is written while it moves. A crash repeats
	// what was acknowledged since. One with many ranges costs the server some
	// milliseconds, and is written less often: saveShare times as long passes as it took,
	// up to saveAtLeast.
	saveEvery   = 25 * time.Millisecond
	saveShare   = 20
	saveAtLeast = 50 * time.Millisecond
	// skipAhead is how many times as many rows as events are read at once, where most are
	// of types that others get.
	skipAhead = 10
	// firstGapPoll is the first pause between two looks at ids that nobody has seen
	// yet; each pause is twice as long as the one before, up to the poll interval.
	firstGapPoll = time.Millisecond
)

// unit reads the table for one destination, hands what it reads to the lane, and keeps
// account of what has become of it. One goroutine does all of that, one thing after the
// other, so that there is no other order than the order in which it does them; only the
// answers come from elsewhere, by way of the parcels.
type unit struct {
	e    *Engine
	name string
	lane dispatch.Lane
	pos  Position
	wake chan struct{} // capacity 1: an answer, room, a notification

	reader  *Reader
	skip    []string        // event types that go to others
	skipped map[string]bool // the same
	scratch []byte

	parcels []*dispatch.Parcel // under way
	spare   []*dispatch.Parcel // nothing of them is
	sizes   map[*dispatch.Parcel]int
	bytes   int                 // of what is under way
	again   []dispatch.Delivery // given back, by id: goes before everything else

	pending      writes
	held         map[int64]string        // rows under way, or in pending, with the state in which they were read
	drains       map[dispatch.Key]string // lines to go on with after the next write
	early        int64                   // until this is read nothing that is stored goes; 0: it may
	doubtful     map[dispatch.Key]string // lines to be looked at after the next write: nothing may be in front of them
	ready        []line                  // lines to go on with now
	isReady      map[dispatch.Key]bool   // which they are
	duePlace     duePlace
	dueAt        time.Time // when to look for rows that are due
	dueTurn      bool      // rows that are due are looked for before the table is read
	acknowledged int64
	written      int64 // of that
	dirty        bool  // there is something to be written
	savedAt      time.Time
	saveWait     time.Duration // from then until the next write
	savedHead    int64
	saves        uint64

	full    bool      // the last read was cut off: there is more
	nextAt  time.Time // when to read without being asked
	gapWait time.Duration
	gapIDs  int64
	checkAt time.Time // when to look next whether ids still are what they were
	routed  bool      // its routes are noted
	former  []span    // routes that have ended, by which it has yet to read
	loaded  bool      // what is stored is known
	begun   bool      // the table has been read once
	yielded bool      // there may be more to do, and others wait for the connection
	stuck   bool      // the lane has no room, or there is too much in memory: waking is somebody else's

	figures atomic.Pointer[observe.PositionStats]
	hint    atomic.Bool // somebody said that there is something to be read
	seek    atomic.Bool // or that rows may be due
}

// line is the stored line of an aggregate.
type line struct {
	key  dispatch.Key
	name string
}

func newUnit(e *Engine, lane dispatch.Lane, p Position) *unit {
	u := &unit{
		e: e, name: p.Destination, lane: lane, pos: p, wake: make(chan struct{}, 1),
		skipped: make(map[string]bool), sizes: make(map[*dispatch.Parcel]int),
		held: make(map[int64]string), drains: make(map[dispatch.Key]string), doubtful: make(map[dispatch.Key]string), isReady: make(map[dispatch.Key]bool), duePlace: dueStart(),
		gapWait: firstGapPoll, savedHead: p.Head,
	}
	u.figures.Store(&observe.PositionStats{Destination: p.Destination, Part: p.Part, Head: p.Head})
	u.reader = NewReader(p.Head, p.Open, e.witnesses)
	u.hint.Store(true)
	return u
}

// poke tells the unit that there is something to do. It never blocks.
func (u *unit) poke() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// run works until ctx ends, which is when the unit is to be given away, and leaves
// nothing under way. It returns an error where the unit is lost.
func (u *unit) run(ctx context.Context) error {
	u.lane.Own(u.poke)
	pause := reconnectPauses()
	defer u.publish()
	for ctx.Err() == nil {
		err := u.e.pool.use(ctx, u.pos, func(conn *pgx.Conn) error {
			if ok, err := u.prepare(ctx, conn); err != nil || !ok {
				return err
			}
			return u.work(ctx, conn)
		})
		u.publish()
		switch {
		case errors.Is(err, errFenced), errors.Is(err, errMoved), errors.Is(err, ErrIDs):
			return u.leave(ctx, err)
		case err != nil && ctx.Err() == nil:
			u.e.report(err)
			sleep(ctx, pause.NextBackOff())
		case err == nil:
			pause.Reset()
			if !u.yielded {
				u.wait(ctx)
			}
		}
	}
	return u.leave(ctx, nil)
}

// prepare does what has to be done before anything is read. It reports whether that has
// come to its end.
func (u *unit) prepare(ctx context.Context, conn *pgx.Conn) (done bool, err error) {
	if !time.Now().Before(u.checkAt) {
		if err := u.e.checkIDs(ctx, conn, u.name, u.reader.Head()); err != nil {
			return false, err
		}
		u.checkAt = time.Now().Add(u.e.limits.PollInterval)
	}
	if u.loaded {
		return true, nil
	}
	if ok, err := u.handed(ctx, conn); err != nil || !ok {
		u.nextAt = time.Now().Add(handPoll)
		return false, err
	}
	if err := u.loadLines(ctx, conn); err != nil {
		return false, err
	}
	// A delayed event that is due may come behind what the owner before had in hand.
	if u.lane.Ordered() && u.reader.Gaps().Len() > 0 {
		u.early = max(u.early, u.reader.Head())
	}
	u.loaded = true
	return true, nil
}

// work does what there is to do, for as long as there is anything.
func (u *unit) work(ctx context.Context, conn *pgx.Conn) error {
	began := time.Now()
	for ctx.Err() == nil {
		if u.yielded = u.e.pool.wanted(began); u.yielded {
			return nil
		}
		u.collect()
		if u.seek.Swap(false) {
			u.dueAt, u.duePlace = time.Time{}, dueStart()
		}
		if u.saveDue() {
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

// saveDue reports whether the position is to be written now.
func (u *unit) saveDue() bool {
	return u.dirty && time.Since(u.savedAt) >= u.saveWait || len(u.drains) > 0 || len(u.pending.rows) >= maxPending
}

// maxPending bounds what waits to be written with the position.
const maxPending = 5000

// collect takes the answers. It begins with the parcel that was handed over last: where
// an event of an aggregate is found to be answered, so are those before it. Taken the
// other way round, a row might be removed and one before it not, and a crash
// would repeat that one alone.
func (u *unit) collect() {
	taken := make([]taking, len(u.parcels))
	for i, p := range slices.Backward(u.parcels) {
		acknowledged, answers, left := p.Take()
		taken[i] = taking{answers, left}
		if acknowledged > 0 || len(answers) > 0 {
			u.acknowledged += int64(acknowledged)
			u.dirty = true
		}
	}
	kept := u.parcels[:0]
	for i, p := range u.parcels {
		for k := range taken[i].answers {
			u.answered(&taken[i].answers[k])
		}
		if taken[i].left > 0 {
			kept = append(kept, p)
			continue
		}
		u.bytes -= u.sizes[p]
		delete(u.sizes, p)
		p.Empty()
		u.spare = append(u.spare, p)
	}
	clear(u.parcels[len(kept):])
	u.parcels = kept
}

// taking is what was taken of a parcel.
type taking struct {
	answers []dispatch.Answer
	left    int
}

// answered takes what became of a delivery, other than that a fresh event was delivered.
func (u *unit) answered(a *dispatch.Answer) {
	id, e := a.Event.ID, a.Event
	out := entry{id: id, eventType: e.Type, attempts: a.Failures, delay: a.Delay}
	if a.Key != (dispatch.Key{}) {
		out.key = dispatch.OrderingKey(e)
	}
	if a.Err != nil {
		out.class, out.err = a.Class.String(), a.Err.Error()
	}
	switch a.Verdict {
	case dispatch.VerdictReleased:
		at, _ := slices.BinarySearchFunc(u.again, id, func(d dispatch.Delivery, id int64) int { return compare(d.Event.ID, id) })
		u.again = slices.Insert(u.again, at, a.Delivery)
		return
	case dispatch.VerdictDelivered:
		if a.Row {
			u.pending.removed = append(u.pending.removed, id)
		}
	case dispatch.VerdictParked:
		u.doubtful[a.Key] = out.key
		if a.Row && u.held[id] == stateParked {
			delete(u.held, id) // it is where it belongs
			return
		}
		out.state, out.class, out.err, out.delay = stateParked, "", "", 0
	case dispatch.VerdictDead:
		out.state = stateDead
	default:
		out.state = stateRetry
	}
	if out.state != "" {
		out.fresh = !a.Row
		u.pending.put(out, a.Key)
	}
	if a.Behind {
		u.drains[a.Key] = dispatch.OrderingKey(e)
	}
}

// read reads on in the table.
func (u *unit) read(ctx context.Context, conn *pgx.Conn) (did bool, err error) {
	now := time.Now()
	if !u.full && now.Before(u.nextAt) && !u.hint.Load() && u.early == 0 {
		return false, nil
	}
	granted := u.grant(u.e.limits.Batch)
	if granted == 0 {
		return false, nil
	}
	announced := u.hint.Swap(false)
	before := u.reader.Head()
	b, err := u.reader.Read(ctx, conn, Query{Limit: granted, Rows: skipAhead * granted, Bytes: u.e.limits.Bytes, Skip: u.skip})
	if err != nil {
		u.lane.Return(granted)
		// A reader is of no use after an error, and has not moved.
		u.reader = NewReader(u.reader.Head(), u.reader.Gaps(), u.e.witnesses)
		u.hint.Store(true)
		return false, err
	}
	u.setFull(b.Full)
	u.hand(&b, granted) //nolint:contextcheck // deliveries outlive the read
	u.forgetFormer()
	// Ids that turn out to be dead are news as well.
	gapIDs := u.reader.Gaps().IDs()
	if u.reader.Head() != before || b.Seen > 0 || gapIDs != u.gapIDs {
		u.dirty = true
	}
	u.e.vigil.saw(b.Seen, b.Full, announced)
	u.plan(now, b.Seen, gapIDs)
	if u.early > 0 && (!b.Full || b.Last > before && u.reader.Head() >= u.early) { // the gaps come first
		u.early, u.dirty = 0, true
	}
	if !u.begun {
		u.begun = true
		u.e.began()
	}
	return b.Full || b.Seen > 0, nil
}

// setFull takes note of whether there is more to read, for the vigil as well.
func (u *unit) setFull(full bool) {
	switch {
	case full && !u.full:
		u.e.vigil.behind.Add(1)
	case !full && u.full:
		u.e.vigil.behind.Add(-1)
	}
	u.full = full
}

// hand routes what was read and hands it to the lane.
func (u *unit) hand(b *Batch, granted int) {
	p := u.parcel()
	all := p.Room(len(b.Events))
	eventType, wanted := "", false // of the event before: often the same
	for i := range b.Events {
		e := &b.Events[i]
		if i == 0 || e.Type != eventType {
			eventType, wanted = e.Type, u.wants(e.Type)
		}
		if !wanted && !u.formerly(e.Type, e.ID) {
			continue
		}
		e.Destination, e.Attempt = u.name, 1
		if b.Delays != nil && b.Delays[i] > 0 {
			u.pending.put(entry{id: e.ID, eventType: e.Type, state: stateRetry, delay: b.Delays[i], own: true, fresh: true}, dispatch.Key{})
			continue
		}
		d := dispatch.Delivery{Event: e}
		if u.lane.Ordered() {
			d.Key, u.scratch = u.e.keys.Of(u.scratch, e)
		}
		all = append(all, d)
	}
	u.deliver(p, all, nil, granted)
}

// wants reports whether the destination gets events of the type.
func (u *unit) wants(eventType string) bool {
	if u.skipped[eventType] {
		return false
	}
	if u.e.d.Wanted(u.lane, eventType) {
		return true
	}
	if len(u.skip) < maxSkip && !u.everGot(eventType) {
		u.skipped[eventType] = true
		u.skip = append(u.skip, eventType)
	}
	return false
}

// maxSkip bounds the list of event types of which the id alone is read. Types are few;
// where they are not, their rows are read for nothing.
const maxSkip = 500

// plan decides when to read again without being asked.
func (u *unit) plan(now time.Time, seen int, gapIDs int64) {
	wait := u.e.vigil.pause()
	if gapIDs != u.gapIDs || seen > 0 {
		u.gapIDs, u.gapWait = gapIDs, firstGapPoll
	}
	if gapIDs > 0 {
		wait = min(wait, u.gapWait)
		u.gapWait = min(2*u.gapWait, u.e.limits.PollInterval)
	}
	u.nextAt = now.Add(wait)
}

// dueBy has the unit look for rows that are due at a time, if not before.
func (u *unit) dueBy(at time.Time) {
	if at.Before(u.dueAt) {
		u.dueAt = at
	}
}

// look finds out whose transactions ids belong to that nobody has seen, if that is due.
func (u *unit) look(ctx context.Context, conn *pgx.Conn) error {
	if !u.reader.NeedsLook(time.Now()) {
		return nil
	}
	l, err := u.e.witnesses.Look(ctx, conn)
	if err != nil || l == nil {
		return err
	}
	u.reader.Looked(l)
	u.nextAt = time.Now() // what was found to be over can be read now
	return nil
}

// wait waits until there is something to do.
func (u *unit) wait(ctx context.Context) {
	next := time.Now().Add(u.e.limits.PollInterval)
	if u.dirty {
		next = earlier(next, u.savedAt.Add(u.saveWait))
	}
	switch {
	case !u.loaded:
		next = earlier(next, u.nextAt)
	case !u.stuck:
		next = earlier(earlier(next, u.nextAt), u.dueAt)
		if look, ok := u.reader.NextLook(); ok {
			next = earlier(next, look)
		}
	case !u.pos.Sure():
		next = earlier(next, time.Now().Add(unsurePoll))
	}
	timer := time.NewTimer(max(0, time.Until(next)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-u.wake:
	case <-timer.C:
	}
}

// unsurePoll is how often a unit looks whether its session is proven to live again.
const unsurePoll = 20 * time.Millisecond

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
