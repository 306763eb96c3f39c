package queue

import "github.com/notifyd/notifyd/observe"

// tally counts queries and their results.
type tally struct {
	claims uint64 // claims that found something
	found  uint64 // events found by them
	asks   [SourceDue + 1]observe.Asked
}

// asked counts a query.
func (t *tally) asked(s Source, failed bool) {
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
