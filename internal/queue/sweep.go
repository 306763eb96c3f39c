package queue

import (
	"math"
	"time"
)

const (
	// pressure is how many ids may wait for a claimer before the relay turns
	// to sweeping, where one claim takes hundreds. Above the number of claimers,
	// so that a handful of events at once is not yet a backlog.
	pressure = 8
	// awakeFor is over how long an awake relay measures what it finds, before
	// it stays awake or falls asleep.
	awakeFor = 20 * time.Millisecond
	// awakePause is between the sweeps of an awake relay that has caught up:
	// sweeping in vain would take the writers' processors from them.
	awakePause = 500 * time.Microsecond
	// idleRate is the number of events per second that a relay claims as well
	// by their ids, asleep, and with less delay.
	idleRate = 2500
	// silencePays is how much more writers must get done in silence for it to
	// be worth while, where they had queued up for the bell.
	silencePays = 1.2
	// drowsyFirst is the first pause between the sweeps of a relay that falls
	// asleep; each pause is twice as long as the one before.
	drowsyFirst = time.Millisecond
	// fullSweepEvery bounds how long an event may stay behind all cursors: an
	// id may be drawn long before its transaction begins to write.
	fullSweepEvery = 30 * time.Second
	// sweepShare is the part of the time that sweeps in vain may take.
	sweepShare = 0.05
	// settleTime keeps the low-water mark away from ids that were drawn by
	// statements which had not written yet, and so had no transaction id.
	settleTime = 2 * time.Second
	// fastPoll is the poll interval while polls find what nobody announced.
	fastPoll = 20 * time.Millisecond
	// fastPollFor is how long it stays so after the last such find.
	fastPollFor = 5 * time.Second
)

// cheapSweep is what looking back may cost without being rationed.
const cheapSweep = time.Millisecond

// beforeAll is the id behind which a full sweep begins: writers may choose ids
// of their own, and negative ones are among them.
const beforeAll = math.MinInt64

// rowCost is taken off the duration of a sweep for each event that it found:
// the rest is what looking in vain cost.
const rowCost = 10 * time.Microsecond

// sweepKind says where a run of sweeps begins.
type sweepKind uint8

const (
	sweepOn   sweepKind = iota // behind the highest id claimed so far
	sweepNear                  // at the near mark
	sweepLow                   // at the low mark
	sweepFull                  // at the very beginning
)

// mode is how awake the relay is.
type mode uint8

const (
	asleep  mode = iota // the bell names ids; the poll is the floor
	awake               // sweeping without a break, bell silent
	ringing             // about to fall asleep; the bell is being let go
	drowsy              // asleep, but silent writers may not have committed yet
)

// bellOrder is what the bell is to do.
type bellOrder uint8

const (
	bellLeave bellOrder = iota
	bellSilence
	bellRing
)

// watermark is an id below which all events are settled, as far as
// transactions tell that had an id of their own when it was set.
type watermark struct {
	settle time.Duration // how old a candidate has to be

	low  int64 // the mark
	next int64 // becomes the mark once all transactions below xid have ended
	xid  uint64
	at   time.Time
	over bool // they had, before the run under way began
}

// propose makes head the candidate, if there is none.
func (w *watermark) propose(now time.Time, head int64, xmax uint64) {
	if w.xid == 0 {
		w.next, w.xid, w.at = head, xmax, now
	}
}

// runBegins notes whether the run that begins now will prove the candidate.
func (w *watermark) runBegins(now time.Time, xmin uint64) {
	w.over = w.xid != 0 && xmin >= w.xid && now.Sub(w.at) >= w.settle
}

// runEnded moves the mark if the run began at or below it and proved the candidate.
func (w *watermark) runEnded() {
	if w.over {
		w.low = max(w.low, w.next)
		w.xid, w.over = 0, false
	}
}

