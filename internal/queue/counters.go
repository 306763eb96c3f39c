package queue

import "github.com/notifyd/notifyd/observe"

// counters counts queries and their results.
type counters struct {
	claims  uint64 // claims that found something
	found   uint64 // events in them
	queries [SourceDue + 1]observe.Asked
}

// query counts a query.
func (t *counters) query(s Source, failed bool) {
	t.queries[s].Count++
	if failed {
		t.queries[s].Failed++
	}
}

// events counts the events of a claim.
func (t *counters) events(n int) {
	t.claims++
	t.found += uint64(n) //nolint:gosec // a length
}

func (t *counters) stats(to *observe.Stats) {
	to.Claims = t.claims
	to.Claimed = t.found
	to.ByID = t.queries[SourceIDs]
	to.Sweeps = t.queries[SourceSweep]
	to.Due = t.queries[SourceDue]
}
