package queue

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/wake"
	"github.com/notifyd/notifyd/internal/wire"
	"github.com/notifyd/notifyd/observe"
)

// scheduler decides what to claim next. Hints, timers and lanes report where work may be; claimers get queries and
// report their results.
//
// Three kinds of queries find fresh events: by an id that a notification named, by the common sweep of the table in id
// order, and by a lane's separate sweep after the common sweep passed over the lane. Only one sweep is in flight at a
// time: the next one begins where it ended.
type scheduler struct {
	limits engine.Limits
	lanes  []dispatch.QueueLane
	route  routes
	relay  *wake.Machine

	mu    sync.Mutex
	idle  idle // claimers that wait for a change below
	timer *time.Timer

	stopped      bool
	hurry        chan struct{} // capacity 1: a claimer that waits for handlers should come
	claimsPaused int           // claimers that must first write the answers of a lost claim

	ids      []int64 // named by a notification, not claimed yet
	sweeping bool    // a sweep is in flight
	sweep    sweep
	idLimit  idLimit
	lagged   map[dispatch.QueueLane]*lag // lanes that the common sweep passed over
	turns    turns

	rowSize  wire.RowSize
	counters counters

	due due

	ready  chan struct{} // closed after the first sweep, once all claimers have tried to connect
	swept  bool
	behind bool // the last common sweep reached its limit
	cold   int  // claimers that have not tried to connect; -1 once ready is closed
}

// due is the state of the search for due deliveries. The scheduler's lock guards it.
type due struct {
	claiming bool // a claim of due deliveries is in flight
	cursor   dueCursor
	last     bool // the last query was for due deliveries: a sweep is next
	now      bool
	blocked  bool      // a lane had no capacity at the last query
	at       time.Time // zero: unknown
	nextPoll time.Time // finds deliveries that another relay left
}

// routes maps event types to lanes. [dispatch.Dispatcher] implements it.
type routes interface {
	LanesOf(eventType string) (lanes []dispatch.QueueLane, firstTime bool)
	TypesOf(f func(lanes []dispatch.QueueLane) bool) []string
}

func newScheduler(limits engine.Limits, lanes []dispatch.QueueLane, route routes, relay *wake.Machine) *scheduler {
	s := &scheduler{
		limits: limits, lanes: lanes, route: route, relay: relay, turns: turns{ranked: isRanked(lanes)}, lagged: make(map[dispatch.QueueLane]*lag),
		hurry: make(chan struct{}, 1), ready: make(chan struct{}), due: due{now: true}, cold: limits.Claims,
	}
	s.timer = time.AfterFunc(time.Hour, s.poke)
	s.sweep.poll = relay.PollEvery
	s.sweep.begin(sweepFull)
	relay.Settle = s.settle
	relay.Changed = s.changed
	return s
}

// poke makes every waiting claimer check again.
func (s *scheduler) poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle.wakeAll()
}

// stop ends all waits: next then returns false.
func (s *scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.timer.Stop()
	s.idle.wakeAll()
}

// hint passes an id from a notification. It never blocks. Too many ids make the relay poll, so that sweeps find them.
func (s *scheduler) hint(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.sweep.polling {
		return // the sweep will find it
	}
	s.relay.Notified()

	s.ids = append(s.ids, id)
	if len(s.ids) >= wake.Pressure {
		s.relay.Poke()
	}

	if s.idle.allBusy() {
		select {
		case s.hurry <- struct{}{}:
		default:
		}
	}
	s.idle.wake()
}

// changed records the state of the relay. While it polls, sweeps find the events that notifications named.
func (s *scheduler) changed(state wake.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep.setPolling(state == wake.Polling)
	if s.sweep.polling {
		s.ids = nil
	}
	s.idle.wakeAll()
}

// settle waits for silent writers. Their transaction ids are below xid. They have ended once the snapshot of a sweep
// shows that.
func (s *scheduler) settle(xid uint64) func(context.Context) (wake.Writers, error) {
	return func(context.Context) (wake.Writers, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sweep.xmin < xid {
			return wake.Open, nil
		}
		return wake.Ended, nil
	}
}

