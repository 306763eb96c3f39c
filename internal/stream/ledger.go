package stream

import "time"

// A position is written every saveEvery while it moves. A crash repeats
// what was acknowledged since. One with many ranges costs the server some
// milliseconds, and is written less often: saveShare times as long passes as it took,
// up to saveAtLeast.
const (
	saveEvery   = 25 * time.Millisecond
	saveShare   = 20
	saveAtLeast = 50 * time.Millisecond
)

// ledger is how far a position was written.
type ledger struct {
	acknowledged int64 // deliveries since the unit was taken over
	written      int64 // of that
	dirty        bool  // there is something to be written
	at           time.Time
	wait         time.Duration // from then until the next write
	head         int64         // as written
	saves        uint64
}

// due reports whether the position is to be written now.
func (l *ledger) due() bool { return l.dirty && time.Since(l.at) >= l.wait }

// saved notes a write that was begun at a time, and of how many deliveries it tells.
func (l *ledger) saved(head, acknowledged int64, began time.Time) {
	l.written += acknowledged
	l.head, l.at = head, time.Now()
	l.wait = min(max(saveEvery, saveShare*l.at.Sub(began)), saveAtLeast)
	l.saves++
}
