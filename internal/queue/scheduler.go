package queue

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/wake"
	"github.com/notifyd/notifyd/observe"
)

// scheduler decides what is claimed next. Hints, timers and lanes report where work may be;
// claimers get queries from it and report their results.
//
// Fresh events are found in three ways: by an id that the bell named, by the common sweep of the
// table in the order of ids, and by the own sweep of a lane that had no room when the common sweep
// passed. Only one sweep is in flight at a time: the next one begins where it ended.
type scheduler struct {
	limits engine.Limits
	lanes  []dispatch.QueueLane
	route  routes
	relay  *wake.Machine

	mu    sync.Mutex
	idle  idle // claimers that wait until something below has changed
	timer *time.Timer

	stopped   bool
	hurry     chan struct{} // capacity 1: a claimer that waits for handlers should come
	salvaging int           // claimers that must first write the answers of a lost claim

	ids      []int64 // named by the bell, not yet claimed
	sweeping bool    // a sweep is in flight
	sweep    sweep
	span     span
	lagged   map[dispatch.QueueLane]*lag // lanes that were passed over
	turns    turns

	eventBytes int // average size of a row
	tally      tally

	due due

	ready  chan struct{} // closed after the first sweep, once all claimers are warm
	swept  bool
	behind bool // the last common sweep was full
	cold   int  // claimers that have not tried to connect; -1 once ready is closed
}

// due is the state of searching for due deliveries. The scheduler's lock guards it.
type due struct {
	claiming bool // a claim of due deliveries is in flight
	since    since
	last     bool // the last query was for due deliveries: it is a sweep's turn
	now      bool
	blocked  bool      // a lane had no room at the last query
	at       time.Time // zero: unknown
	nextPoll time.Time // finds deliveries that another relay left behind
}

// routes map event types to lanes. [dispatch.Dispatcher] implements it.
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
	relay.Settle, relay.Changed = s.settle, s.changed
	return s
}

// poke makes every waiting claimer check again.
func (s *scheduler) poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle.wakeAll()
}

// stop ends all waits: next returns false from now on.
func (s *scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.timer.Stop()
	s.idle.wakeAll()
}

// hint passes an id from a notification. It never blocks. Too many ids make the relay poll: it then
// sweeps the table.
func (s *scheduler) hint(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sweep.polling {
		return // the sweep will find it
	}
	s.relay.Heard()
	if s.ids = append(s.ids, id); len(s.ids) >= wake.Pressure {
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
	s.sweep.turn(state == wake.Polling)
	if s.sweep.polling {
		s.ids = nil
	}
	s.idle.wakeAll()
}

// settle waits for silent writers. They have transaction ids below xid, and have ended when a snapshot says
// so that a sweep took.
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

// sweepNow requests a sweep of what may be new.
func (s *scheduler) sweepNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep.begin(sweepLow)
	s.idle.wakeAll()
}

