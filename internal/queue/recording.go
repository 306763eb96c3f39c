package queue

import (
	"slices"
	"sync/atomic"
	"time"
)

// recording has the claims whose answers are being written, at most one of each claimer. A database that
// refuses a COMMIT has freed the rows before the claimer hears of it: another claimer may get them
// meanwhile, and must not deliver them again. It cannot see those of other relays.
type recording []atomic.Pointer[claim]

// passByPause keeps a claimer from getting the same rows again and again while another waits for the
// answer to its settlement.
const passByPause = 10 * time.Millisecond

// passBy removes from work, which is in the order of ids, the rows whose answers another claimer than self is
// writing, and reports whether there were any.
func (r recording) passBy(self int, work []Work) (rest []Work, passed bool) {
	rest = work
	for i := range r {
		other := r[i].Load()
		if i == self || other == nil || len(rest) == 0 || len(other.work) == 0 ||
			rest[len(rest)-1].Event.ID < other.work[0].Event.ID || rest[0].Event.ID > other.work[len(other.work)-1].Event.ID {
			continue // as nearly always: sweeps of claimers do not overlap
		}
		before := len(rest)
		rest = slices.DeleteFunc(rest, func(w Work) bool { return other.has(w.Event.ID, w.Destination) })
		passed = passed || len(rest) < before
	}
	return rest, passed
}
