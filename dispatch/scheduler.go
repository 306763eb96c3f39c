package dispatch

import (
	"math"
	"slices"
	"sync"
	"time"
)

// scheduler decides what is claimed next. Hints, timers and lanes tell it what
// may be there; claimers ask it for a query and tell it what came of it.
//
// Fresh events are found in three ways: by an id that the bell named, by
// sweeping the table in the order of ids, and by the sweep of one lane that
// had no room when its events came by. Only one sweep is in flight at a time:
// the next one begins where it ended.
type scheduler struct {
	cfg   Config
	lanes []*lane
	route *router
	bell  bellControl

	mu   sync.Mutex
	cond *sync.Cond // something below has changed
	wake *time.Timer

	stopped   bool
	idle      int           // claimers that wait for something to claim
	hurry     chan struct{} // capacity 1: somebody should come who waits for handlers
	salvaging int           // claimers that have answers to write first

	ids       []int64   // named by the bell, not yet claimed
	heard     int       // ids named since heardAt
	heardAt   time.Time // zero: not counting
	sweeping  bool      // a sweep is in flight
	sweep     sweep
	front     front          // how far the common sweep has come
	knowing   bool           // it has met everything there was once
	bound     int64          // up to where it has met everything
	unmet     map[*lane]bool // lanes that were passed over then
	doubt     doubt
	lagged    map[*lane]*lag // lanes that were passed over
	lagTurn   bool           // the last sweep was the common one
	ranked    bool           // some lanes are more urgent than others
	sweeps    uint64         // common ones in a backlog of what is more urgent
	lagSweeps uint64         // of lanes that lag
	making    time.Time      // until then the common sweep makes way for them
	named     time.Time      // when late events were last claimed by their ids
	naming    uint64         // number of the next claim by id
	namings   []uint64       // those in flight
	lostNamed int            // those that failed

	turn, turns   uint64               // claims handed out, and claims that have come back
	turnCond      *sync.Cond           // turn has changed
	open          map[uint64]openClaim // claims that have come back and are not settled
	claimingLines bool                 // a claim of lines is in flight

	eventBytes int    // of a payload, on average
	claims     uint64 // that found something
	asks       [SourceLines + 1]Asked
	found      uint64 // by them

	divided    bool      // the aggregates are shared with other relays
	slots      []int32   // whose aggregates are this relay's
	slotsUntil time.Time // unless it shows that it still has them
	lapsed     bool      // it did not: others may have them
	doubted    time.Time // when a connection was last lost
	quiet      bool      // nobody is to claim
	atWork     int       // claims that are asked for and not settled

	claimingDue bool // a claim of due deliveries is in flight
	dueNow      bool
	dueBlocked  bool      // a lane had no room when last asked
	dueAt       time.Time // zero: nothing known
	nextDuePoll time.Time // deliveries that another relay left behind

	ready   chan struct{} // closed after the first sweep, once all claimers are warm
	isReady bool
	swept   bool
	cold    int // claimers that have not tried to connect
}

// bellControl is how the scheduler works the bell; see bellringer.
type bellControl interface {
	silence()
	ring()
	watch(rate float64)
}

func newScheduler(cfg Config, lanes []*lane, route *router, bell bellControl) *scheduler {
	s := &scheduler{
		cfg: cfg, lanes: lanes, route: route, bell: bell, lagged: make(map[*lane]*lag), open: make(map[uint64]openClaim),
		hurry: make(chan struct{}, 1), ready: make(chan struct{}), dueNow: true, cold: cfg.Claims,
	}
	s.cond, s.turnCond = sync.NewCond(&s.mu), sync.NewCond(&s.mu)
	s.regainLocked()
	s.wake = time.AfterFunc(time.Hour, s.poke)
	s.sweep.low.settle, s.sweep.poll = settleTime, cfg.PollInterval
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
	s.cond.Broadcast()
}

// stop ends all waiting: next returns false from now on.
func (s *scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.wake.Stop()
	s.cond.Broadcast()
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
	s.countLocked()
	if len(s.ids) >= pressure {
		s.wakeUpLocked()
	}
	if s.idle == 0 {
		select {
		case s.hurry <- struct{}{}:
		default:
		}
	}
	s.cond.Signal()
}

const (
	// listenFor is over how long the rate of named ids is measured.
	listenFor = 50 * time.Millisecond
	// watchFrom is the rate from which it is looked whether writers queue up.
	watchFrom = 100.0
)

// countLocked measures how many ids are named per second. Writers that have to
// ring commit one after the other: the rate alone does not tell whether they
// would be faster in silence, so above a little it is looked after.
func (s *scheduler) countLocked() {
	now := time.Now()
	took := now.Sub(s.heardAt)
	if took < listenFor {
		s.heard++
		return
	}
	if rate := float64(s.heard) / took.Seconds(); rate >= watchFrom && took < 2*listenFor {
		s.bell.watch(rate)
	}
	s.heard, s.heardAt = 1, now
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
	s.cond.Broadcast()
}

// look takes word that there may be anything: the whole table is swept.
func (s *scheduler) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep.begin(sweepFull)
	s.dueNow = true
	s.cond.Broadcast()
}

// dueIn takes word that a delivery will be due after d.
func (s *scheduler) dueIn(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now().Add(d)
	if s.dueAt.IsZero() || at.Before(s.dueAt) {
		s.dueAt = at
		s.cond.Signal()
	}
}

// room takes word that a lane that refused work can take some.
func (s *scheduler) room() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dueNow = s.dueNow || s.dueBlocked
	s.sweep.restUntil = time.Time{}
	s.cond.Broadcast()
}

