package observe

import "time"

// Replay is a range of a stream that a destination receives again, next to the live events.
type Replay struct {
	ID          int64  `json:"id"`
	Destination string `json:"destination"`
	// From and To are the first and the last id of the range.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Types are the patterns of event types; none means all that the destination gets.
	Types []string `json:"types"`
	// Rate is the largest number of events per second, 0 for no limit.
	Rate float64 `json:"rate"`
	// Number is the replay's part of delivery.Event.DedupeID: event 42 is 42r1000. 0 means that the events
	// keep the ids that they had.
	Number int `json:"number"`
	// State is running, done or stopped.
	State string `json:"state"`
	// Head is the id up to which events were sent. Remaining counts the ids left, including those in flight; some ids
	// have no event. Remaining is 0 unless the replay runs.
	Head      int64 `json:"head"`
	Remaining int64 `json:"remaining"`
	// Delivered counts the events that the destination acknowledged at the first attempt, Failed those
	// that became a retry, a dead letter, or wait behind one, and Skipped those that were passed over
	// because a delivery of theirs was stored, or in flight.
	Delivered int64 `json:"delivered"`
	Failed    int64 `json:"failed"`
	Skipped   int64 `json:"skipped"`
	// Lowest is the id up to which it needs no event, and HoldsBack reports that it is running, and that no
	// position and no other replay is lower: no event above Lowest can be purged.
	Lowest    int64 `json:"lowest"`
	HoldsBack bool  `json:"holds_back_retention"`
	// CreatedBy is who requested it, unverified, and Reason why; it may be empty.
	CreatedBy string    `json:"created_by"`
	Reason    string    `json:"reason,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// FinishedAt is when it was done or stopped, nil while it is running.
	FinishedAt *time.Time `json:"finished_at,omitempty"`
}

// The states of a [Replay].
const (
	ReplayRunning = "running"
	ReplayDone    = "done"
	ReplayStopped = "stopped"
)