// sweepNow requests a sweep from the low watermark.
func (s *scheduler) sweepNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep.begin(sweepLow)
	s.idle.wakeAll()
}

// sweepAll requests a sweep of the whole table.
func (s *scheduler) sweepAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep.begin(sweepFull)
	s.due.now = true
	s.idle.wakeAll()
}

// dueIn reports that a delivery will be due after d.
func (s *scheduler) dueIn(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now().Add(d)
	if s.due.at.IsZero() || at.Before(s.due.at) {
		s.due.at = at
		s.idle.wake()
	}
}

// onCapacity records that a lane that refused work has capacity again.
func (s *scheduler) capacity() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due.now = s.due.now || s.due.blocked
	s.sweep.restUntil = time.Time{}
	s.idle.wakeAll()
}

// dueNow records that deliveries have become due.
func (s *scheduler) dueNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due.now = true
	s.idle.wakeAll()
}

// pauseClaims stops all claims while a claimer writes the answers of a lost claim: delivered events must not be
// claimed again before. delta is +1 at the beginning and -1 at the end.
func (s *scheduler) pauseClaims(delta int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claimsPaused += delta
	s.idle.wakeAll()
}

// next waits for a query. It returns false once the scheduler is stopped.
func (s *scheduler) next() (Query, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for !s.stopped {
		if s.claimsPaused == 0 {
			now := time.Now()
			if q, ok := s.pickLocked(now); ok {
				return q, true
			}
			s.armLocked(now)
		}
		s.idle.wait(&s.mu)
	}
	return Query{}, false
}

// pickLocked prefers named ids, which wait only for a claimer. Due deliveries and sweeps take turns: however many
// deliveries of one destination are due, sweeps find the fresh events of others.
func (s *scheduler) pickLocked(now time.Time) (Query, bool) {
	if len(s.ids) > 0 {
		q := Query{Source: SourceIDs, IDs: s.ids, Bytes: s.limits.Bytes, asked: now}
		s.ids = nil
		return q, true
	}

	if !s.due.last {
		if q, ok := s.dueQueryLocked(now); ok {
			s.due.last = true
			return q, true
		}
	}

	s.due.last = false
	if q, ok := s.anySweepLocked(now); ok {
		return q, true
	}

	q, ok := s.dueQueryLocked(now)
	s.due.last = ok
	return q, ok
}

// anySweepLocked returns the next sweep: the common one, or a lane's.
func (s *scheduler) anySweepLocked(now time.Time) (Query, bool) {
	if s.sweeping {
		return Query{}, false
	}

	common := s.sweep.due(now) && !now.Before(s.turns.pauseUntil)
	if s.turns.lagNext || !common {
		if q, ok := s.lagQueryLocked(now); ok {
			s.turns.lagNext = false
			return q, true
		}
	}

	if !common {
		return Query{}, false
	}
	s.turns.lagNext = s.lagTurnLocked()
	return s.sweepQueryLocked(now)
}

// dueQueryLocked returns a query for due deliveries, if any may exist.
func (s *scheduler) dueQueryLocked(now time.Time) (Query, bool) {
	isDue := s.due.now || !s.due.at.IsZero() && !now.Before(s.due.at)
	if s.due.claiming || !isDue {
		return Query{}, false
	}

	s.due.now = false
	s.due.blocked = false
	s.due.at = time.Time{}
	wanted := s.wantedLocked()
	s.due.claiming = len(wanted) > 0
	return Query{Source: SourceDue, Wanted: wanted, Since: s.due.cursor.begin(now), Bytes: s.limits.Bytes, asked: now}, s.due.claiming
}

