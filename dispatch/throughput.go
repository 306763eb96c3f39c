package dispatch

import "time"

// throughput is the measured speed of a destination. The lane's lock guards it.
type throughput struct {
	window time.Duration // bounds the work in the queue, in time; constant
	pace   time.Duration // average cost of an event for a worker
}

// startPace is the assumed cost of an event before the first measurement.
const startPace = time.Millisecond

// slowShare makes a lane slow above a fifth of its window: 10 ms with the default lock budget of 100 ms. A lease
// costs the database a fraction of a millisecond; a claim's connection that waits costs all other lanes latency.
const slowShare = 5

// slow reports whether an event takes longer than a lease costs.
func (t *throughput) slow() bool { return t.pace > t.window/slowShare }

// observe adopts a slower pace quickly, since too large a queue does harm, and a faster one over several answers.
func (t *throughput) observe(each time.Duration) {
	if each > t.pace {
		t.pace = (t.pace + each) / 2
	} else {
		t.pace = (7*t.pace + each) / 8
	}
}
