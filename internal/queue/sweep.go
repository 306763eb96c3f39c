package queue

import (
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/internal/wake"
)

const (
	// fullSweepEvery bounds how long an event may stay behind all cursors: an id may be drawn long
	// before its transaction begins to write.
	fullSweepEvery = 30 * time.Second
	// sweepShare is the share of the time that empty sweeps may take.
	sweepShare = 0.05
	// settleTime keeps the low mark away from ids drawn by statements that had not written yet, and
	// so had no transaction id.
	settleTime = 2 * time.Second
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
	sweepNone sweepKind = iota
	sweepOn             // behind the highest id claimed so far
	sweepNear           // at the near mark
	sweepLow            // at the low mark
	sweepFull           // at the very beginning
)

// watermark is an id below which all events are settled, except those of transactions that had no
// id yet when it was set.
type watermark struct {
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
// below ended have ended, and it is as old as settle.
func (w *watermark) runBegins(now time.Time, ended uint64, settle time.Duration) {
	w.over = w.xid != 0 && ended >= w.xid && now.Sub(w.at) >= settle
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
	poll    func() time.Duration // the poll interval
	polling bool                 // sweeps without a break: the relay polls
	active  bool                 // a run is under way: continue until a claim comes back short
	kind    sweepKind            // where the run began
	wanted  sweepKind            // of another run that will follow

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
	began     time.Time // start of the claim in flight
	restUntil time.Time // while it polls: no sweep before this time
}

// begin requests a run; a more thorough kind replaces a lesser one.
func (s *sweep) begin(kind sweepKind) {
	s.wanted = max(s.wanted, kind)
}

// turn records whether the relay polls. Whatever its state becomes, a sweep from the low mark follows.
func (s *sweep) turn(polling bool) {
	s.polling, s.restUntil = polling, time.Time{}
	s.begin(sweepLow)
}

// due reports whether a sweep should be started.
func (s *sweep) due(now time.Time) bool {
	return s.active || s.wanted != sweepNone || s.polling && !now.Before(s.restUntil) || !now.Before(s.next)
}

// start chooses where the next claim begins. It reports whether that starts a new run.
func (s *sweep) start(now time.Time) bool {
	s.began, s.before = now, s.head
	if s.active && s.wanted <= s.kind {
		return false // the requested run follows when this one has ended
	}
	kind, requested := sweepOn, s.wanted != sweepNone
	switch {
	case requested:
		kind = s.wanted
	case !now.Before(s.nextFull):
		kind = sweepFull
	case !s.polling || !now.Before(s.next):
		kind = sweepLow
	case !now.Before(s.nextNear):
		kind = sweepNear
	}
	s.wanted, s.active, s.kind = sweepNone, true, kind
	s.near.runBegins(now, s.doubts.ended, 0)
	s.low.runBegins(now, s.doubts.ended, settleTime)
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
	case sweepOn, sweepNone:
		s.cursor = s.head
	}
	return true
}

// leave gives up a run; the marks do not move.
func (s *sweep) leave(now time.Time) {
	s.active = false
	if s.kind == sweepFull {
		s.nextFull = now.Add(s.poll())
	}
}

const (
	// apartAfter is how long a transaction must have held back the near mark until the marks go on
	// without it.
	apartAfter = time.Second
	// maxApart bounds how many transactions the marks may go on without.
	maxApart = 64
)

// doubts are reasons to ask more with the next sweep, and what was learned: the marks assume that
// ids rise, and that transactions end soon.
//
// While a transaction stays open for minutes, a mark that waited for it would stand still, and each
// sweep would read again everything that was delivered since. So the marks go on without it. When
// it has ended, they go back to where the low one was before it could write.
type doubts struct {
	behind bool             // an event was found below the near mark: do ids begin again?
	stuck  bool             // the near mark waits for a transaction that does not end
	apart  map[uint64]int64 // the transactions that the marks go on without, each with the mark to go back to
	ended  uint64           // all transactions below have ended, but those apart
}

// any reports whether the next sweep should ask what is in doubt.
func (d *doubts) any() bool { return d.behind || d.stuck || len(d.apart) > 0 }

// restart describes ids that began again.
type restart struct{ head, last int64 }

