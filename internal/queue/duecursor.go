package queue

import (
	"maps"
	"time"
)

// dueCursor is where the next claim of due deliveries begins, by destination: where the last claim ended. Before that
// are dead index entries, as many as there were deliveries, and few rows: locked, returned, or made due by a slow
// transaction. So claims periodically begin with the first row again. A destination does that as soon as its claim
// finds less than it wanted. The scheduler's lock guards it.
type dueCursor struct {
	at      map[string]int64 // in microseconds since 1970
	restart time.Time        // when claims begin with the first row again
	full    bool             // the claim in flight begins with the first row
}

// begin returns where a claim at the given time begins.
func (s *dueCursor) begin(now time.Time) map[string]int64 {
	s.full = !now.Before(s.restart)
	if s.full {
		s.at = nil
	}
	return maps.Clone(s.at)
}

// resetEvery is the minimum time between two claims that begin with the first row.
const resetEvery = 20 * time.Millisecond

// claimed records the result of a claim, and reports whether rows may exist before its beginning. Claims that begin
// with the first row may take the fraction sweepShare of the time.
func (s *dueCursor) claimed(now time.Time, q *Query, c *Claimed) (behind bool) {
	if s.full {
		s.restart = now.Add(max(resetEvery, time.Duration(float64(now.Sub(q.asked))/sweepShare)))
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
