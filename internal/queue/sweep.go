package queue

import (
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/wake"
)

const (
	// fullSweepEvery bounds how long an event may stay behind all cursors: an id may be drawn long before its
	// transaction begins to write.
	fullSweepEvery = 30 * time.Second
	// sweepShare is the fraction of time that empty sweeps may take.
	sweepShare = 0.05
	// settleTime separates the low watermark from ids drawn by statements that had not written yet, and so had no
	// transaction id.
	settleTime = 2 * time.Second
)

// cheapSweep is how long a full sweep may take without a reduced rate.
const cheapSweep = time.Millisecond

// beforeAll is the id after which a full sweep begins: writers may choose negative ids.
const beforeAll = math.MinInt64

// rowCost is subtracted from a sweep's duration for each event: the rest is the cost of an empty sweep.
const rowCost = 10 * time.Microsecond

// sweepKind tells where a run of sweeps begins.
type sweepKind uint8

const (
	sweepNone sweepKind = iota
	sweepHead           // after the highest claimed id
	sweepNear           // at the near watermark
	sweepLow            // at the low watermark
	sweepFull           // at the beginning
)

// watermark is an id below which all events are settled, except events of transactions that had no transaction id
// when the watermark was set.
type watermark struct {
	id   int64 // the watermark
	next int64 // becomes the watermark once all transactions below xid have ended
	xid  uint64
	at   time.Time
	over bool // they had ended before the current run began
}

// propose makes head the candidate, unless one exists.
func (w *watermark) propose(now time.Time, head int64, xmax uint64) {
	if w.xid == 0 {
		w.next = head
		w.xid = xmax
		w.at = now
	}
}

// runBegins records whether the run that begins now will prove the candidate: all its transactions have ended, and
// the candidate is at least as old as settle.
func (w *watermark) runBegins(now time.Time, ended uint64, settle time.Duration) {
	w.over = w.xid != 0 && ended >= w.xid && now.Sub(w.at) >= settle
}

// runEnded moves the watermark if the run began at or below it and proved the candidate.
func (w *watermark) runEnded() {
	if w.over {
		w.id = max(w.id, w.next)
		w.xid = 0
		w.over = false
	}
}

// fullRun is the progress of a full sweep in steps, with other runs in between: it may have to pass millions of dead
// index entries, and new events must not wait for that.
type fullRun struct {
	begun bool
	after int64 // where the next step continues, once begun
	again bool  // another full sweep was requested after the first step
}

// sweep is the state of the common sweep. The scheduler's lock guards it.
//
// Cursors and watermarks only save time: the full sweep finds the events behind them.
type sweep struct {
	poll    func() time.Duration // returns the poll interval
	polling bool                 // sweeps continuously: the relay polls
	active  bool                 // a run continues until a claim finds less than its limit
	kind    sweepKind            // where the run began
	wanted  sweepKind            // kind of the requested next run

	cursor  int64 // the run continues after this id
	full    fullRun
	head    int64     // the highest id ever claimed
	before  int64     // head when the claim in flight left: older than its snapshot
	near    watermark // trails head by the open transactions
	low     watermark // trails near by settleTime
	xmin    uint64    // xmin of the last snapshot
	writers openWriters

	next      time.Time // time of the next sweep unless one is requested sooner
	nextNear  time.Time
	nextFull  time.Time
	began     time.Time // start of the claim in flight
	restUntil time.Time // no sweep before this time while the relay polls
}

// begin requests a run; a more thorough kind replaces a lesser one.
func (s *sweep) begin(kind sweepKind) {
	s.wanted = max(s.wanted, kind)
}

// setPolling records whether the relay polls. A sweep from the low watermark follows in either case.
func (s *sweep) setPolling(polling bool) {
	s.polling = polling
	s.restUntil = time.Time{}
	s.begin(sweepLow)
}

// due reports whether a sweep should begin.
func (s *sweep) due(now time.Time) bool {
	if s.active || s.wanted != sweepNone {
		return true
	}
	return s.polling && !now.Before(s.restUntil) || !now.Before(s.next)
}

// start chooses where the next claim begins. It reports whether a new run begins.
func (s *sweep) start(now time.Time) bool {
	s.began = now
	s.before = s.head

	if s.active && s.wanted <= s.kind {
		return false // the requested run follows this one
	}

	kind := sweepHead
	requested := s.wanted != sweepNone
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

	s.wanted = sweepNone
	s.active = true
	s.kind = kind
	s.near.runBegins(now, s.writers.ended, 0)
	s.low.runBegins(now, s.writers.ended, settleTime)

	switch kind {
	case sweepFull:
		s.cursor = beforeAll
		if s.full.begun {
			s.cursor = s.full.after
			s.full.again = s.full.again || requested
		}
	case sweepLow:
		s.cursor = s.low.id
	case sweepNear:
		s.cursor = s.near.id
	case sweepHead, sweepNone:
		s.cursor = s.head
	}

	return true
}

// abandon ends a run without moving the watermarks.
func (s *sweep) abandon(now time.Time) {
	s.active = false
	if s.kind == sweepFull {
		s.nextFull = now.Add(s.poll())
	}
}

const (
	// skipAfter is how long a transaction must hold back the near watermark before the watermarks skip it.
	skipAfter = time.Second
	// maxSkipped bounds the skipped transactions.
	maxSkipped = 64
)