// sweepQueryLocked continues the common sweep, if any lane has capacity for its events.
func (s *scheduler) sweepQueryLocked(now time.Time) (Query, bool) {
	if s.sweep.start(now) && s.sweep.kind == sweepFull && s.sweep.cursor == beforeAll {
		for _, g := range s.lagged {
			g.rewind(beforeAll) // new events may be behind these positions
		}
	}

	if !now.Before(s.due.nextPoll) {
		s.due.now = true
		s.due.nextPoll = now.Add(s.limits.PollInterval)
	}

	q := Query{
		Source: SourceSweep, After: s.sweep.cursor, Limit: s.limitLocked(), Bytes: s.limits.Bytes,
		Skip: s.skipLocked(), passes: len(s.lagged) > 0, asked: now,
	}
	q.Upto, q.step = s.idLimit.upto(q.After, math.MaxInt64)
	// The next sweep can skip these events.
	q.Highest = len(q.Skip) > 0
	q.OpenWriters = s.sweep.writers.any() || s.idLimit.ids > 0
	if q.Limit > 0 {
		s.sweeping = true
		return q, true
	}

	// Every lane is full or paused, so no lane could take an event. A call of onCapacity resumes the sweep. Lanes may
	// be paused from the start, for any time.
	s.sweep.wait(now)
	s.swept = true
	s.readyLocked()

	if len(s.lagged) == len(s.lanes) {
		// All lanes lag: their own sweeps find the events, and the common sweep would wait for the slowest lane.
		s.sweep.abandon(now)
	}
	return s.lagQueryLocked(now)
}

// lag is the position of a lane that the common sweep passed over: the lane has its own sweep until it catches up.
// The scheduler's lock guards it.
type lag struct {
	after    int64  // the lane's sweep continues after this id
	returned int64  // the same, for events returned since that sweep began
	low      int64  // the low watermark when the common sweep passed the lane
	served   uint64 // number of the lane's last sweep, counted over all lanes
}

// rewind moves the lane's sweep back to the id.
func (g *lag) rewind(after int64) { g.after, g.returned = min(g.after, after), min(g.returned, after) }

// lagLocked makes the common sweep skip the lane, and the lane's sweep start after the id.
func (s *scheduler) lagLocked(l dispatch.QueueLane, after int64) {
	g := s.lagged[l]
	if g == nil {
		g = &lag{after: math.MaxInt64, returned: math.MaxInt64, low: s.sweep.low.id}
		s.lagged[l] = g
	}
	g.rewind(after)
}

// passedOver records the first events that lanes refused. The claimer calls it at the refusal, and again when the
// rows are free: a sweep in between finds them locked.
func (s *scheduler) passedOver(first map[dispatch.QueueLane]int64) {
	if len(first) == 0 {
		return
	}
	s.mu.Lock()

	defer s.mu.Unlock()
	for l, id := range first {
		s.lagLocked(l, id-1)
	}
	s.idle.wakeAll()
}

// skipLocked lists the event types whose lanes all lag.
func (s *scheduler) skipLocked() []string {
	if len(s.lagged) == 0 {
		return nil
	}
	return s.route.TypesOf(func(lanes []dispatch.QueueLane) bool {
		return !slices.ContainsFunc(lanes, func(l dispatch.QueueLane) bool { return s.lagged[l] == nil })
	})
}

// lagQueryLocked returns a sweep for a lagging lane with capacity.
func (s *scheduler) lagQueryLocked(now time.Time) (Query, bool) {
	for _, l := range s.byPriorityLocked() {
		capacity := min(l.Capacity(false), s.batchLocked())
		if capacity == 0 {
			continue
		}

		g := s.lagged[l]
		s.turns.lags++
		g.served = s.turns.lags
		g.returned = math.MaxInt64
		s.sweeping = true

		// Unknown types may be for this lane. Events beyond the common sweep are left to the common sweep.
		others := s.route.TypesOf(func(lanes []dispatch.QueueLane) bool { return !slices.Contains(lanes, l) })
		q := Query{Source: SourceSweep, After: g.after, Limit: capacity, Bytes: s.limits.Bytes, Skip: others, lane: l, asked: now}
		q.Upto, q.step = s.idLimit.upto(g.after, s.sweep.head)
		return q, true
	}
	return Query{}, false
}