// sweep is the state of sweeping the table. The scheduler's lock guards it.
//
// Cursors and marks are there for speed only: what is behind all of them is
// found by the full sweep.
type sweep struct {
	poll   time.Duration // the poll interval
	mode   mode
	active bool      // a run is under way: go on until a claim comes back short
	kind   sweepKind // where the run began
	asked  bool      // another run, of kind wanted, is to follow
	wanted sweepKind

	cursor int64     // the run goes on behind this id
	head   int64     // the highest id ever claimed
	before int64     // head when the claim in flight left: older than its snapshot
	near   watermark // trails head by the transactions under way
	low    watermark // trails it by a while more
	xmin   uint64    // of the last snapshot

	next      time.Time // when to sweep without being asked
	nextNear  time.Time
	nextFull  time.Time
	fastUntil time.Time
	began     time.Time     // of the claim in flight
	found     int           // events in this run so far
	floor     float64       // awake: stay so above this many events per second
	since     time.Time     // awake: counting what is found since
	count     int           // awake: found since then
	restUntil time.Time     // awake: until the next sweep
	pause     time.Duration // drowsy: until the next sweep
	xid       uint64        // drowsy: silent writers are below it
}

func (s *sweep) awake() bool { return s.mode == awake }

// begin asks for a run; a more thorough one replaces a lesser one.
func (s *sweep) begin(kind sweepKind) {
	if !s.asked || kind > s.wanted {
		s.asked, s.wanted = true, kind
	}
}

// wake turns to sweeping without a break. It reports whether that is news.
func (s *sweep) wake() bool {
	s.begin(sweepLow)
	if s.mode == awake {
		return false
	}
	s.rise()
	return true
}

// rise begins to be awake.
func (s *sweep) rise() {
	s.mode, s.floor, s.since, s.count = awake, idleRate, time.Time{}, 0
}

// due reports whether a sweep should be in flight.
func (s *sweep) due(now time.Time) bool {
	return s.active || s.asked || s.mode == awake && !now.Before(s.restUntil) || !now.Before(s.next)
}

// start chooses where the next claim begins. It reports whether that is a new run.
func (s *sweep) start(now time.Time) bool {
	s.began, s.before = now, s.head
	if s.active && (!s.asked || s.wanted <= s.kind) {
		return false // what was asked for follows when this run has ended
	}
	kind := sweepOn
	switch {
	case s.asked:
		kind = s.wanted
	case !now.Before(s.nextFull):
		kind = sweepFull
	case s.mode != awake || !now.Before(s.next):
		kind = sweepLow
	case !now.Before(s.nextNear):
		kind = sweepNear
	}
	s.asked, s.active, s.kind, s.found = false, true, kind, 0
	s.near.runBegins(now, s.xmin)
	s.low.runBegins(now, s.xmin)
	switch kind {
	case sweepFull:
		s.cursor = beforeAll
	case sweepLow:
		s.cursor = s.low.low
	case sweepNear:
		s.cursor = s.near.low
	case sweepOn:
		s.cursor = s.head
	}
	return true
}

// leave gives up a run; the marks stay where they are.
func (s *sweep) leave(now time.Time) {
	s.active = false
	if s.kind == sweepFull {
		s.nextFull = now.Add(s.poll)
	}
}

// rewind looks again behind low, where the marks may be ahead of a lane that
// lagged: the common sweep has skipped its types and its own sweep goes on from
// where it was, so that neither has seen who committed late.
func (s *sweep) rewind(low int64) {
	for _, w := range []*watermark{&s.near, &s.low} {
		w.low, w.over = min(w.low, low), false
	}
	s.begin(sweepLow)
}

// rest puts off the next sweep.
func (s *sweep) rest(now time.Time, d time.Duration) {
	s.next = now.Add(jittered(d))
}

// wait puts off the next sweep of a relay that has nowhere to put what it would
// find. Room is told of; that an awake relay looks again by itself is for the
// case that there was room before anybody could be told.
func (s *sweep) wait(now time.Time) {
	s.rest(now, s.poll)
	s.restUntil = now.Add(min(fastPoll, s.poll))
}