// due takes word that deliveries have become due.
func (s *scheduler) due() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dueNow = true
	s.cond.Broadcast()
}

// salvage keeps everybody from claiming while answers of a lost claim are to
// be written, so that what was delivered is not claimed again first.
func (s *scheduler) salvage(delta int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.salvaging += delta
	s.cond.Broadcast()
}

// next waits until there is something to claim. It returns false once the
// scheduler is stopped.
func (s *scheduler) next() (Query, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.stopped {
		if s.salvaging == 0 && !s.quiet {
			now := time.Now()
			if q, ok := s.pickLocked(now); ok {
				q.Slots = s.slotsLocked(now)
				s.atWork++
				return q, true
			}
			s.armLocked(now)
		}
		s.idle++
		s.cond.Wait()
		s.idle--
	}
	return Query{}, false
}

// pickLocked prefers what has waited for nothing but us: named ids, then what
// is due, then the sweep.
func (s *scheduler) pickLocked(now time.Time) (Query, bool) {
	if len(s.ids) > 0 && s.knowing {
		return s.idsQueryLocked(now), true
	}
	if !s.claimingDue && (s.dueNow || !s.dueAt.IsZero() && !now.Before(s.dueAt)) {
		s.dueNow, s.dueBlocked, s.dueAt = false, false, time.Time{}
		if wanted := s.wantedLocked(); len(wanted) > 0 {
			s.claimingDue = true
			return Query{Source: SourceDue, Wanted: wanted, Bytes: s.cfg.Bytes, Blocking: s.blocking(), asked: now}, true
		}
	}
	if q, ok := s.lookQueryLocked(now); ok {
		return q, true
	}
	if s.sweeping {
		return Query{}, false
	}
	common := s.sweep.due(now) && !now.Before(s.making)
	if s.lagTurn || !common {
		if q, ok := s.lagQueryLocked(now); ok {
			s.sweeping, s.lagTurn = true, false
			return q, true
		}
	}
	if !common {
		return Query{}, false
	}
	s.lagTurn = s.lagTurnLocked()
	return s.sweepQueryLocked(now)
}

// sweepQueryLocked goes on with the common sweep, if any lane has room for what
// it finds.
func (s *scheduler) sweepQueryLocked(now time.Time) (Query, bool) {
	if s.sweep.start(now) && s.sweep.kind == sweepFull {
		for _, l := range s.laggingLocked() {
			l.lag(beforeAll) // events may have come up behind these, too
		}
	}
	if !now.Before(s.nextDuePoll) {
		s.dueNow, s.nextDuePoll = true, now.Add(s.cfg.PollInterval)
		for _, l := range s.lanes {
			l.lookAgain()
		}
	}
	lagging := s.laggingLocked()
	q := Query{
		Source: SourceSweep, After: s.sweep.cursor, Upto: math.MaxInt64, Limit: s.limitLocked(lagging), Bytes: s.cfg.Bytes,
		Skip: s.skipLocked(lagging), lagged: lagging, asked: now,
	}
	q.Reach = s.ranked && len(q.Skip) > 0
	if q.Limit > 0 {
		s.sweeping = true
		s.askLocked(&q, &s.front, &s.doubt)
		return q, true
	}
	// Every lane is full or paused. Nothing could be done with what a
	// sweep finds; onRoom brings us back here.
	s.sweep.wait(now)
	if len(lagging) == len(s.lanes) {
		// Or all lag behind: their own sweeps see to it, and this one
		// would wait for the slowest of them.
		s.sweep.leave(now)
		if !s.knowing {
			s.sweep.begin(sweepFull) // from the beginning again, and not behind what was met before
		}
		s.swept = true
		s.readyLocked()
	}
	q, s.sweeping = s.lagQueryLocked(now)
	return q, s.sweeping
}

// idsQueryLocked claims what the bell has named, and looks whether something has
// come up before it.
func (s *scheduler) idsQueryLocked(now time.Time) Query {
	q := Query{Source: SourceIDs, IDs: s.ids, Bytes: s.cfg.Bytes, Look: s.cfg.Batch, asked: now, checked: s.front.head, lagged: s.laggingLocked()}
	s.ids = nil
	q.naming = s.naming
	s.naming++
	s.namings = append(s.namings, q.naming)
	q.Gaps = s.front.asks(s.front.head)
	most := slices.Max(q.IDs)
	if len(q.IDs) > 1 || most > s.front.head+1 {
		if s.front.head < most-1 {
			q.Gaps = append(q.Gaps, Range{s.front.head + 1, most - 1})
		}
	}
	q.Snap = len(s.front.gaps) > 0 || len(q.Gaps) > 0
	return q
}

// wantedLocked returns how many due deliveries each lane can take.
func (s *scheduler) wantedLocked() map[string]int {
	wanted := make(map[string]int, len(s.lanes)+1)
	most := 0
	for _, l := range s.lanes {
		if room := l.roomy(); room > 0 {
			wanted[l.name] = min(room, s.batchLocked())
			most = max(most, wanted[l.name])
		} else {
			s.dueBlocked = true
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
func (s *scheduler) limitLocked(lagging []*lane) int {
	most := 0
	for _, l := range s.lanes {
		if !slices.Contains(lagging, l) {
			most = max(most, l.roomy())
		}
	}
	if len(s.lanes) == 0 {
		most = s.cfg.Batch // everything is unrouted, and has to be told so
	}
	return min(most, s.batchLocked())
}

// batchLocked is how many events a claim may ask for.
func (s *scheduler) batchLocked() int {
	return min(s.cfg.Batch, max(1, s.cfg.Bytes/2/max(1, s.eventBytes)))
}
