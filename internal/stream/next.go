package stream

import "time"

// firstGapPoll is the first pause between two reads of invisible ids; each pause is twice as long
// as the one before, up to the poll interval.
const firstGapPoll = time.Millisecond

// next is when a unit reads again.
type next struct {
	more    bool      // the last read was cut off
	at      time.Time // when to read without a notification
	gapWait time.Duration
	gapIDs  int64
}

// plan decides when to read again without a notification: after pause, or sooner while there are
// gaps. seen reports that the last read found rows.
func (n *next) plan(now time.Time, pause, poll time.Duration, seen bool, gapIDs int64) {
	if gapIDs != n.gapIDs || seen {
		n.gapIDs, n.gapWait = gapIDs, firstGapPoll
	}
	if gapIDs > 0 {
		pause = min(pause, n.gapWait)
		n.gapWait = min(2*n.gapWait, poll)
	}
	n.at = now.Add(pause)
}
