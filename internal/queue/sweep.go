package queue

import (
	"math"
	"time"
)

const (
	// pressure is how many ids may wait for a claimer before the relay switches to sweeping, where
	// one claim takes hundreds of events. It exceeds the number of claimers, so that a handful of
	// simultaneous events is not yet a backlog.
	pressure = 8
	// awakeFor is the period over which an awake relay counts events, before it stays awake or
	// falls asleep.
	awakeFor = 20 * time.Millisecond
	// awakePause separates the sweeps of an awake relay that has caught up: empty sweeps would take
	// processor time from the writers.
	awakePause = 500 * time.Microsecond
	// idleRate is the number of events per second that a sleeping relay claims by their ids as well
	// as by sweeps, and with less delay.
	idleRate = 2500
	// silencePays is how much more writers must get done in silence for silence to pay, if they had
	// queued up for the bell.
	silencePays = 1.2
	// drowsyFirst is the first pause between the sweeps of a relay that falls asleep; each pause is
	// twice as long as the one before.
	drowsyFirst = time.Millisecond
	// fullSweepEvery bounds how long an event may stay behind all cursors: an id may be drawn long
	// before its transaction begins to write.
	fullSweepEvery = 30 * time.Second
	// sweepShare is the share of the time that empty sweeps may take.
	sweepShare = 0.05
	// settleTime keeps the low mark away from ids drawn by statements that had not written yet, and
	// so had no transaction id.
	settleTime = 2 * time.Second
	// fastPoll is the poll interval while polls find unannounced events.
	fastPoll = 20 * time.Millisecond
	// fastPollFor is how long fast polling continues after the last such event.
	fastPollFor = 5 * time.Second
)

// cheapSweep is how long a full sweep may take without being rationed.
const cheapSweep = time.Millisecond

// beforeAll is the id behind which a full sweep begins: writers may choose ids
// of their own, and negative ones are among them.
const beforeAll = math.MinInt64

// rowCost is subtracted from the duration of a sweep for each event found: the rest is the cost of
// an empty sweep.
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
	awake               // sweeps without a break; the bell is silent
	ringing             // about to fall asleep; the bell is being released
	drowsy              // asleep, but silent writers may not have committed yet
)

// bellOrder is an order for the bell.
type bellOrder uint8

const (
	bellLeave bellOrder = iota
	bellSilence
	bellRing
)

// watermark is an id below which all events are settled, except those of transactions that had no
// id yet when it was set.
type watermark struct {
	settle time.Duration // minimum age of a candidate

	low  int64 // the mark
	next int64 // becomes the mark once all transactions below xid have ended
	xid  uint64
	at   time.Time
	over bool // they had ended before the current run began
}

// propose makes head the candidate, if there is none.
func (w *watermark) propose(now time.Time, head int64, xmax uint64) {
	if w.xid == 0 {
		w.next, w.xid, w.at = head, xmax, now
	}
}

// runBegins records whether the run that begins now will prove the candidate: all transactions
// below ended have ended.
func (w *watermark) runBegins(now time.Time, ended uint64) {
	w.over = w.xid != 0 && ended >= w.xid && now.Sub(w.at) >= w.settle
}

// runEnded moves the mark if the run began at or below it and proved the candidate.
func (w *watermark) runEnded() {
	if w.over {
		w.low = max(w.low, w.next)
		w.xid, w.over = 0, false
	}
}

// fullRun is the progress of a full sweep that is made in steps, with other runs in between: it may
// have to step over millions of dead index entries, and new events must not wait for that.
type fullRun struct {
	begun bool
	after int64 // where it has begun, the next step continues after this id
	again bool  // another full sweep was requested after the first step
}

// sweep is the state of sweeping the table. The scheduler's lock guards it.
//
// Cursors and marks only save time: the full sweep finds the events behind all of them.
type sweep struct {
	poll   time.Duration // the poll interval
	mode   mode
	active bool      // a run is under way: continue until a claim comes back short
	kind   sweepKind // where the run began
	asked  bool      // another run, of kind wanted, will follow
	wanted sweepKind

	cursor int64 // the run continues after this id
	full   fullRun
	head   int64     // the highest id ever claimed
	before int64     // head when the claim in flight left: older than its snapshot
	near   watermark // trails head by the open transactions
	low    watermark // trails near by settle
	xmin   uint64    // xmin of the last snapshot
	doubts doubts

	next      time.Time // time of the next sweep if nothing requests one sooner
	nextNear  time.Time
	nextFull  time.Time
	fastUntil time.Time
	began     time.Time // start of the claim in flight
	found     int       // events found in this run
	rate      awakeRate
	restUntil time.Time     // awake: no sweep before this time
	pause     time.Duration // drowsy: until the next sweep
	xid       uint64        // drowsy: silent writers are below it
}

// awakeRate is the rate at which an awake relay finds events.
type awakeRate struct {
	floor float64   // the relay stays awake above it, in events per second
	since time.Time // start of the count
	count int       // events found since then
}

func (s *sweep) awake() bool { return s.mode == awake }

// begin requests a run; a more thorough kind replaces a lesser one.
func (s *sweep) begin(kind sweepKind) {
	if !s.asked || kind > s.wanted {
		s.asked, s.wanted = true, kind
	}
}

// wake switches to sweeping without a break. It reports whether that is a change.
func (s *sweep) wake() bool {
	s.begin(sweepLow)
	if s.mode == awake {
		return false
	}
	s.rise()
	return true
}

