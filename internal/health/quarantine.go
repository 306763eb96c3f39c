package health

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
)

const (
	// freeProofs is how many times the destination may fail over an event and answer others before an attempt counts.
	// The end of one outage and the start of the next can cause one such failure for a good event, but hardly two.
	freeProofs = 2
	// freeProofsOfFickle is the same for a destination that often takes an event after it has failed over it.
	freeProofsOfFickle = 8
	// freeThrottles is how many times an event may be throttled while others are answered, before it is quarantined.
	freeThrottles = 3
	// blindThrottles is the same if no other event is answered. Without it, an oldest event would always be tried
	// first, and the others never. If the others are throttled as well, the next event needs twice as many.
	blindThrottles = 3
	// maxBlindThrottles ends the doubling.
	maxBlindThrottles = 10_000
	// maxQuarantine bounds the number of remembered events.
	maxQuarantine = 10_000
	// shortRow different failed events in a row are an outage if the destination took no event for quietTime, or for
	// the time of such a call. longRow events are an outage without a quiet time: with nine bad events in ten,
	// shortRow of them often fail in a row.
	shortRow  = 5
	longRow   = 64
	quietTime = time.Second
	// relentsOften is how many events a destination must take after it had failed over them to be fickle, for
	// relentsFor or relentsPauses of the last pause.
	relentsOften  = 3
	relentsFor    = time.Minute
	relentsPauses = 16
	// slowFailure is how long a call must take to fail for its event to be one that occupies workers.
	slowFailure = time.Second
	// recordExpiry is how long past its due time the record of an event remains.
	recordExpiry = time.Minute
)

// quarantine distinguishes a destination that is down, or throttles, from an event that makes it fail the same way.
// The evidence is the outcome of other events: without the quarantine one such event would hold up all. A nil pointer
// has no events.
type quarantine struct {
	events map[int64]*record

	kinds kinds

	relented   int           // events that the destination took after it had failed over them, one soon after the other
	relentedAt time.Time     // the last of them
	pause      time.Duration // the last pause of the breaker

	row     uint64    // the number of this row of failures, from 1: an event that the destination takes ends it
	failed  int       // different events that failed in this row
	taken   time.Time // when the last call that delivered began; zero for none
	rowFrom time.Time // when the row began

	proof   time.Time // when the last answered call began
	answers uint64    // answers to any event, since the first record
	blind   int       // throttles that quarantine the next event; 0 for blindThrottles
	pruned  time.Time
}

// record is the history of one event in quarantine.
type record struct {
	lost   time.Time // when the destination last failed over it; zero for never
	proofs int       // failures while other events were answered

	refused time.Time // when the last unclear refusal came; zero for never
	proven  bool      // the destination took another event between that refusal and the begin of this call
	row     uint64    // the row of failures in which the event was counted last

	throttles   int
	blind       int    // throttles since the last quarantine without proof
	quarantines int    // number of quarantines for throttling
	answers     uint64 // quarantine.answers at the first throttle

	until time.Time     // due again
	err   error         // the last failure
	took  time.Duration // how long that took
}

// blame tells who is at fault when the destination failed over an event.
type blame uint8

const (
	blameDestination blame = iota // the destination may be down
	blameAgain                    // the same, and it was down for this event before
	blameMaybe                    // the destination answers others but not this event: once may be a coincidence
	blameStale                    // the event is suspected, and no other event was answered since the last failure
	blameEvent                    // the destination answers others but not this event
)

// counts reports whether the attempt counts.
func (b blame) counts() bool { return b > blameMaybe }

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

// counts adds a failure over an event to the current row.
func (q *quarantine) counts(one *record) {
	if one.row != q.row {
		one.row = q.row
		q.failed++
	}
}

// isOutage reports whether so many different events failed in a row that none of them is at fault. took is how long the
// last failure took.
func (q *quarantine) isOutage(now time.Time, took time.Duration) bool {
	return q.failed >= longRow || q.failed >= shortRow && q.isQuiet(now, took)
}

// isQuiet reports whether the destination took no event for quietTime, and for the time of a failed call. Calls of half a
// second may occupy all workers at once without an outage.
func (q *quarantine) isQuiet(now time.Time, took time.Duration) bool {
	return now.Sub(q.rowFrom) >= max(quietTime, took)
}

