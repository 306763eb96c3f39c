package delivery

import "time"

// Lane is how the events of a destination are handed to its handler. A handler's package
// says with DefaultLane which one suits it. Zero fields leave it to the relay.
type Lane struct {
	// Concurrency is how many calls run at once.
	Concurrency int
	// Batch is the largest number of events in one call of a [BatchHandler].
	Batch int
	// Timeout is when the context of one call ends. It is above what the handler gives
	// itself: a call that the relay ends counts as an attempt.
	Timeout time.Duration
}
