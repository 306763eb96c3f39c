package stream

import (
	"time"

	"github.com/notifyd/notifyd/internal/position"
)

// progress tracks how far a position was written. internal/position/interval.go lists everything that depends on the next write.
type progress struct {
	acknowledged int64 // deliveries since the shard was taken over
	written      int64 // acknowledged deliveries that were written
	dirty        bool  // there are changes to write
	at           time.Time
	wait         time.Duration // from at until the next write
	saves        uint64
	ranges       int // open ranges at the last write
}

// dueAt returns when the position should be written if there are changes.
func (l *progress) dueAt() time.Time { return l.at.Add(l.wait) }

// due reports whether the position should be written now.
func (l *progress) due() bool { return l.dirty && !time.Now().Before(l.dueAt()) }

// saved records a write, when it began, and how many deliveries it covers.
func (l *progress) saved(acknowledged int64, began time.Time) {
	l.written += acknowledged
	l.at = time.Now()
	l.wait = position.SaveAfter(l.at.Sub(began))
	l.saves++
}
