package queue

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/wake"
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

// batchLocked is how many events a claim may ask for.
func (s *scheduler) batchLocked() int {
	return min(s.limits.Batch, max(1, s.limits.Bytes/2/max(1, s.eventBytes)))
}
