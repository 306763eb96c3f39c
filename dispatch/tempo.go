package dispatch

import "time"

// tempo is the measured speed of a destination. The lock of its lane guards it.
type tempo struct {
	window time.Duration // how much work may wait in the queue, in time; never changes
	pace   time.Duration // what an event costs a worker, on average
}

// startPace is the assumed cost of an event before the first measurement.
const startPace = time.Millisecond

// slowShare makes a lane slow from a fifth of its window on: 10 ms with the
// default lock budget of 100 ms. A lease costs the database a fraction of a
// millisecond; a claim's connection that waits costs all other lanes latency.
const slowShare = 5

// slow reports whether an event takes longer than a lease costs.
func (t *tempo) slow() bool { return t.pace > t.window/slowShare }

// observe adopts a slower pace at once, since too large a queue does harm, and a faster one
// over a few answers.
func (t *tempo) observe(each time.Duration) {
	if each > t.pace {
		t.pace = (t.pace + each) / 2
	} else {
		t.pace = (7*t.pace + each) / 8
	}
}
