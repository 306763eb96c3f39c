package queue

import (
	"time"

	"github.com/notifyd/notifyd/observe"
)

// tally counts queries and their results.
type tally struct {
	claims uint64 // claims that found something
	found  uint64 // events found by them
	asks   [SourceDue + 1]observe.Asked
}

// asked counts a query.
func (t *tally) asked(s Source, failed bool) { //nolint:revive // what came of it
	t.asks[s].Count++
	if failed {
		t.asks[s].Failed++
	}
}

// claimed counts what a query found.
func (t *tally) claimed(n int) {
	t.claims++
	t.found += uint64(n) //nolint:gosec // a length
}

func (t *tally) stats(to *observe.Stats) {
	to.Claims, to.Claimed = t.claims, t.found
	to.ByID, to.Sweeps, to.Due = t.asks[SourceIDs], t.asks[SourceSweep], t.asks[SourceDue]
}

const (
	// listenFor is the period over which the rate of named ids is measured.
	listenFor = 50 * time.Millisecond
	// watchFrom is the rate, in ids per second, from which the relay checks whether writers queue
	// up.
	watchFrom = 100.0
)

// hearing measures how many ids per second the bell names. Writers that ring commit one after the
// other. The rate alone does not tell whether they would be faster in silence, so from watchFrom on
// the relay checks whether they queue up.
type hearing struct {
	n     int // ids since that time
	since time.Time
}

// count counts an id, and returns the rate if it has just been measured, 0 otherwise.
func (h *hearing) count(now time.Time) (rate float64) {
	took := now.Sub(h.since)
	if took < listenFor {
		h.n++
		return 0
	}
	if took < 2*listenFor {
		rate = float64(h.n) / took.Seconds()
	}
	h.n, h.since = 1, now
	return rate
}
