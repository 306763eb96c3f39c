package health

import "time"

const (
	// freeProofs is how often the destination may fail over an event while it answers others before
	// that counts as an attempt. The end of one outage and the beginning of the next can put one
	// such failure on a good event, hardly two.
	freeProofs = 2
	// freeThrottles is how often an event may be throttled before it is put aside,
	// where others are answered.
	freeThrottles = 3
	// blindThrottles is the same where nothing else is answered: as the oldest event it would always be
	// tried first, and the others would never be tried. If the others are throttled as
	// well, the next event needs twice as many.
	blindThrottles = 3
	// maxBlindThrottles ends the doubling.
	maxBlindThrottles = 10_000
	// maxQuarantine bounds the number of remembered events.
	maxQuarantine = 10_000
	// suspectExpiry is how long past its due time an event is remembered that does not return.
	suspectExpiry = time.Minute
)

// quarantine distinguishes a destination that is down, or throttles, from an event that makes it fail
// with the same answers. The evidence is the outcome of other events: without it one such event
// would hold up all. A nil pointer has no events.
type quarantine struct {
	events  map[int64]*suspect
	proof   time.Time // when the last answered call began
	answers uint64    // to any event, since the first suspect
	blind   int       // how many throttles put the next event aside; 0 is blindThrottles
	pruned  time.Time
}

// suspect is the record against one event.
type suspect struct {
	lost   time.Time // when the destination last failed over it; zero if it has not
	proofs int       // how often it failed while others were answered

	throttles int
	blind     int    // of those, since it was put aside without proof
	aside     int    // how often it was put aside for being throttled
	answers   uint64 // when it was first throttled

	until time.Time // when it is due again
}

// blame says whose fault it is that the destination has failed over an event.
type blame uint8

const (
	blameNobody blame = iota // the destination may be down
	blameAgain               // the same, and it was down for this event before
	blameMaybe               // others are answered and this one is not: once may be a coincidence
	blameStale               // that was so again and again, and nothing was answered since the last time
	blameEvent               // others are answered and this one is not, again and again
)

// of returns the record against an event, and creates it if needed.
func (q *quarantine) of(event int64) *suspect {
	one := q.events[event]
	if one == nil {
		if q.events == nil || len(q.events) >= maxQuarantine {
			q.events = make(map[int64]*suspect)
		}
		one = &suspect{answers: q.answers}
		q.events[event] = one
	}
	return one
}

// has reports whether there is a record against an event.
func (q *quarantine) has(event int64) bool { return q != nil && q.events[event] != nil }

// lose records that the destination has failed over an event at a time, with a call that may be a
// probe. proof is when the previous answered call of the same worker began. Where others are
// answered in between, the event is at fault; answers from before an outage say nothing about a
// probe.
func (q *quarantine) lose(now time.Time, event int64, proof time.Time, probe bool) blame {
	if proof.After(q.proof) {
		q.proof = proof
	}
	one := q.of(event)
	before := one.lost
	one.lost = now
	switch {
	case before.IsZero():
		return blameNobody
	case probe:
		return blameAgain
	case q.proof.After(before):
		if one.proofs++; one.proofs < freeProofs {
			return blameMaybe
		}
		return blameEvent
	case one.proofs >= freeProofs: // no other event has been tried since
		return blameStale
	}
	return blameAgain
}

// throttled records that an event was throttled. It returns how often the event has been put aside,
// including this time; 0 if it stays, because the throttle is meant for the destination.
func (q *quarantine) throttled(event int64) (aside int) {
	one := q.of(event)
	one.throttles++
	switch {
	case one.aside > 0:
	case q.answers > one.answers:
		if one.throttles < freeThrottles {
			return 0
		}
	default:
		one.blind++
		if one.blind < max(q.blind, blindThrottles) {
			return 0
		}
		one.blind, q.blind = 0, min(2*max(q.blind, blindThrottles), maxBlindThrottles)
	}
	one.aside++
	return one.aside
}

// expect records that the event will be retried in d.
func (q *quarantine) expect(now time.Time, event int64, d time.Duration) {
	if one := q.events[event]; one != nil {
		one.until = now.Add(d)
	}
}

// counted records that an attempt was counted for an event over which the destination has failed: it is retried in d, or is dead.
func (q *quarantine) counted(now time.Time, event int64, d time.Duration, dead bool) {
	if dead {
		delete(q.events, event)
		return
	}
	q.expect(now, event, d)
}

// answered records that the destination has answered an event, with a call that began at the given
// time.
func (q *quarantine) answered(event int64, began time.Time) {
	if began.After(q.proof) {
		q.proof = began
	}
	q.answers++
	q.blind = 0
	delete(q.events, event)
}

// prune drops from time to time the events that have not returned: another relay has delivered
// them. It reports whether any is left.
func (q *quarantine) prune(now time.Time) bool {
	if now.Sub(q.pruned) >= suspectExpiry {
		q.pruned = now
		for id, one := range q.events {
			if now.Sub(one.until) > suspectExpiry {
				delete(q.events, id)
			}
		}
	}
	return len(q.events) > 0
}
