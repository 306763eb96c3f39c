package observe

import "time"

// Refusal is a statement that the database refuses to a part of the relay, although it answers. A part that cannot
// record outcomes begins no further deliveries.
type Refusal struct {
	// Part names the part of the relay: a claimer, the leases, or the shard of a destination.
	Part string
	// Err is the answer of the database, nil once the part is no longer refused anything. Code is
	// its SQLSTATE, and Cure says what a person can do.
	Err        error
	Code, Cure string
	// Since is when the refusals began, and Count is their number since then.
	Since time.Time
	Count uint64
}