// caughtUpLocked records the progress of a lane's sweep. A sweep that found less than its limit has caught up, unless
// events were returned since. Then the watermarks move back, for two reasons. The common sweep must find the lane's
// events again, and the events that were committed behind the watermarks while their types were skipped.
func (s *scheduler) caughtUpLocked(q *Query, c *Claimed) {
	g := s.lagged[q.lane]
	if g == nil {
		return
	}
	if g.after < q.After {
		return // a full sweep began since
	}

	g.after = g.returned
	if n := len(c.Work); n > 0 && (c.Cut || n >= q.Limit) {
		g.after = min(g.after, c.Work[n-1].Event.ID)
	} else if q.step {
		g.after = min(g.after, q.Upto)
	}

	if g.after == math.MaxInt64 {
		delete(s.lagged, q.lane)
		s.sweep.rewind(g.low)
	}
}

// wantedLocked returns how many due deliveries each lane can take.
func (s *scheduler) wantedLocked() map[string]int {
	wanted := make(map[string]int, len(s.lanes)+1)
	most := 0
	for _, l := range s.lanes {
		if capacity := l.Capacity(true); capacity > 0 {
			wanted[l.Destination().Name] = min(capacity, s.batchLocked())
			most = max(most, wanted[l.Destination().Name])
		} else {
			s.due.blocked = true
		}
	}

	if most > 0 {
		wanted[""] = most
	}
	return wanted
}

// limitLocked returns the largest capacity of a lane: events that the other lanes cannot take are returned, and swept
// later for these lanes alone. It aims at half of the bytes, because reading rows beyond the limit is wasted.
func (s *scheduler) limitLocked() int {
	most := 0
	for _, l := range s.lanes {
		if s.lagged[l] == nil {
			most = max(most, l.Capacity(false))
		}
	}

	if len(s.lanes) == 0 {
		most = s.limits.Batch // without lanes every event is unrouted, and is marked so
	}
	return min(most, s.batchLocked())
}

const (
	// lesserTurn is the number of sweeps in which a lane of lower priority gets one turn, so that no lane starves.
	lesserTurn = 8
	// sharedPart is the fraction 1/sharedPart of a claim from which a destination is not passed over: each event that
	// it shares with a more urgent destination would need its own row.
	sharedPart = 8
	// pauseFactor is how long the common sweep pauses for lagging lanes after it found nothing more urgent, as a
	// multiple of the duration of that sweep. In a backlog that it only has to pass, the first such sweep takes long.
	// longestPause bounds the pause, and so the delay of an urgent event.
	pauseFactor  = 4
	longestPause = 20 * time.Millisecond
)

// Priorities use the mechanism for destinations without capacity. During a backlog the common sweep passes over the
// lanes of lower priority, and so reaches the events of the others at once. The passed lanes catch up with their own
// sweeps.

// turns decides which sweep is next. The scheduler's lock guards it.
type turns struct {
	ranked     bool      // lanes have different priorities
	lagNext    bool      // the last sweep was the common one
	sweeps     uint64    // common sweeps during a backlog of more urgent events
	lags       uint64    // sweeps of lagging lanes
	pauseUntil time.Time // the common sweep pauses for lagging lanes until then
}

// isRanked reports whether the lanes have different priorities.
func isRanked(lanes []dispatch.QueueLane) bool {
	return slices.ContainsFunc(lanes, func(l dispatch.QueueLane) bool { return l.Destination().Priority != lanes[0].Destination().Priority })
}

// yieldLocked passes over the less urgent lanes after a full claim of the common sweep, which has read everything up
// to last.
func (s *scheduler) yieldLocked(c *Claimed, last int64) {
	if !s.turns.ranked {
		return
	}
	top := topPriority(s.lanes, s.lagged)

	for _, l := range s.lanes {
		if s.lagged[l] != nil || l.Destination().Priority >= top || s.sharesLocked(l, c) {
			continue
		}
		s.lagLocked(l, last)
	}
}

// topPriority returns the highest priority among the lanes that the common sweep can serve. Full or unavailable lanes
// do not make others wait.
func topPriority(lanes []dispatch.QueueLane, lagged map[dispatch.QueueLane]*lag) int {
	top := math.MinInt
	for _, l := range lanes {
		if lagged[l] == nil && l.HasCapacity() {
			top = max(top, l.Destination().Priority)
		}
	}
	return top
}

