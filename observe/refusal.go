package observe

import (
	"fmt"
	"strings"
	"time"
)

// Refusal is a statement that the database refuses to a part of the relay, although it answers. A part that cannot
// record outcomes begins no further deliveries.
type Refusal struct {
	// Part names the part of the relay: a claimer, the leases, or the shard of a destination.
	Part string
	// Err is the answer of the database, or nil when the refusals of the part have ended. Code is its SQLSTATE, and Cure
	// says what to do about it.
	Err        error
	Code, Cure string
	// Outcomes is the number of single events whose outcomes are refused, while the others are recorded; 0 if the
	// statements of the part are refused in general.
	Outcomes int
	// Since is when the refusals began, and Count is their number since then.
	Since time.Time
	Count uint64
}

// Withheld describes the outcomes of single events that are refused, on one line; empty for another refusal.
func (r *Refusal) Withheld(at time.Time) string {
	if r.Outcomes == 0 || r.Err == nil {
		return ""
	}
	since := at.Sub(r.Since).Round(time.Second)
	return strings.Join(strings.Fields(fmt.Sprintf("%d withheld for %v: %v", r.Outcomes, since, r.Err)), " ")
}
