package queue

import (
	"time"

	"github.com/notifyd/notifyd/observe"
)

// tally counts queries and what they found.
type tally struct {
	claims uint64 // that found something
	found  uint64 // by them
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
	// listenFor is over how long the rate of named ids is measured.
	listenFor = 50 * time.Millisecond
	// watchFrom is the rate from which the relay looks whether writers queue up.
	watchFrom = 100.0
)

// hearing measures how many ids the bell names per second. Writers that have to
// ring commit one after the other: the rate alone does not tell whether they
// would be faster in silence, so from watchFrom on the relay looks whether they queue up.
type hearing struct {
	n     int // ids since then
	since time.Time
}

// count counts an id, and returns the rate where it has been measured; 0 otherwise.
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