// sharesLocked reports whether the lane shares much of the claim with more urgent lanes.
func (s *scheduler) sharesLocked(l dispatch.QueueLane, c *Claimed) bool {
	shared := 0
	for i := range c.Work {

		lanes, _ := s.route.LanesOf(c.Work[i].Event.Type)
		isMoreUrgent := func(o dispatch.QueueLane) bool { return o.Destination().Priority > l.Destination().Priority }
		if slices.Contains(lanes, l) && slices.ContainsFunc(lanes, isMoreUrgent) {
			shared++
		}
	}
	return shared*sharedPart >= len(c.Work)
}

// lagTurnLocked reports whether a lagging lane precedes the common sweep. They take turns, unless the common sweep is
// in a backlog of more urgent events.
func (s *scheduler) lagTurnLocked() bool {
	if !s.turns.ranked || !s.sweep.active {
		return true
	}
	s.turns.sweeps++
	return s.turns.sweeps%lesserTurn == 0
}

// pauseCommonLocked lets lagging lanes precede the common sweep for a moment.
func (s *scheduler) pauseCommonLocked(now time.Time, q *Query, full bool) {
	if s.turns.ranked && !full && q.passes {
		s.turns.pauseUntil = now.Add(min(pauseFactor*now.Sub(q.asked), longestPause))
	}
}

// byPriorityLocked returns the lagging lanes, the most urgent first. Among equals the lane swept longest ago comes
// first; once in lesserTurn sweeps, that lane precedes all others.
func (s *scheduler) byPriorityLocked() []dispatch.QueueLane {
	var lagging []dispatch.QueueLane
	for _, l := range s.lanes {
		if s.lagged[l] != nil {
			lagging = append(lagging, l)
		}
	}
	if len(lagging) < 2 {
		return lagging
	}

	fair := s.turns.lags%lesserTurn == lesserTurn-1
	slices.SortStableFunc(lagging, func(a, b dispatch.QueueLane) int {
		if d := b.Destination().Priority - a.Destination().Priority; d != 0 && !fair {
			return d
		}
		return cmp.Compare(s.lagged[a].served, s.lagged[b].served)
	})
	return lagging
}

// batchLocked returns how many events a claim may request. The first claim requests all: a lane that fails chooses among
// the events that the common sweep has passed, and all of a few could be bad.
func (s *scheduler) batchLocked() int {
	if s.rowSize == (wire.RowSize{}) {
		return s.limits.Batch
	}
	return s.rowSize.Rows(s.limits.Batch, s.limits.Bytes/2)
}

// claimed records the result of a query, in id order, before the work is handed out.
func (s *scheduler) claimed(q *Query, c *Claimed, err error) (anew *restart) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.idle.wakeAll()

	s.counters.query(q.Source, err != nil)
	if err != nil {
		s.failedLocked(q, err)
		return nil
	}

	if n := len(c.Work); n > 0 {
		s.counters.events(n)
		s.rowSize.Saw(n, c.Bytes)
	}

	if q.Source != SourceDue {
		s.relay.Saw(len(c.Work), c.Cut || q.Source == SourceSweep && len(c.Work) >= q.Limit, q.Source == SourceIDs)
	}

	switch q.Source {
	case SourceIDs:
		for i := range c.Work {
			s.sweep.head = max(s.sweep.head, c.Work[i].Event.ID)
			s.sweep.writers.belowNear = s.sweep.writers.belowNear || c.Work[i].Event.ID <= s.sweep.near.id
		}
	case SourceDue:
		s.due.claiming = false
		behind := s.due.cursor.claimed(time.Now(), q, c)
		s.due.now = s.due.now || len(c.Work) > 0 || behind // there may be more
		if c.NextDue >= 0 {
			if at := time.Now().Add(c.NextDue); s.due.at.IsZero() || at.Before(s.due.at) {
				s.due.at = at
			}
		}
	case SourceSweep:
		s.sweeping = false
		anew = s.sweptLocked(q, c)
	}
	return anew
}

