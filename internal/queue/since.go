package queue

import (
	"maps"
	"time"
)

// since is where the next claim of due deliveries begins, by destination: where the one before has
// ended. What lies before are dead index entries, as many as there were deliveries, and few rows
// that were locked, given back, or made due by a transaction that took its time. So the claims begin
// with the first row again now and then, and a destination does as soon as its claim comes back
// short. The scheduler's lock guards it.
type since struct {
	at      map[string]int64 // in microseconds since 1970
	restart time.Time        // when the claims begin with the first row again
	full    bool             // the claim in flight does
}

// begin returns where the claim that leaves now begins.
func (s *since) begin(now time.Time) map[string]int64 {
	s.full = !now.Before(s.restart)
	if s.full {
		s.at = nil
	}
	return maps.Clone(s.at)
}

// sinceEvery is the shortest time between two claims that begin with the first row.
const sinceEvery = 20 * time.Millisecond

// claimed records the result of a claim, and reports whether there may be rows before it. Claims that
// begin with the first row may take a share of sweepShare of the time.
func (s *since) claimed(now time.Time, q *Query, c *Claimed) (behind bool) {
	if s.full {
		s.restart = now.Add(max(sinceEvery, time.Duration(float64(now.Sub(q.asked))/sweepShare)))
	}
	found := make(map[string]int, len(q.Wanted))
	at := make(map[string]int64, len(q.Wanted))
	for i := range c.Work {
		w := &c.Work[i]
		found[w.Destination]++
		at[w.Destination] = max(at[w.Destination], w.At.Time.UnixMicro())
	}
	s.at = make(map[string]int64, len(at))
	for name, wanted := range q.Wanted {
		switch {
		case found[name] > 0 && (found[name] >= wanted || c.Cut):
			s.at[name] = at[name]
		case q.Since[name] != 0:
			behind = true
		}
	}
	return behind
}
