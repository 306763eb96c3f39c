package stream

import "time"

// A position is written every saveEvery while it moves. A crash repeats the deliveries acknowledged
// since. Writing a position with many ranges costs the server some milliseconds, so it is written
// less often: the pause is saveShare times as long as the write took, up to saveAtLeast.
const (
	saveEvery   = 25 * time.Millisecond
	saveShare   = 20
	saveAtLeast = 50 * time.Millisecond
)

// ledger records how far a position was written.
type ledger struct {
	acknowledged int64 // deliveries since the unit was taken over
	written      int64 // acknowledged deliveries that were written
	dirty        bool  // there are changes to write
	at           time.Time
	wait         time.Duration // from then until the next write
	saves        uint64
}

// due reports whether the position should be written now.
func (l *ledger) due() bool { return l.dirty && time.Since(l.at) >= l.wait }

// saved records a write, when it began, and how many deliveries it covers.
func (l *ledger) saved(acknowledged int64, began time.Time) {
	l.written += acknowledged
	l.at = time.Now()
	l.wait = min(max(saveEvery, saveShare*l.at.Sub(began)), saveAtLeast)
	l.saves++
}
