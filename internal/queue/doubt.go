package queue

import (
	"slices"
	"time"
)

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
