package observe

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// The modes of a table, in Stats.Mode and Backlog.Mode.
const (
	ModeQueue  = "queue"
	ModeStream = "stream"
)

// Stats are the figures of a relay. Counters begin at zero at its start and only grow.
type Stats struct {
	// Claims counts the claims that found events, and Claimed the events in them.
	Claims, Claimed uint64
	// Fenced counts answers that were refused because their lease was taken over, lost in a crash
	// of the database, or settled just before a connection was lost.
	Fenced uint64
	// ByID, Sweeps and Due count the queries for work, with or without a result: for ids that the
	// notifications named, for fresh events in order, and for due deliveries.
	ByID, Sweeps, Due Asked
	// Leases counts the leases of deliveries that outlived their claim.
	Leases LeaseStats
	// WakeState is "listening" (writers notify the relay), "polling" (the relay suppresses notifications and reads
	// without a pause) or "settling" (writers notify again, and transactions that did not are still open).
	WakeState string
	// DatabaseDown reports that the database does not answer, and DatabaseDownSince when that began; zero while it answers.
	DatabaseDown      bool
	DatabaseDownSince time.Time
	// DatabaseCure is what a person can do where it answers that it admits no session, as to a wrong
	// password; empty otherwise.
	DatabaseCure string
	// Refusals are the statements that the database refuses at present, by part of the relay; nil without refusals. A
	// part that cannot record outcomes begins no further deliveries.
	Refusals []Refusal
	// Hangs are those of [Health].
	Hangs []Hang
	// Listener is the connection that listens; nil if the relay only polls, and outside of a relay.
	Listener *ListenerStats
	// Connections are those to the database, by role; nil outside of a relay.
	Connections []ConnectionStats
	// Mode is ModeStream if the relay reads a stream, ModeQueue if it claims, and empty before it
	// knows.
	Mode string
	// Positions are the shards of a stream that this relay owns, by destination; nil in
	// a queue.
	Positions []PositionStats
	// Destinations has one entry for each destination, in the order in which they were added.
	Destinations []DestinationStats
}

// PositionStats are the figures of a shard of a stream that this relay owns.
type PositionStats struct {
	// Destination is the shard's destination; empty for the unrouted scanner. Shard is its number, 0 unless the destination has
	// several.
	Destination string
	Shard       int
	// Head is the highest id that was read, and Last the highest assigned id at the last query: ids
	// in between have not been read yet. Unread is their number, without ids between two
	// partitions, which no event can have.
	Head, Last, Unread int64
	// Open is how many events up to Head are not acknowledged or stored yet. Gaps is how many ids
	// up to Head belong to transactions that are open, as far as known, in as many ranges as
	// Ranges.
	Open, Gaps, Ranges int64
	// OpenRanges is in how many ranges the ids up to Head lie that are not acknowledged, stored or proved empty:
	// see ManyRanges.
	OpenRanges int64
	// OldestGap is the time since the oldest gap was found; 0 without gaps.
	OldestGap time.Duration
	// Blocked is how many aggregates wait for a stored delivery.
	Blocked int
	// Loading reports that the shard does not deliver yet: it loads the stored deliveries of the destination, or waits
	// for stored events of newly routed types.
	Loading bool
	// Delivered counts the deliveries acknowledged since this relay has owned the shard.
	Delivered uint64
	// Saved counts the writes of the position, and SavedAt is the time of the last one.
	Saved   uint64
	SavedAt time.Time
}

// Lag is how many ids have not been handled yet. Ids of rolled back transactions count until the
// relay knows that they were rolled back.
func (s PositionStats) Lag() int64 { return s.Unread + s.Open + s.Gaps }

// ConnectionStats are the connections to the database in one role.
type ConnectionStats struct {
	// Role is the part of application_name after notifyd/, or "pool".
	Role string
	// Open is how many are open now, and Opened how many were opened so far.
	Open   int
	Opened uint64
}

// Asked counts queries for work.
type Asked struct{ Count, Failed uint64 }

// Plus returns the sum of both.
func (a Asked) Plus(b Asked) Asked { return Asked{a.Count + b.Count, a.Failed + b.Failed} }

// LeaseStats are the figures of leases.
type LeaseStats struct {
	// Held is how many this relay holds now.
	Held int
	// Granted, Renewed and Lost count leases that were written, extended, and
	// given up because a handler ignored the end of its context.
	Granted, Renewed, Lost uint64
	// TakenOver counts the deliveries taken over from dead relays, and the relay's own deliveries
	// whose outcome a crash of the database lost.
	TakenOver uint64
}