// look requests a sweep of the whole table.
func (s *scheduler) look() {
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

// room records that a lane that refused work has room again.
func (s *scheduler) room() {
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

// salvage stops all claims while the answers of a lost claim are being written, so that delivered
// events are not claimed again before. delta is +1 at the beginning and -1 at the end.
func (s *scheduler) salvage(delta int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.salvaging += delta
	s.idle.wakeAll()
}

// next waits until there is something to claim. It returns false once the scheduler is stopped.
func (s *scheduler) next() (Query, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.stopped {
		if s.salvaging == 0 {
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

// pickLocked prefers work that waits for nothing but a claimer: first named ids, then due
// deliveries and sweeps, in turns: however many deliveries of one destination are due, the fresh
// events of others are found.
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

// anySweepLocked returns the next sweep, the common one or that of a lane.
func (s *scheduler) anySweepLocked(now time.Time) (Query, bool) {
	if s.sweeping {
		return Query{}, false
	}
	common := s.sweep.due(now) && !now.Before(s.turns.wayUntil)
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

// dueQueryLocked returns a query for due deliveries, if there may be any.
func (s *scheduler) dueQueryLocked(now time.Time) (Query, bool) {
	if s.due.claiming || !s.due.now && (s.due.at.IsZero() || now.Before(s.due.at)) {
		return Query{}, false
	}
	s.due.now, s.due.blocked, s.due.at = false, false, time.Time{}
	wanted := s.wantedLocked()
	s.due.claiming = len(wanted) > 0
	return Query{Source: SourceDue, Wanted: wanted, Since: s.due.since.begin(now), Bytes: s.limits.Bytes, asked: now}, s.due.claiming
}

// sweepQueryLocked continues the common sweep, if any lane has room for the events it may find.
func (s *scheduler) sweepQueryLocked(now time.Time) (Query, bool) {
	if s.sweep.start(now) && s.sweep.kind == sweepFull && s.sweep.cursor == beforeAll {
		for _, g := range s.lagged {
			g.back(beforeAll) // new events may be behind these positions, too
		}
	}
	if !now.Before(s.due.nextPoll) {
		s.due.now, s.due.nextPoll = true, now.Add(s.limits.PollInterval)
	}
	q := Query{
		Source: SourceSweep, After: s.sweep.cursor, Limit: s.limitLocked(), Bytes: s.limits.Bytes,
		Skip: s.skipLocked(), passes: len(s.lagged) > 0, asked: now,
	}
	q.Upto, q.step = s.span.upto(q.After, math.MaxInt64)
	// The next sweep need not step over the skipped events again.
	q.Reach, q.Doubt = len(q.Skip) > 0, s.sweep.doubts.any() || s.span.ids > 0
	if q.Limit > 0 {
		s.sweeping = true
		return q, true
	}
	// Every lane is full or paused, so no lane could take what a sweep finds. A call of room
	// resumes the sweep. They may have been paused from the start, and for as long as a person likes.
	s.sweep.wait(now)
	s.swept = true
	s.readyLocked()
	if len(s.lagged) == len(s.lanes) {
		// Or all lanes lag: their own sweeps find the events, and the common sweep would wait for
		// the slowest lane.
		s.sweep.leave(now)
	}
	return s.lagQueryLocked(now)
}

// lag is the position of a lane that was passed over: the lane has a sweep of its own until it has
// caught up with the common one. The scheduler's lock guards it.
type lag struct {
	after  int64  // its own sweep continues after this id
	given  int64  // the same, for events given back since that sweep began
	low    int64  // the low mark when the common sweep left the lane out
	served uint64 // the number of its last sweep, counted over all lanes
}

// back moves the lane's sweep back to the id.
func (g *lag) back(after int64) { g.after, g.given = min(g.after, after), min(g.given, after) }

// lagLocked makes the common sweep skip the lane, and the lane's own sweep start after the id.
func (s *scheduler) lagLocked(l dispatch.QueueLane, after int64) {
	g := s.lagged[l]
	if g == nil {
		g = &lag{after: math.MaxInt64, given: math.MaxInt64, low: s.sweep.low.low}
		s.lagged[l] = g
	}
	g.back(after)
}

// passedOver records the first events that lanes were offered and refused. It is called when that
// is known, and again when the rows are free: a sweep in between finds them locked.
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

// lagQueryLocked returns a sweep for a lane that lags and has room again.
func (s *scheduler) lagQueryLocked(now time.Time) (Query, bool) {
	for _, l := range s.byPriorityLocked() {
		room := min(l.Capacity(false), s.batchLocked())
		if room == 0 {
			continue
		}
		g := s.lagged[l]
		s.turns.lags++
		g.served, g.given = s.turns.lags, math.MaxInt64
		s.sweeping = true
		// Types that were never seen may be for this lane. Events beyond the common sweep are left
		// to the common sweep.
		others := s.route.TypesOf(func(lanes []dispatch.QueueLane) bool { return !slices.Contains(lanes, l) })
		q := Query{Source: SourceSweep, After: g.after, Limit: room, Bytes: s.limits.Bytes, Skip: others, lane: l, asked: now}
		q.Upto, q.step = s.span.upto(g.after, s.sweep.head)
		return q, true
	}
	return Query{}, false
}

// caughtUpLocked records the progress of a lane's own sweep. A sweep that found less than its limit
// has caught up, unless events were given back meanwhile. The marks then move back, so that the
// common sweep finds the lane's events again, and with them those that were committed behind the
// marks while their types were skipped.
func (s *scheduler) caughtUpLocked(q *Query, c *Claimed) {
	g := s.lagged[q.lane]
	if g == nil {
		return
	}
	if g.after < q.After {
		return // a full sweep began
	}
	g.after = g.given
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
		if room := l.Capacity(true); room > 0 {
			wanted[l.Destination().Name] = min(room, s.batchLocked())
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

// limitLocked is the room of the roomiest lane: events that the other lanes cannot take are put
// back, and swept for these lanes alone later. It aims at half of the bytes, because reading
// rows beyond the limit is wasted.
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
	// lesserTurn is how often, one sweep in so many, a lane of lower priority gets the turn, so
	// that no lane waits for ever.
	lesserTurn = 8
	// sharedPart is the part of a claim, as a fraction 1/sharedPart, from which on a destination is
	// not passed over: each event that it shares with a more urgent destination would need a
	// row of its own.
	sharedPart = 8
	// waySize is how long the common sweep makes way for lagging lanes after it has found nothing
	// more urgent, in multiples of the time that this took. Next to a backlog that it only has to
	// pass, the first such sweep takes long. longestWay bounds the pause, and with it the time until
	// an urgent event is found.
	waySize    = 4
	longestWay = 20 * time.Millisecond
)

// Priorities use the mechanism for destinations without room. During a backlog, the common sweep
// passes over the lanes of lower priority, and so reaches the events of the others at once. The
// passed lanes catch up by sweeps of their own.

// turns decides which sweep is next. The scheduler's lock guards it.
type turns struct {
	ranked   bool      // lanes have different priorities
	lagNext  bool      // the last sweep was the common one
	sweeps   uint64    // common sweeps during a backlog of more urgent events
	lags     uint64    // sweeps of lagging lanes
	wayUntil time.Time // until then the common sweep makes way for lagging lanes
}

// isRanked reports whether the lanes have different priorities.
func isRanked(lanes []dispatch.QueueLane) bool {
	return slices.ContainsFunc(lanes, func(l dispatch.QueueLane) bool { return l.Destination().Priority != lanes[0].Destination().Priority })
}

// yieldLocked passes over the less urgent lanes after a full claim of the common sweep, which has
// read everything up to last.
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

// topPriority returns the highest priority among the lanes that the common sweep can serve. Lanes
// that are full or down do not make others wait.
func topPriority(lanes []dispatch.QueueLane, lagged map[dispatch.QueueLane]*lag) int {
	top := math.MinInt
	for _, l := range lanes {
		if lagged[l] == nil && l.HasCapacity() {
			top = max(top, l.Destination().Priority)
		}
	}
	return top
}

// sharesLocked reports whether much of the claim is for both the lane and a more urgent one.
func (s *scheduler) sharesLocked(l dispatch.QueueLane, c *Claimed) bool {
	shared := 0
	for i := range c.Work {
		lanes, _ := s.route.LanesOf(c.Work[i].Event.Type)
		if slices.Contains(lanes, l) && slices.ContainsFunc(lanes, func(o dispatch.QueueLane) bool { return o.Destination().Priority > l.Destination().Priority }) {
			shared++
		}
	}
	return shared*sharedPart >= len(c.Work)
}

// lagTurnLocked reports whether a lagging lane goes before the common sweep: in turns, unless the
// common sweep is in a backlog of more urgent events.
func (s *scheduler) lagTurnLocked() bool {
	if !s.turns.ranked || !s.sweep.active {
		return true
	}
	s.turns.sweeps++
	return s.turns.sweeps%lesserTurn == 0
}

// makeWayLocked lets lagging lanes go before the common sweep for a moment.
func (s *scheduler) makeWayLocked(now time.Time, q *Query, full bool) {
	if s.turns.ranked && !full && q.passes {
		s.turns.wayUntil = now.Add(min(waySize*now.Sub(q.asked), longestWay))
	}
}

// byPriorityLocked returns the lagging lanes, the most urgent first. Among equals the lane that was
// swept longest ago comes first; once in lesserTurn sweeps, it comes before all others.
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

// batchLocked is how many events a claim may ask for.
func (s *scheduler) batchLocked() int {
	return min(s.limits.Batch, max(1, s.limits.Bytes/2/max(1, s.eventBytes)))
}

// claimed records the result of a query, in the order of ids, before the work is handed out.
func (s *scheduler) claimed(q *Query, c *Claimed, err error) (anew *restart) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.idle.wakeAll()
	s.tally.asked(q.Source, err != nil)
	if err != nil {
		s.failedLocked(q, err)
		return nil
	}
	if n := len(c.Work); n > 0 {
		s.tally.claimed(n)
		s.eventBytes = (3*s.eventBytes + c.Bytes/n) / 4
	}
	if q.Source != SourceDue {
		s.relay.Saw(len(c.Work), c.Cut || q.Source == SourceSweep && len(c.Work) >= q.Limit, q.Source == SourceIDs)
	}
	switch q.Source {
	case SourceIDs:
		for i := range c.Work {
			s.sweep.head = max(s.sweep.head, c.Work[i].Event.ID)
			s.sweep.doubts.behind = s.sweep.doubts.behind || c.Work[i].Event.ID <= s.sweep.near.low
		}
	case SourceDue:
		s.due.claiming = false
		behind := s.due.since.claimed(time.Now(), q, c)
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

// failedLocked schedules another search for what the failed query looked for. After a lost
// connection the full sweep finds whatever was locked. A query that took too long is repeated with
// a smaller bound, and starts nothing that takes longer still.
func (s *scheduler) failedLocked(q *Query, err error) {
	// Perhaps the payloads were too much to read in time; successful claims correct this.
	s.eventBytes = min(4*max(s.eventBytes, 1<<10), s.limits.Bytes)
	switch q.Source {
	case SourceDue:
		s.due.claiming = false
	case SourceSweep:
		s.sweeping = false
		if store.IsCanceled(err) {
			s.span.canceled()
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
	last, full := q.After, c.Cut || len(c.Work) >= q.Limit
	if s.span.ids > 0 {
		s.span.took(q, now.Sub(q.asked), c.LastID)
	}
	if len(c.Work) > 0 {
		last = c.Work[len(c.Work)-1].Event.ID
		s.sweep.head = max(s.sweep.head, last)
	}
	if q.lane != nil {
		s.caughtUpLocked(q, c)
		return nil
	}
	if q.Reach && !full && !q.step && c.Reach > last {
		// The claim has read that far: the next one need not read the events of lagging lanes
		// again.
		s.sweep.head = max(s.sweep.head, c.Reach)
	}
	if full {
		s.yieldLocked(c, last)
	}
	s.makeWayLocked(now, q, full)
	s.behindLocked(full)
	s.sweep.swept(now, *q, c)
	s.swept = true
	s.readyLocked()
	anew := s.sweep.restarted(q, c)
	if anew != nil {
		for _, g := range s.lagged {
			g.back(beforeAll)
			g.low = min(g.low, s.sweep.low.low)
		}
	}
	return anew
}

// warmed records that a claimer has connected, or has tried to.
func (s *scheduler) warmed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cold--
	s.readyLocked()
}

func (s *scheduler) readyLocked() {
	if s.swept && s.cold == 0 {
		s.cold = -1 // once
		close(s.ready)
	}
}

// behindLocked tells the relay whether there is more to claim.
func (s *scheduler) behindLocked(is bool) {
	switch {
	case is && !s.behind:
		s.relay.Behind(1)
	case !is && s.behind:
		s.relay.Behind(-1)
	}
	s.behind = is
}

// again records that rows of a claim are free again, unchanged.
func (s *scheduler) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due.now = true
	s.sweep.begin(sweepFull)
	s.idle.wakeAll()
}

// armLocked sets the timer for the next thing that is due. A query in flight needs no timer: its
// end wakes every claimer. A timer for a time that passes meanwhile would make the idle claimers
// check again and again.
func (s *scheduler) armLocked(now time.Time) {
	var at time.Time
	if !s.sweeping {
		at = s.sweep.next
		if s.sweep.polling && s.sweep.restUntil.Before(at) {
			at = s.sweep.restUntil
		}
		if now.Before(s.turns.wayUntil) && (s.sweep.due(now) || at.Before(s.turns.wayUntil)) {
			at = s.turns.wayUntil
		}
	}
	if !s.due.claiming && !s.due.at.IsZero() && (s.sweeping || s.due.at.Before(at)) {
		at = s.due.at
	}
	if at.IsZero() {
		s.timer.Stop()
		return
	}
	s.timer.Reset(max(0, at.Sub(now)))
}

// settledBelow returns the low mark: fresh events below it are rare.
func (s *scheduler) settledBelow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sweep.low.low
}

// jittered varies d by up to 5 % either way, so that relays that were started together do not poll
// together.
func jittered(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.2*float64(d)) //nolint:gosec // spreads load, hides nothing
}

// stats adds the figures of claims.
func (s *scheduler) stats(to *observe.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.stats(to)
	to.Bell = s.relay.State().String()
}