// failedLocked schedules another search for the failed query's work. After a lost connection the full sweep finds all
// rows that were locked. A query that took too long is repeated with a smaller bound, and requests no larger one.
func (s *scheduler) failedLocked(q *Query, err error) {
	// The payloads may have been too large to read in time; successful claims correct this.
	s.rowSize.Failed()
	switch q.Source {
	case SourceDue:
		s.due.claiming = false
	case SourceSweep:
		s.sweeping = false
		if store.IsCanceled(err) {
			s.idLimit.canceled()
		}
		if q.lane != nil {
			s.lagLocked(q.lane, q.After)
		}
	case SourceIDs: // a sweep finds them
	}

	s.due.now = true
	switch {
	case store.IsDown(err):
		s.sweep.begin(sweepFull)
	case q.Source == SourceIDs:
		s.sweep.begin(sweepLow)
	}
}

func (s *scheduler) sweptLocked(q *Query, c *Claimed) *restart {
	now := time.Now()
	last := q.After
	full := c.Cut || len(c.Work) >= q.Limit
	if s.idLimit.ids > 0 {
		s.idLimit.took(q, now.Sub(q.asked), c.LastID)
	}

	if len(c.Work) > 0 {
		last = c.Work[len(c.Work)-1].Event.ID
		s.sweep.head = max(s.sweep.head, last)
	}

	if q.lane != nil {
		s.caughtUpLocked(q, c)
		return nil
	}

	hasReadAll := q.Highest && !full && !q.step
	if hasReadAll && c.Highest > last {
		// The claim has read that far: the next one need not read the events of lagging lanes again.
		s.sweep.head = max(s.sweep.head, c.Highest)
	}

	if full {
		s.yieldLocked(c, last)
	}

	s.pauseCommonLocked(now, q, full)
	s.behindLocked(full)
	s.sweep.swept(now, *q, c)
	s.swept = true
	s.readyLocked()

	anew := s.sweep.restarted(q, c)
	if anew != nil {
		for _, g := range s.lagged {
			g.rewind(beforeAll)
			g.low = min(g.low, s.sweep.low.id)
		}
	}
	return anew
}

// warmed records that a claimer has tried to connect.
func (s *scheduler) warmed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cold--
	s.readyLocked()
}

func (s *scheduler) readyLocked() {
	if s.swept && s.cold == 0 {
		s.cold = -1 // only once
		close(s.ready)
	}
}

// behindLocked tells the relay whether more can be claimed.
func (s *scheduler) behindLocked(is bool) {
	switch {
	case is && !s.behind:
		s.relay.Behind(1)
	case !is && s.behind:
		s.relay.Behind(-1)
	}
	s.behind = is
}

// again records that rows of a claim are free and unchanged.
func (s *scheduler) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due.now = true
	s.sweep.begin(sweepFull)
	s.idle.wakeAll()
}

// armLocked sets the timer for the next due change. A query in flight needs no timer: its end wakes every claimer. A
// timer for its time would make the idle claimers check again and again.
func (s *scheduler) armLocked(now time.Time) {
	var at time.Time

	if !s.sweeping {
		at = s.sweep.next
		if s.sweep.polling && s.sweep.restUntil.Before(at) {
			at = s.sweep.restUntil
		}
		if now.Before(s.turns.pauseUntil) && (s.sweep.due(now) || at.Before(s.turns.pauseUntil)) {
			at = s.turns.pauseUntil
		}
	}

	awaitsDue := !s.due.claiming && !s.due.at.IsZero()
	if awaitsDue && (s.sweeping || s.due.at.Before(at)) {
		at = s.due.at
	}

	if at.IsZero() {
		s.timer.Stop()
		return
	}
	s.timer.Reset(max(0, at.Sub(now)))
}

// settledBelow returns the low watermark: fresh events below it are rare.
func (s *scheduler) settledBelow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sweep.low.id
}

// spread is the share by which the time between two polls varies, so that relays started together do not poll together.
const spread = 0.1

// stats adds the figures of claims.
func (s *scheduler) stats(to *observe.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counters.stats(to)
	to.WakeState = s.relay.State().String()
}
