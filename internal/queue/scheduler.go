package queue

import (
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
)

// scheduler decides what is claimed next. Hints, timers and lanes tell it what
// may be there; claimers ask it for a query and report what came of it.
//
// Fresh events are found in three ways: by an id that the bell named, by
// sweeping the table in the order of ids, and by the sweep of one lane that
// had no room when its events came by. Only one sweep is in flight at a time:
// the next one begins where it ended.
type scheduler struct {
	limits engine.Limits
	lanes  []dispatch.Lane
	route  routes
	bell   bellControl

	mu   sync.Mutex
	idle idle // claimers that wait until something below has changed
	wake *time.Timer

	stopped   bool
	hurry     chan struct{} // capacity 1: somebody should come who waits for handlers
	salvaging int           // claimers that have answers to write first

	ids      []int64 // named by the bell, not yet claimed
	hearing  hearing
	sweeping bool // a sweep is in flight
	sweep    sweep
	lagged   map[dispatch.Lane]*lag // lanes that were passed over
	turns    turns

	eventBytes int // of a payload, on average
	tally      tally

	due due

	ready   chan struct{} // closed after the first sweep, once all claimers are warm
	isReady bool
	swept   bool
	cold    int // claimers that have not tried to connect
}

// due is what is known of deliveries that had to wait. The scheduler's lock guards it.
type due struct {
	claiming bool // a claim of due deliveries is in flight
	now      bool
	blocked  bool      // a lane had no room when last asked
	at       time.Time // zero: nothing known
	nextPoll time.Time // deliveries that another relay left behind
}

// routes say where event types go. A [dispatch.Dispatcher] has them.
type routes interface {
	LanesOf(eventType string) (lanes []dispatch.Lane, firstTime bool)
	TypesOf(f func(lanes []dispatch.Lane) bool) []string
}

// bellControl is how the scheduler works the bell; see bellringer.
type bellControl interface {
	silence()
	ring()
	watch(rate float64)
}

func newScheduler(limits engine.Limits, lanes []dispatch.Lane, route routes, bell bellControl) *scheduler {
	s := &scheduler{
		limits: limits, lanes: lanes, route: route, bell: bell, turns: turns{ranked: isRanked(lanes)}, lagged: make(map[dispatch.Lane]*lag),
		hurry: make(chan struct{}, 1), ready: make(chan struct{}), due: due{now: true}, cold: limits.Claims,
	}
	s.wake = time.AfterFunc(time.Hour, s.poke)
	s.sweep.low.settle, s.sweep.poll = settleTime, limits.PollInterval
	s.sweep.begin(sweepFull)
	// Writers may have been silent for a relay that has died since, and not have
	// committed yet: falling asleep properly is what waits for them.
	s.sweep.mode = ringing
	bell.ring()
	return s
}

// poke lets every waiting claimer look again.
func (s *scheduler) poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle.wakeAll()
}

// stop ends all waiting: next returns false from now on.
func (s *scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.wake.Stop()
	s.idle.wakeAll()
}

// hint takes an id from the bell. It never blocks; what is too much becomes a
// look at the table.
func (s *scheduler) hint(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sweep.awake() {
		return // the sweep will meet it
	}
	s.ids = append(s.ids, id)
	if rate := s.hearing.count(time.Now()); rate >= watchFrom {
		s.bell.watch(rate)
	}
	if len(s.ids) >= pressure {
		s.wakeUpLocked()
	}
	if s.idle.nobody() {
		select {
		case s.hurry <- struct{}{}:
		default:
		}
	}
	s.idle.wake()
}

// queued takes word that writers queue up to ring, at the given rate: silence
// is worth while if more is found in it.
func (s *scheduler) queued(rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sweep.awake() {
		return
	}
	s.wakeUpLocked()
	s.sweep.floor = rate * silencePays
	s.idle.wakeAll()
}

// look takes word that there may be anything: the whole table is swept.
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

// room reports that a lane that refused work can take some.
func (s *scheduler) room() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due.now = s.due.now || s.due.blocked
	s.sweep.restUntil = time.Time{}
	s.idle.wakeAll()
}

