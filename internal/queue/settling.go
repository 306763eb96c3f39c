package queue

import (
	"slices"
	"sync/atomic"
	"time"
)

// settling has the claims whose answers are being written, at most one per claimer. A database that refuses a COMMIT
// frees the rows before the claimer receives the error. Another claimer of this relay may get the rows then, and must
// not deliver them again. Claims of other relays are not visible here.
type settling []atomic.Pointer[claim]

// excludePause is the pause of a claimer that got rows of another claimer's settlement, so that it does not claim the
// same rows repeatedly.
const excludePause = 10 * time.Millisecond

// overlap reports whether the ranges of ids of two lists have ids in common.
func overlap(a, b []Work) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	return a[0].Event.ID <= b[len(b)-1].Event.ID && b[0].Event.ID <= a[len(a)-1].Event.ID
}

// exclude removes from work, which is in id order, the rows whose answers another claimer than self is writing. It
// reports whether there were any.
func (r settling) exclude(self int, work []Work) (rest []Work, passed bool) {
	rest = work
	for i := range r {
		other := r[i].Load()
		if i == self || other == nil || !overlap(rest, other.work) {
			continue // nearly always: sweeps of claimers do not overlap
		}
		before := len(rest)
		rest = slices.DeleteFunc(rest, func(w Work) bool { return other.has(w.Event.ID, w.Destination) })
		passed = passed || len(rest) < before
	}
	return rest, passed
}
