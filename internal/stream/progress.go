package stream

import "time"

// A moving position is written every saveEvery. A crash repeats the deliveries acknowledged since the last write. A
// position with many ranges costs the server some milliseconds, so the pause is saveShare times the duration of the
// write, up to saveAtLeast.
const (
	saveEvery   = 25 * time.Millisecond
	saveShare   = 20
	saveAtLeast = 50 * time.Millisecond
)

// progress tracks how far a position was written.
type progress struct {
	acknowledged int64 // deliveries since the shard was taken over
	written      int64 // acknowledged deliveries that were written
	dirty        bool  // there are changes to write
	at           time.Time
	wait         time.Duration // from at until the next write
	saves        uint64
	ranges       int // open ranges at the last write
}

// due reports whether the position should be written now.
func (l *progress) due() bool { return l.dirty && time.Since(l.at) >= l.wait }

// saved records a write, when it began, and how many deliveries it covers.
func (l *progress) saved(acknowledged int64, began time.Time) {
	l.written += acknowledged
	l.at = time.Now()
	l.wait = min(max(saveEvery, saveShare*l.at.Sub(began)), saveAtLeast)
	l.saves++
}