// begins records that a call for an event begins. Only events that the destination took before the call prove that the
// event is at fault: an outage may end during the call.
func (q *quarantine) begins(event int64) {
	if one := q.events[event]; one != nil {
		one.proven = !one.refused.IsZero() && q.taken.After(one.refused) && q.failed < shortRow
	}
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

	// Repeated failures of an event do not count: with many bad events, all retries fail.
	if before.IsZero() {
		q.counts(one)
	}

	switch {
	case before.IsZero():
		return blameDestination
	case probe:
		return blameAgain
	case q.proof.After(before):
		one.proofs++
		switch {
		case q.isFickle(now) && one.proofs < freeProofsOfFickle:
			return blameAgain
		case one.proofs < freeProofs:
			return blameMaybe
		}

		return blameEvent

	case one.proofs >= freeProofs: // no other event was tried since
		return blameStale
	}

	return blameAgain
}

// refuses records an unclear refusal of an event. last means that the event has no attempt after this one.
func (q *quarantine) refuses(now time.Time, event int64, c *Call, last bool) blame {
	one := q.record(event)
	isFirst := one.refused.IsZero()
	proven := one.proven
	one.refused = now
	one.proven = false

	if c.Others {
		q.takes(now)
	}

	q.counts(one)

	isAlone := len(q.events) == 1
	othersFail := q.failed > 1
	switch {
	case proven:
		return blameEvent
	case q.isOutage(now, c.Took) && isFirst:
		return blameDestination
	case q.isOutage(now, c.Took):
		return blameAgain
	case last && othersFail && q.isQuiet(now, c.Took):
		return blameAgain // no attempt is left to count until more events are refused
	case last && (isFirst || !isAlone):
		return blameMaybe
	default:
		return blameStale
	}
}

// relents records that the destination took an event, perhaps after it had failed over the event.
func (q *quarantine) relents(now time.Time, event int64) {
	one := q.events[event]
	if one == nil || one.lost.IsZero() {
		return
	}
	if now.Sub(q.relentedAt) >= q.relentsFor() {
		q.relented = 0
	}

	q.relented++
	q.relentedAt = now
}

// isFickle reports whether the destination fails over events and takes them later. Its failures are its own then, and
// more calls may only harm it.
func (q *quarantine) isFickle(now time.Time) bool {
	return q.relented >= relentsOften && now.Sub(q.relentedAt) < q.relentsFor()
}

// relentsFor returns how long an event that was taken after a failure is evidence.
func (q *quarantine) relentsFor() time.Duration { return max(relentsFor, relentsPauses*q.pause) }

// takes records that the destination took an event.
func (q *quarantine) takes(now time.Time) {
	q.row++
	q.failed = 0
	q.rowFrom = now
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

		one.blind = 0
		q.blind = min(2*max(q.blind, blindThrottles), maxBlindThrottles)
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

// answered records that the destination answered an event of a type, in a call that began at the given time. taken means
// that it took the event.
func (q *quarantine) answered(now time.Time, event int64, name string, began time.Time, taken bool) {
	q.kinds.answered(now, name, taken)

	if began.After(q.proof) {
		q.proof = began
	}
	if taken && began.After(q.taken) {
		q.taken = began
	}

	if taken {
		q.takes(now)
		q.relents(now, event)
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

// isSlow reports whether the last call for an event failed slowly.
func (q *quarantine) isSlow(event int64) bool {
	one := q.events[event]
	return one != nil && one.took >= slowFailure
}

// promise rates an event as a probe.
func (q *quarantine) promise(e *delivery.Event) int {
	switch {
	case q.has(e.ID):
		return 0
	case q.kinds.has(e.Type):
		return 1
	default:
		return 2
	}
}

// triedAt returns when the destination last failed over an event, or refused it; zero for never.
func (q *quarantine) triedAt(event int64) time.Time {
	one := q.events[event]
	if one == nil {
		return time.Time{}
	}
	if one.refused.After(one.lost) {
		return one.refused
	}

	return one.lost
}
