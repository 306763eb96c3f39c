package stream

import "time"

// firstGapPoll is the first pause between two reads of invisible ids. Each pause doubles, up to the poll interval.
const firstGapPoll = time.Millisecond

// next plans when a shard reads again.
type next struct {
	more    bool      // the last read was truncated
	at      time.Time // time of the next read without a notification
	gapWait time.Duration
	gapIDs  int64
}

// plan sets the time of the next read without a notification: after pause, or sooner while there are gaps. seen reports
// that the last read found rows.
func (n *next) plan(now time.Time, pause, poll time.Duration, seen bool, gapIDs int64) {
	if gapIDs != n.gapIDs || seen {
		n.gapIDs = gapIDs
		n.gapWait = firstGapPoll
	}
	if gapIDs > 0 {
		pause = min(pause, n.gapWait)
		n.gapWait = min(2*n.gapWait, poll)
	}
	n.at = now.Add(pause)
}
