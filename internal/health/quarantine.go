package health

import "time"

const (
	// freeProofs is how many times the destination may fail over an event and answer others before an attempt counts.
	// The end of one outage and the start of the next can cause one such failure for a good event, but hardly two.
	freeProofs = 2
	// freeThrottles is how many times an event may be throttled while others are answered, before it is quarantined.
	freeThrottles = 3
	// blindThrottles is the same if no other event is answered. Without it, an oldest event would always be tried
	// first, and the others never. If the others are throttled as well, the next event needs twice as many.
	blindThrottles = 3
	// maxBlindThrottles ends the doubling.
	maxBlindThrottles = 10_000
	// maxQuarantine bounds the number of remembered events.
	maxQuarantine = 10_000
	// recordExpiry is how long past its due time the record of an event remains.
	recordExpiry = time.Minute
)

// quarantine distinguishes a destination that is down, or throttles, from an event that makes it fail the same way.
// The evidence is the outcome of other events: without the quarantine one such event would hold up all. A nil pointer
// has no events.
type quarantine struct {
	events  map[int64]*record
	proof   time.Time // when the last answered call began
	answers uint64    // answers to any event, since the first record
	blind   int       // throttles that quarantine the next event; 0 for blindThrottles
	pruned  time.Time
}

// record is the history of one event in quarantine.
type record struct {
	lost   time.Time // when the destination last failed over it; zero for never
	proofs int       // failures while other events were answered

	throttles   int
	blind       int    // throttles since the last quarantine without proof
	quarantines int    // number of quarantines for throttling
	answers     uint64 // quarantine.answers at the first throttle

	until time.Time // due again
}

// blame tells who is at fault when the destination failed over an event.
type blame uint8

const (
	blameDestination blame = iota // the destination may be down
	blameAgain                    // the same, and it was down for this event before
	blameMaybe                    // the destination answers others but not this event: once may be a coincidence
	blameStale                    // blameMaybe repeatedly, but no answer since the last failure
	blameEvent                    // the destination repeatedly answers others but not this event
)

// record returns the record of an event, and creates it if necessary.
func (q *quarantine) record(event int64) *record {
	one := q.events[event]
	if one == nil {
		if q.events == nil || len(q.events) >= maxQuarantine {
			q.events = make(map[int64]*record)
		}
		one = &record{answers: q.answers}
		q.events[event] = one
	}
	return one
}

// has reports whether an event has a record.
func (q *quarantine) has(event int64) bool { return q != nil && q.events[event] != nil }

// lose records that the destination failed over an event, in a call that may be a probe. proof is when the previous
// answered call of the same worker began. An answer to others between two failures blames the event; answers from
// before an outage say nothing about a probe.
func (q *quarantine) lose(now time.Time, event int64, proof time.Time, probe bool) blame {
	if proof.After(q.proof) {
		q.proof = proof
	}
	one := q.record(event)
	before := one.lost
	one.lost = now
	switch {
	case before.IsZero():
		return blameDestination
	case probe:
		return blameAgain
	case q.proof.After(before):
		if one.proofs++; one.proofs < freeProofs {
			return blameMaybe
		}
		return blameEvent
	case one.proofs >= freeProofs: // no other event was tried since
		return blameStale
	}
	return blameAgain
}

// throttled records that an event was throttled. It returns how often the event was quarantined for that, including
// this time; 0 if the throttle concerns the destination.
func (q *quarantine) throttled(event int64) (quarantines int) {
	one := q.record(event)
	one.throttles++
	switch {
	case one.quarantines > 0:
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
	one.quarantines++
	return one.quarantines
}

// expect records that the event will be retried in d.
func (q *quarantine) expect(now time.Time, event int64, d time.Duration) {
	if one := q.events[event]; one != nil {
		one.until = now.Add(d)
	}
}

// counted records that a failed attempt of an event was counted: the event is retried in d, or is dead.
func (q *quarantine) counted(now time.Time, event int64, d time.Duration, dead bool) {
	if dead {
		delete(q.events, event)
		return
	}
	q.expect(now, event, d)
}

// answered records that the destination answered an event, in a call that began at the given time.
func (q *quarantine) answered(event int64, began time.Time) {
	if began.After(q.proof) {
		q.proof = began
	}
	q.answers++
	q.blind = 0
	delete(q.events, event)
}

// prune occasionally drops the records of events that did not return, because another relay delivered them. It
// reports whether any record is left.
func (q *quarantine) prune(now time.Time) bool {
	if now.Sub(q.pruned) >= recordExpiry {
		q.pruned = now
		for id, one := range q.events {
			if now.Sub(one.until) > recordExpiry {
				delete(q.events, id)
			}
		}
	}
	return len(q.events) > 0
}