// look examines the snapshot of a claim of the common sweep.
func (s *sweep) look(now time.Time, q *Query, c *Claimed) {
	s.xmin, s.doubts.ended = c.Xmin, c.Xmin
	if q.Doubt {
		s.rejoin(c.Open)
		if s.doubts.stuck {
			s.goOnWithout(c.Open)
		}
		s.doubts.ended = c.Xmax
		for _, xid := range c.Open {
			if _, apart := s.doubts.apart[xid]; !apart {
				s.doubts.ended = min(s.doubts.ended, xid)
			}
		}
	}
	s.doubts.stuck = s.near.xid > s.doubts.ended && now.Sub(s.near.at) >= apartAfter
}

// rejoin moves the marks back for transactions that have ended.
func (s *sweep) rejoin(open []uint64) {
	for xid, low := range s.doubts.apart {
		if !slices.Contains(open, xid) {
			delete(s.doubts.apart, xid)
			s.rewind(low)
		}
	}
}

// goOnWithout lets the marks go on without the transactions that hold back the near one. What they
// write has ids above the low mark: they began after the snapshot that dates it.
func (s *sweep) goOnWithout(open []uint64) {
	for _, xid := range open {
		if _, apart := s.doubts.apart[xid]; apart || xid >= s.near.xid || len(s.doubts.apart) >= maxApart {
			continue
		}
		if s.doubts.apart == nil {
			s.doubts.apart = make(map[uint64]int64)
		}
		s.doubts.apart[xid] = s.low.low
	}
}

// restarted reports whether the sequence has begun again, or an id was far above it: what it gives
// out then is below all cursors. before is the head before the sequence was read. The state becomes
// that of a new relay.
func (s *sweep) restarted(q *Query, c *Claimed) *restart {
	if !q.Doubt || !s.doubts.behind {
		return nil
	}
	s.doubts.behind = false
	if c.LastID == nil || *c.LastID >= s.before {
		return nil
	}
	r := &restart{head: s.before, last: *c.LastID}
	s.head, s.before = r.last, r.last
	s.near, s.low = watermark{}, watermark{}
	s.doubts = doubts{ended: s.doubts.ended}
	s.begin(sweepFull)
	return r
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

// roomAgain is how often a relay that polls checks by itself whether a lane has room.
const roomAgain = 20 * time.Millisecond

// wait postpones the next sweep of a relay whose lanes have no room. They report when they have
// room again. A relay that polls also checks by itself, in case room appeared before it was waiting.
func (s *sweep) wait(now time.Time) {
	s.rest(now, s.poll())
	s.restUntil = now.Add(min(roomAgain, s.poll()))
}

// swept records the result of a claim of the common sweep.
func (s *sweep) swept(now time.Time, q Query, c *Claimed) {
	n := len(c.Work)
	s.look(now, &q, c)
	if n > 0 {
		s.doubts.behind = s.doubts.behind || c.Work[0].Event.ID <= s.near.low
		s.cursor = max(s.cursor, c.Work[n-1].Event.ID)
	}
	// Not the current head: since the snapshot, ids may have been drawn and claimed, next to others
	// whose transactions the snapshot does not know.
	s.near.propose(now, s.before, c.Xmax)
	s.low.propose(now, s.before, c.Xmax)
	switch {
	case c.Cut || n >= q.Limit: // the run continues
	case q.step: // it continues behind the step
		s.cursor = max(s.cursor, q.Upto)
		if s.kind == sweepFull {
			s.active, s.full.begun, s.full.after = false, true, s.cursor
			s.nextFull = now.Add(time.Duration(float64(now.Sub(s.began)) / sweepShare))
		}
	default:
		s.ended(now, max(0, now.Sub(s.began)-time.Duration(n)*rowCost))
	}
}

// ended closes a run that found nothing more to claim. cost is how long its last claim took.
func (s *sweep) ended(now time.Time, cost time.Duration) {
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
		s.rest(now, max(s.poll(), stretch))
	}
	if s.kind == sweepFull {
		s.nextFull = now.Add(s.poll())
		if stretch > s.poll() {
			s.nextFull = now.Add(max(fullSweepEvery, stretch))
		}
		if s.full.again {
			s.begin(sweepFull)
		}
		s.full = fullRun{}
	}
	s.restUntil = now.Add(wake.PollingPause)
}