// swept takes what a claim of the common sweep found, and returns what the bell is to do.
func (s *sweep) swept(now time.Time, q Query, c *Claimed) bellOrder {
	n := len(c.Work)
	s.xmin = c.Xmin
	if n > 0 {
		s.cursor = max(s.cursor, c.Work[n-1].Event.ID)
	}
	s.found += n
	// Not the head of now: ids may have been drawn and claimed since the
	// snapshot, beside others whose transactions it does not know.
	s.near.propose(now, s.before, c.Xmax)
	s.low.propose(now, s.before, c.Xmax)
	if c.Cut || n >= q.Limit {
		if s.mode != awake {
			s.rise()
			return bellSilence
		}
		return bellLeave
	}
	return s.ended(now, max(0, now.Sub(s.began)-time.Duration(n)*rowCost))
}

// ended closes a run: there was nothing more to claim. cost is how long it
// took to find that out.
func (s *sweep) ended(now time.Time, cost time.Duration) bellOrder {
	s.active = false
	stretch := time.Duration(float64(cost) / sweepShare)
	if s.kind >= sweepNear {
		s.near.runEnded()
		if cost > cheapSweep {
			s.nextNear = now.Add(stretch)
		}
	}
	if s.kind >= sweepLow {
		s.low.runEnded()
		s.rest(now, max(s.poll, stretch))
	}
	if s.kind == sweepFull {
		s.nextFull = now.Add(s.poll)
		if stretch > s.poll {
			s.nextFull = now.Add(max(fullSweepEvery, stretch))
		}
	}
	switch s.mode {
	case awake:
		return s.stayAwake(now)
	case drowsy:
		s.doze(now)
	case ringing:
	case asleep:
		s.pollFaster(now)
	}
	return bellLeave
}

// stayAwake counts what is found, and falls asleep when it has become little.
func (s *sweep) stayAwake(now time.Time) bellOrder {
	s.restUntil = now.Add(awakePause)
	s.count += s.found
	if s.since.IsZero() {
		s.since = now
		return bellLeave
	}
	took := now.Sub(s.since)
	if took < awakeFor {
		return bellLeave
	}
	rate := float64(s.count) / took.Seconds()
	s.since, s.count = now, 0
	if rate >= s.floor {
		return bellLeave
	}
	s.mode = ringing
	return bellRing
}

// rang begins the drowsy time: whoever wrote silently has an id below xid.
func (s *sweep) rang(now time.Time, xid uint64) {
	if s.mode == ringing {
		s.mode, s.xid, s.pause = drowsy, xid, min(drowsyFirst, s.poll)
		s.next = now
	}
}

// doze falls asleep once nobody is left who wrote silently: the snapshot was
// taken before the sweep, so what had ended by then the sweep has seen.
func (s *sweep) doze(now time.Time) {
	if s.found == 0 && s.xmin >= s.xid {
		s.mode = asleep
		s.pollFaster(now)
		return
	}
	if s.found > 0 {
		// Somebody still writes silently: whoever keeps the bell may be frozen.
		s.pause, s.fastUntil = min(drowsyFirst, s.poll), now.Add(fastPollFor)
	}
	s.next = now.Add(s.pause)
	s.pause = min(2*s.pause, s.poll) // doubled without end, it would run over
}

// pollFaster shortens the poll while it finds what nobody announced: a frozen
// relay may be keeping the bell silent, or there is no bell.
func (s *sweep) pollFaster(now time.Time) {
	if s.found > 0 {
		s.fastUntil = now.Add(fastPollFor)
	}
	if now.Before(s.fastUntil) {
		s.next = now.Add(min(fastPoll, s.poll))
	}
}

func (m mode) String() string {
	switch m {
	case asleep:
		return "asleep"
	case awake:
		return "awake"
	case ringing:
		return "ringing"
	case drowsy:
		return "drowsy"
	default:
		return "unknown"
	}
}

// blind polls fast while nobody announces what may be there. As with every
// poll, sweeps that take long are further apart.
func (s *scheduler) blind(is bool) { //nolint:revive // the state itself
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep.poll = s.limits.PollInterval
	if is {
		s.sweep.poll = min(fastPoll, s.limits.PollInterval)
		s.sweep.begin(sweepLow)
	}
	s.idle.wakeAll()
}

func (s *scheduler) awake() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sweep.awake()
}