// NotBegun counts the deliveries that were found and not begun.
type NotBegun struct {
	// Refused, Withdrawn and Withheld will be found again: the lane had no room; they were taken
	// back before their turn; or an earlier event of their aggregate has to go first.
	Refused, Withdrawn, Withheld uint64
	// Filtered counts events that a filter has kept from the destination: they are not for it.
	Filtered uint64
	// Expired counts events that were too old to deliver.
	Expired uint64
	// RateLimits counts how often a delivery was found and had to wait for the rate limit.
	RateLimits uint64
}

// DestinationStats are the figures of one destination, of all its shards together: counts are sums, and the destination is
// as unwell as the worst of the shards that this relay delivers.
type DestinationStats struct {
	Name string
	// Type is the kind of the handler: for a handler of this module its package, such as webhook, and otherwise its Go type.
	Type string
	// DeadLettersTo is the destination that receives a report of each dead letter; empty if none does.
	DeadLettersTo string
	// Delivered, Failed, Dead and Released count answers: acknowledged, to be retried, dead, and
	// released or quarantined without counting an attempt.
	Delivered, Failed, Dead, Released uint64
	// Parked counts deliveries that shared a call with an earlier one of their aggregate, and wait
	// because that one failed.
	Parked uint64
	// Classes counts answers by [Class]; index 0 has those without an error.
	Classes [delivery.ClassRelay + 1]uint64
	NotBegun
	// Started is the age of events when their first attempt began, and Acked their age when the
	// destination acknowledged them, retries included. The age counts from Event.CreatedAt, which
	// is when the writer's transaction began, to the relay's clock. Events with available_at and
	// replays are omitted where they are known.
	Started, Acked Histogram
	// Capacity is how many more deliveries fit into memory now, and Aggregates how many aggregates
	// have a delivery that is running or quarantined.
	Capacity, Aggregates int
	// Running is how many calls of the handler are running, and Queued how many deliveries wait for
	// one in memory.
	Running, Queued int
	// Stuck counts the calls that the relay gave up long after their timeout, and that still have not returned. Stuck
	// calls up to the concurrency leave all workers running; each further one costs the lane a worker, and the last one
	// stops the lane.
	Stuck int
	// State is the state of the breaker. Down reports that the lane delivers nothing because the destination is
	// down: the breaker is open or probing, or too many calls are stuck.
	State BreakerState
	Down  bool
	// Trouble describes the failures of the destination.
	Trouble Trouble
	// Throttled counts answers that asked for fewer deliveries, and Gap is the resulting gap
	// between the starts of two deliveries; 0 if none.
	Throttled uint64
	Gap       time.Duration
	// RateLimited reports that deliveries wait for the rate limit.
	RateLimited bool
	// Paused reports that the relay honours a pause: nothing is claimed for the destination.
	Paused bool
	// Pace is the average time of an event in a worker, for the slowest shard.
	Pace time.Duration
	// Report is the handler's report; nil if the handler does not report.
	Report *delivery.Report
}

// Trouble is what a relay knows of a destination that is not well. The zero value is one that has
// never failed.
type Trouble struct {
	// DownSince is when the breaker left the state closed; zero while it is closed. A relay that
	// has started during an outage has noticed it later than others.
	DownSince time.Time
	// NextProbe is when the next delivery may test whether the destination is up again; zero unless the breaker is open.
	// It lies in the past while no event is ready for the probe.
	NextProbe time.Time
	// ThrottledUntil is the end of the pause that the destination requested by its answer to the event ThrottledBy, such as
	// a 429 or 503 with Retry-After; zero without one, and after it.
	ThrottledUntil time.Time
	ThrottledBy    int64
	// Failures counts the calls that failed since the last delivered event, whether an attempt counted or not.
	// FailingSince is the time of the first one; zero without failures.
	Failures     uint64
	FailingSince time.Time
	// LastError is the text of the newest failure, which may have been overcome since, and
	// LastErrorAt is when it was noticed; zero if nothing has failed yet.
	LastError   string
	LastErrorAt time.Time
}

// ListenerStats are the figures of the connection that listens.
type ListenerStats struct {
	// Listening reports that a connection listens, and that no evidence shows lost notifications.
	Listening bool
	// Proven is when the last canary arrived; zero before the first.
	Proven time.Time
	// RoundTrip is the time from sending to receiving that canary.
	RoundTrip time.Duration
	// Sent counts canaries, Overdue the canaries that did not arrive in time, and Unsent the canaries that could not
	// be sent.
	Sent, Overdue, Unsent uint64
	// Lost counts connections that were lost or closed as dead.
	Lost uint64
	// Trouble is the reason why no notifications arrive, nil while they arrive.
	Trouble error
}
