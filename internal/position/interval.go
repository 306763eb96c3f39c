package position

import "time"

// A position moves with every acknowledgement. It is written at intervals, in one transaction with the rows of the events
// that it passes. Until that write:
//
//	an acknowledgement     is lost with the relay: the successor delivers the event again
//	a failed event         has no row: it is neither due nor shown as waiting, and the events behind it have no rows either
//	a dead letter          has no row, and no copy for on_dead; its incident and log line come before
//	a finished row         remains: the successor delivers its event again
//	a replay               has the progress of the last write
//	retention              keeps the events above the lowest open id
//	status, console        show the lag of the last write
//	UntilIdle              continues: events are open
//	a successor            starts no shard of a relay that leaves, for lastSaveWithin at most (internal/stream)
//	doctor                 reports a position that has not moved for Limits.Frozen, if an event waits
//	the hang check         reports a position that has not moved for hangAfter (hangs.go), if an event waits
//
// The rows are written earlier if many are pending, or if the next event of an aggregate waits for them. The last two
// would report relays that work if they were not longer than [LongestUnwritten]; their tests compare them.
const (
	// saveEvery is the interval. A position with many ranges costs the server some milliseconds, so the pause after a
	// write is saveShare times its duration, up to saveAtMost.
	saveEvery  = 25 * time.Millisecond
	saveShare  = 20
	saveAtMost = 50 * time.Millisecond

	// A position with more than observe.ManyRanges ranges is written without them in between. The pause between two
	// writes of all of them is wholeShare times the duration of the last one, within these bounds.
	wholeShare   = 20
	wholeAtLeast = time.Second
	wholeAtMost  = 5 * time.Second

	// RoundTrip bounds one continuous use of a connection by a shard, and so a write.
	RoundTrip = 15 * time.Second

	// LongestUnwritten is the longest pause and the slowest write: a relay that works and reads without delay leaves no
	// acknowledgement unwritten for longer.
	LongestUnwritten = max(saveAtMost, wholeAtMost) + RoundTrip
)

// SaveAfter returns the pause after a write that took the given time.
func SaveAfter(took time.Duration) time.Duration {
	return min(max(saveEvery, saveShare*took), saveAtMost)
}

// wholeAfter returns the pause after a write of all ranges that took the given time.
func wholeAfter(took time.Duration) time.Duration {
	return min(max(wholeAtLeast, wholeShare*took), wholeAtMost)
}
