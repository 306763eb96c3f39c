package observe

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// The modes of a table, as Stats.Mode and Backlog.Mode have them.
const (
	ModeQueue  = "queue"
	ModeStream = "stream"
)

// Stats are the figures of a relay. Counters begin with zero at its start
// and only grow.
type Stats struct {
	// Claims counts the claims that found something, and Claimed what they found.
	Claims, Claimed uint64
	// Fenced counts answers that were refused because their lease was taken over,
	// lost in a crash of the database, or settled just before a connection was lost.
	Fenced uint64
	// ByID, Sweeps and Due count the questions for work, whether they found something or
	// not: for ids that the bell named, for fresh events in order, and for deliveries that
	// had to wait.
	ByID, Sweeps, Due Asked
	// Leases are those of deliveries that outlived their claim.
	Leases LeaseStats
	// Bell is how awake the relay is: "asleep" (writers ring), "awake" (it keeps
	// them silent and sweeps), "ringing" or "drowsy" (about to fall asleep).
	Bell string
	// DatabaseDown says that the database does not answer.
	DatabaseDown bool
	// Listener is the connection that listens; nil where the relay only polls, or
	// if somebody else than a relay asks.
	Listener *ListenerStats
	// Connections are those to the database, by role; nil if somebody else than a
	// relay asks.
	Connections []ConnectionStats
	// Mode is ModeStream where the relay reads a stream, ModeQueue where it claims, and empty
	// before it knows.
	Mode string
	// Positions are the units of a stream that this relay owns, by destination; nil in
	// a queue.
	Positions []PositionStats
	// Destinations are the lanes, in the order in which they were added.
	Destinations []DestinationStats
}

// PositionStats are the figures of a unit of a stream that this relay owns.
type PositionStats struct {
	// Destination is the unit's destination, empty for the router, which looks for event
	// types without a route. Part is 0 but where a destination is read in parts.
	Destination string
	Part        int
	// Head is the highest id that was read, and Last the highest that was given out
	// when it was last asked for: everything in between has yet to be read. Unread is how
	// many ids that is, without those between two partitions, which no event can have.
	Head, Last, Unread int64
	// Open is how many events up to Head are not acknowledged or stored yet, and Gaps how
	// many ids up to Head belong to transactions that are open, as far as is known, in so many Ranges.
	Open, Gaps, Ranges int64
	// OldestGap is for how long the oldest of them has been known; 0 if there is none.
	OldestGap time.Duration
	// Blocked is how many aggregates wait for a stored delivery.
	Blocked int
	// Delivered counts what the destination has acknowledged since this relay owns the unit.
	Delivered uint64
	// Saved counts the writes of the position, and SavedAt is when the last one was.
	Saved   uint64
	SavedAt time.Time
}

// Lag is how many ids have yet to be dealt with. Ids of transactions that were rolled
// back count until they are known to be.
func (s PositionStats) Lag() int64 { return s.Unread + s.Open + s.Gaps }

// ConnectionStats are the connections to the database in one role.
type ConnectionStats struct {
	// Role is what follows notifyd/ in pg_stat_activity, or "pool".
	Role string
	// Open is how many there are, and Opened how many there have been.
	Open   int
	Opened uint64
}

// Asked counts questions for work.
type Asked struct{ Count, Failed uint64 }

// Plus returns the sum of both.
func (a Asked) Plus(b Asked) Asked { return Asked{a.Count + b.Count, a.Failed + b.Failed} }

// LeaseStats are the figures of leases.
type LeaseStats struct {
	// Held is how many this relay holds at the moment.
	Held int
	// Granted, Renewed and Lost count leases that were written, extended, and
	// given up because a handler ignored the end of its context.
	Granted, Renewed, Lost uint64
	// TakenOver counts the deliveries of relays that are gone, and those of its own
	// whose answers a crash of the database took back.
	TakenOver uint64
}

// DestinationStats are the figures of one destination.
type DestinationStats struct {
	Name string
	// Delivered, Failed, Dead and Released count answers: acknowledged, to be
	// tried again, given up, and given back or put aside without counting an attempt.
	Delivered, Failed, Dead, Released uint64
	// Parked counts deliveries that shared a call with an earlier one of their
	// aggregate, and wait because that failed.
	Parked uint64
	// Classes counts answers by [Class]; index 0 has those without an error.
	Classes [delivery.ClassOurs + 1]uint64
	// Refused, Withdrawn and Withheld count deliveries that were found and not
	// begun with: there was no room; they were taken back before their turn; or an
	// earlier event of their aggregate has to go first.
	Refused, Withdrawn, Withheld uint64
	// Begun is how old events were when their first attempt began, and Acked how
	// old they were when the destination acknowledged them, retries included. The
	// age counts from Event.CreatedAt, which is when the writer's transaction began, to
	// the relay's clock. Events with available_at and replays are left out where
	// they are known.
	Begun, Acked Histogram
	// Room is for how many more deliveries there is room at the moment, and
	// Aggregates how many aggregates have a delivery under way or put aside.
	Room, Aggregates int
	// Running is how many calls of the handler are under way, and Queued how many
	// deliveries wait for one in memory.
	Running, Queued int
	// Stuck is how many calls were given up because they had not returned long after their
	// timeout, and still have not. There may be as many as the concurrency beside those that are
	// under way; each further one leaves the lane with one worker less, and the last one stops it.
	Stuck int
	// State is what the breaker does, and Unavailable that it keeps the lane from the
	// destination because that is down: it is open or probing; or that so many calls are stuck.
	State       BreakerState
	Unavailable bool
	// Throttled counts answers that asked for fewer deliveries, and Gap is what the lane
	// puts between the beginnings of two because of them; 0 if nothing.
	Throttled uint64
	Gap       time.Duration
	// Paused says that somebody has called Pause: nothing is claimed for it.
	Paused bool
	// Pace is what an event takes a worker, on average.
	Pace time.Duration
	// Report is what the handler knows; nil if it does not tell.
	Report *delivery.Report
}

// ListenerStats are the figures of the connection that listens.
type ListenerStats struct {
	// Listening says that notifications are heard, as far as is known.
	Listening bool
	// Proven is when a notification of the relay's own was heard last; zero
	// before the first.
	Proven time.Time
	// RoundTrip is how long that one took, from being sent to being heard.
	RoundTrip time.Duration
	// Sent counts the notifications that were sent for proof, Unheard those that
	// were not heard in time, and Unsent those that could not be sent.
	Sent, Unheard, Unsent uint64
	// Lost counts the connections that were lost or given up.
	Lost uint64
	// Trouble is why notifications are not heard, or not known to be; nil while
	// they are.
	Trouble error
}