// rise starts the time awake.
func (s *sweep) rise() {
	s.mode, s.rate = awake, awakeRate{floor: idleRate}
}

// due reports whether a sweep should be started.
func (s *sweep) due(now time.Time) bool {
	return s.active || s.asked || s.mode == awake && !now.Before(s.restUntil) || !now.Before(s.next)
}

// start chooses where the next claim begins. It reports whether that starts a new run.
func (s *sweep) start(now time.Time) bool {
	s.began, s.before = now, s.head
	if s.active && (!s.asked || s.wanted <= s.kind) {
		return false // the requested run follows when this one has ended
	}
	kind, requested := sweepOn, s.asked
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
	s.near.runBegins(now, s.doubts.ended)
	s.low.runBegins(now, s.doubts.ended)
	switch kind {
	case sweepFull:
		s.cursor = beforeAll
		if s.full.begun {
			s.cursor, s.full.again = s.full.after, s.full.again || requested
		}
	case sweepLow:
		s.cursor = s.low.low
	case sweepNear:
		s.cursor = s.near.low
	case sweepOn:
		s.cursor = s.head
	}
	return true
}

// leave gives up a run; the marks do not move.
func (s *sweep) leave(now time.Time) {
	s.active = false
	if s.kind == sweepFull {
		s.nextFull = now.Add(s.poll)
	}
}

// rewind moves the marks back to low, where they may be ahead of a lane that lagged: the common
// sweep has skipped its types, and the lane's own sweep continued after its last position. So
// neither has seen events that were committed late.
func (s *sweep) rewind(low int64) {
	for _, w := range []*watermark{&s.near, &s.low} {
		w.low, w.over = min(w.low, low), false
	}
	s.begin(sweepLow)
}

// rest postpones the next sweep.
func (s *sweep) rest(now time.Time, d time.Duration) {
	s.next = now.Add(jittered(d))
}

// wait postpones the next sweep of a relay whose lanes have no room. They report when they have
// room again. An awake relay also checks by itself, in case room appeared before it was waiting.
func (s *sweep) wait(now time.Time) {
	s.rest(now, s.poll)
	s.restUntil = now.Add(min(fastPoll, s.poll))
}

// swept records the result of a claim of the common sweep, and returns the order for the bell.
func (s *sweep) swept(now time.Time, q Query, c *Claimed) bellOrder {
	n := len(c.Work)
	s.look(now, &q, c)
	if n > 0 {
		s.doubts.behind = s.doubts.behind || c.Work[0].Event.ID <= s.near.low
		s.cursor = max(s.cursor, c.Work[n-1].Event.ID)
	}
	s.found += n
	// Not the current head: since the snapshot, ids may have been drawn and claimed, next to others
	// whose transactions the snapshot does not know.
	s.near.propose(now, s.before, c.Xmax)
	s.low.propose(now, s.before, c.Xmax)
	if c.Cut || n >= q.Limit {
		if s.mode != awake {
			s.rise()
			return bellSilence
		}
		return bellLeave
	}
	if q.step { // the run continues behind it
		s.cursor = max(s.cursor, q.Upto)
		if s.kind == sweepFull {
			s.active, s.full.begun, s.full.after = false, true, s.cursor
			s.nextFull = now.Add(time.Duration(float64(now.Sub(s.began)) / sweepShare))
		}
		return bellLeave
	}
	return s.ended(now, max(0, now.Sub(s.began)-time.Duration(n)*rowCost))
}

// ended closes a run that found nothing more to claim. cost is how long its last claim took.
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
		if s.full.again {
			s.begin(sweepFull)
		}
		s.full = fullRun{}
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

// stayAwake counts the events found, and falls asleep when their rate is low.
func (s *sweep) stayAwake(now time.Time) bellOrder {
	s.restUntil = now.Add(awakePause)
	s.rate.count += s.found
	if s.rate.since.IsZero() {
		s.rate.since = now
		return bellLeave
	}
	took := now.Sub(s.rate.since)
	if took < awakeFor {
		return bellLeave
	}
	rate := float64(s.rate.count) / took.Seconds()
	s.rate.since, s.rate.count = now, 0
	if rate >= s.rate.floor {
		return bellLeave
	}
	s.mode = ringing
	return bellRing
}

// rang begins the drowsy time: silent writers have a transaction id below xid.
func (s *sweep) rang(now time.Time, xid uint64) {
	if s.mode == ringing {
		s.mode, s.xid, s.pause = drowsy, xid, min(drowsyFirst, s.poll)
		s.next = now
	}
}

// doze falls asleep once no silent writer is left: the snapshot was taken before the sweep, so the
// sweep has seen the events of every transaction that had ended by then.
func (s *sweep) doze(now time.Time) {
	if s.found == 0 && s.xmin >= s.xid {
		s.mode = asleep
		s.pollFaster(now)
		return
	}
	if s.found > 0 {
		// A writer is still silent: the relay that keeps the bell may be frozen.
		s.pause, s.fastUntil = min(drowsyFirst, s.poll), now.Add(fastPollFor)
	}
	s.next = now.Add(s.pause)
	s.pause = min(2*s.pause, s.poll) // bounded, or doubling would overflow
}

// pollFaster shortens the poll while it finds unannounced events: a frozen relay may keep the bell
// silent, or there is no bell.
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

// blind polls fast while notifications are not heard. As with every poll, sweeps that take long are
// further apart.
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