// openWriters tracks when the next sweep must query open transactions, and which of them the watermarks skip.
// Watermarks assume that ids rise, and that transactions end soon.
//
// A watermark that waited for a long transaction would stand still, and each sweep would read all events delivered
// since. So the watermarks skip the transaction. When it ends, they return to the low watermark from before it could
// write.
type openWriters struct {
	belowNear bool             // an event was found below the near watermark: ids may begin again
	stuck     bool             // the near watermark waits for a transaction that does not end
	skipped   map[uint64]int64 // skipped transactions, each with the watermark to return to
	ended     uint64           // all transactions below have ended, except skipped ones
}

// any reports whether the next sweep should query open transactions.
func (d *openWriters) any() bool { return d.belowNear || d.stuck || len(d.skipped) > 0 }

// restart describes ids that began again.
type restart struct{ head, last int64 }

// examine processes the snapshot of a claim of the common sweep.
func (s *sweep) examine(now time.Time, q *Query, c *Claimed) {
	s.xmin = c.Xmin
	s.writers.ended = c.Xmin
	if q.OpenWriters {
		s.rewindEnded(c.Open)
		if s.writers.stuck {
			s.skipOpen(c.Open)
		}
		s.writers.ended = c.Xmax
		for _, xid := range c.Open {
			if _, apart := s.writers.skipped[xid]; !apart {
				s.writers.ended = min(s.writers.ended, xid)
			}
		}
	}

	s.writers.stuck = s.near.xid > s.writers.ended && now.Sub(s.near.at) >= skipAfter
}

// rewindEnded moves the watermarks back for skipped transactions that have ended.
func (s *sweep) rewindEnded(open []uint64) {
	for xid, low := range s.writers.skipped {
		if !slices.Contains(open, xid) {
			delete(s.writers.skipped, xid)
			s.rewind(low)
		}
	}
}

// skipOpen makes the watermarks skip the transactions that hold back the near one. Such a transaction writes ids
// above the low watermark: it began after the snapshot that dates the watermark.
func (s *sweep) skipOpen(open []uint64) {
	for _, xid := range open {
		if _, apart := s.writers.skipped[xid]; apart || xid >= s.near.xid || len(s.writers.skipped) >= maxSkipped {
			continue
		}
		if s.writers.skipped == nil {
			s.writers.skipped = make(map[uint64]int64)
		}
		s.writers.skipped[xid] = s.low.id
	}
}

// restarted reports whether the sequence began again, or an id was far above it: new ids are then below all cursors.
// before is the head before the sequence was read. The state becomes that of a new relay.
func (s *sweep) restarted(q *Query, c *Claimed) *restart {
	if !q.OpenWriters || !s.writers.belowNear {
		return nil
	}
	s.writers.belowNear = false

	if c.LastID == nil || *c.LastID >= s.before {
		return nil
	}

	r := &restart{head: s.before, last: *c.LastID}
	s.head = r.last
	s.before = r.last
	s.near = watermark{}
	s.low = watermark{}
	s.writers = openWriters{ended: s.writers.ended}
	s.begin(sweepFull)

	return r
}

// rewind moves the watermarks back to low. They may be ahead of a lane that lagged: the common sweep skipped its
// types, and the lane's sweep continued after its last position. So neither has seen events that were committed late.
func (s *sweep) rewind(low int64) {
	for _, w := range []*watermark{&s.near, &s.low} {
		w.id = min(w.id, low)
		w.over = false
	}
	s.begin(sweepLow)
}

// rest postpones the next sweep.
func (s *sweep) rest(now time.Time, d time.Duration) {
	s.next = now.Add(sleep.Spread(d, spread))
}

// capacityCheck is how often a polling relay checks whether a lane has capacity.
const capacityCheck = 20 * time.Millisecond

// wait postpones the next sweep of a relay whose lanes have no capacity. Lanes report new capacity. A polling relay
// also checks, in case capacity appeared before the wait began.
func (s *sweep) wait(now time.Time) {
	s.rest(now, s.poll())
	s.restUntil = now.Add(min(capacityCheck, s.poll()))
}

// swept records the result of a claim of the common sweep.
func (s *sweep) swept(now time.Time, q Query, c *Claimed) {
	n := len(c.Work)
	s.examine(now, &q, c)

	if n > 0 {
		s.writers.belowNear = s.writers.belowNear || c.Work[0].Event.ID <= s.near.id
		s.cursor = max(s.cursor, c.Work[n-1].Event.ID)
	}

	// The current head may be newer than the snapshot. Ids drawn and claimed since have neighbors whose transactions
	// the snapshot does not know.
	s.near.propose(now, s.before, c.Xmax)
	s.low.propose(now, s.before, c.Xmax)

	switch {
	case c.Cut || n >= q.Limit: // the run continues
	case q.step: // continue after the step
		s.cursor = max(s.cursor, q.Upto)
		if s.kind == sweepFull {
			s.active = false
			s.full.begun = true
			s.full.after = s.cursor
			s.nextFull = now.Add(time.Duration(float64(now.Sub(s.began)) / sweepShare))
		}
	default:
		s.ended(now, max(0, now.Sub(s.began)-time.Duration(n)*rowCost))
	}
}

// ended closes a run that found nothing more to claim. cost is the duration of its last claim.
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
