package observe

import "time"

// Refusal is what the database refuses a part of the relay: it answers, and does not do what the
// part asks for. A part that cannot record what became of deliveries begins no further ones.
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