// dueNow reports that deliveries have become due.
func (s *scheduler) dueNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due.now = true
	s.idle.wakeAll()
}

// salvage keeps everybody from claiming while answers of a lost claim are to
// be written, so that what was delivered is not claimed again first.
func (s *scheduler) salvage(delta int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.salvaging += delta
	s.idle.wakeAll()
}

// next waits until there is something to claim. It returns false once the
// scheduler is stopped.
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

// pickLocked prefers what has waited for nothing but us: named ids, then what
// is due, then the sweep.
func (s *scheduler) pickLocked(now time.Time) (Query, bool) {
	if len(s.ids) > 0 {
		q := Query{Source: SourceIDs, IDs: s.ids, Bytes: s.limits.Bytes, asked: now}
		s.ids = nil
		return q, true
	}
	if q, ok := s.dueQueryLocked(now); ok {
		return q, true
	}
	if s.sweeping {
		return Query{}, false
	}
	common := s.sweep.due(now) && !now.Before(s.turns.making)
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

// dueQueryLocked asks for what had to wait, if any of it may be due.
func (s *scheduler) dueQueryLocked(now time.Time) (Query, bool) {
	if s.due.claiming || !s.due.now && (s.due.at.IsZero() || now.Before(s.due.at)) {
		return Query{}, false
	}
	s.due.now, s.due.blocked, s.due.at = false, false, time.Time{}
	wanted := s.wantedLocked()
	s.due.claiming = len(wanted) > 0
	return Query{Source: SourceDue, Wanted: wanted, Bytes: s.limits.Bytes, asked: now}, s.due.claiming
}

// sweepQueryLocked goes on with the common sweep, if any lane has room for what
// it finds.
func (s *scheduler) sweepQueryLocked(now time.Time) (Query, bool) {
	if s.sweep.start(now) && s.sweep.kind == sweepFull {
		for _, g := range s.lagged {
			g.back(beforeAll) // events may have come up behind these, too
		}
	}
	if !now.Before(s.due.nextPoll) {
		s.due.now, s.due.nextPoll = true, now.Add(s.limits.PollInterval)
	}
	q := Query{
		Source: SourceSweep, After: s.sweep.cursor, Upto: math.MaxInt64, Limit: s.limitLocked(), Bytes: s.limits.Bytes,
		Skip: s.skipLocked(), passes: len(s.lagged) > 0, asked: now,
	}
	q.Reach = s.turns.ranked && len(q.Skip) > 0
	if q.Limit > 0 {
		s.sweeping = true
		return q, true
	}
	// Every lane is full or paused. Nothing could be done with what a
	// sweep finds; onRoom brings us back here.
	s.sweep.wait(now)
	if len(s.lagged) == len(s.lanes) {
		// Or all lag behind: their own sweeps see to it, and this one
		// would wait for the slowest of them.
		s.sweep.leave(now)
		s.swept = true
		s.readyLocked()
	}
	return s.lagQueryLocked(now)
}

// wantedLocked returns how many due deliveries each lane can take.
func (s *scheduler) wantedLocked() map[string]int {
	wanted := make(map[string]int, len(s.lanes)+1)
	most := 0
	for _, l := range s.lanes {
		if room := l.Roomy(); room > 0 && !l.StoredWait() {
			wanted[l.Name()] = min(room, s.batchLocked())
			most = max(most, wanted[l.Name()])
		} else {
			s.due.blocked = true
		}
	}
	if most > 0 {
		wanted[""] = most
	}
	return wanted
}

// limitLocked is as much as the roomiest lane can take: what the others cannot
// is put back, and swept for them alone later. Half of the bytes are aimed at,
// because what does not fit is read in vain.
func (s *scheduler) limitLocked() int {
	most := 0
	for _, l := range s.lanes {
		if s.lagged[l] == nil {
			most = max(most, l.Roomy())
		}
	}
	if len(s.lanes) == 0 {
		most = s.limits.Batch // everything is unrouted, and has to be marked so
	}
	return min(most, s.batchLocked())
}

// batchLocked is how many events a claim may ask for.
func (s *scheduler) batchLocked() int {
	return min(s.limits.Batch, max(1, s.limits.Bytes/2/max(1, s.eventBytes)))
}
