package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

// Source says where a [Query] looks for work.
type Source uint8

const (
	// SourceIDs claims the fresh events with the given ids.
	SourceIDs Source = iota + 1
	// SourceSweep claims fresh events, the smallest ids first.
	SourceSweep
	// SourceDue claims deliveries that had to wait and are due now.
	SourceDue
)

// Query asks a [Session] for work.
type Query struct {
	Source Source
	// IDs are the events wanted. SourceIDs only.
	IDs []int64
	// After is the id behind which the sweep begins, Upto the last one that it
	// takes. SourceSweep only.
	After, Upto int64
	// Limit bounds the number of events. SourceSweep only.
	Limit int
	// Bytes bounds the sum of the payloads; one event is always taken.
	Bytes int
	// Skip lists event types to leave alone. SourceSweep only.
	Skip []string
	// Reach asks for the highest id of a fresh event. SourceSweep only.
	Reach bool
	// Wanted says how many deliveries each destination can take; the empty name
	// stands for events whose destination is not decided yet. SourceDue only.
	Wanted map[string]int

	lane   *dispatch.Lane // whose own sweep this is
	passes bool           // some lanes are left out of this common sweep
	asked  time.Time      // when the query was made
}

// String says what is asked for, for tests and logs.
func (q Query) String() string {
	own := ""
	if q.lane != nil {
		own = " for " + q.lane.Name()
	}
	switch q.Source {
	case SourceIDs:
		return fmt.Sprintf("ids %v", q.IDs)
	case SourceSweep:
		return fmt.Sprintf("sweep%s from %d to %d, %d but %v", own, q.After, q.Upto, q.Limit, q.Skip)
	case SourceDue:
		return fmt.Sprintf("due %v", q.Wanted)
	default:
		return "nothing"
	}
}

// Work is a claimed event, or a claimed delivery of one.
type Work struct {
	// Event is the event; its Attempt and Destination are not set.
	Event delivery.Event
	// Fresh tells a row of outbox_events from one of outbox_deliveries.
	Fresh bool
	// Destination is empty where routes have yet to decide.
	Destination string
	// Failures counts the failed attempts so far.
	Failures int
	// Delay is how long the event has to wait yet. Fresh events only.
	Delay time.Duration
	// Orphan marks a delivery whose event is no longer there.
	Orphan bool
}

// Claimed is the answer to a [Query]. Its rows stay locked until Settle.
type Claimed struct {
	Work []Work
	// Cut says that there were rows beyond the bytes asked for. They stay
	// locked until Settle as well, and are free after it.
	Cut bool
	// Bytes is the sum of the payloads.
	Bytes int
	// Snapshot was taken before the rows were read. SourceSweep only.
	Snapshot
	// Reach is the highest id of a fresh event when the rows were about to be read,
	// if that was asked for; math.MinInt64 if there was none. With less than was asked for in
	// Work, everything up to there has been looked at.
	Reach int64
	// NextDue is when the next delivery becomes due; negative if none is
	// known. SourceDue only.
	NextDue time.Duration
}

// Snapshot says which transactions had ended when a claim began: all below
// Xmin, and none from Xmax on.
type Snapshot struct{ Xmin, Xmax uint64 }

// Claimer claims work, one claim at a time, and settles it. It is used by one
// goroutine and reconnects by itself: an error of either method means that
// nothing is locked any more, and that nothing of a settlement was written.
type Claimer interface {
	Claim(ctx context.Context, q Query) (Claimed, error)
	Settle(ctx context.Context, s *Settlement) error
}

// Settlement is what became of a claim. Rows that it does not mention are
// unlocked as they were.
type Settlement struct {
	// Done are fresh events that every destination has acknowledged.
	Done []int64
	// Buried are fresh events that are done with, but left dead letters.
	Buried []int64
	// Deferred are fresh events of which something is left to do.
	Deferred []int64
	// Put are the deliveries left to do, or dead; they replace their row.
	Put []Entry
	// Remove are the deliveries that are done, or that Put has split up.
	Remove []Ref
}

// Empty reports whether there is nothing to write.
func (s *Settlement) Empty() bool {
	return len(s.Done)+len(s.Buried)+len(s.Deferred)+len(s.Put)+len(s.Remove) == 0
}

// Ref names a row of outbox_deliveries.
type Ref struct {
	EventID     int64
	Destination string
}

// EntryState is the state of a row of outbox_deliveries.
type EntryState string

// The states of a queue, as they stand in the column.
const (
	EntryRetry    EntryState = "retry"
	EntryRunning  EntryState = "running"
	EntryUnrouted EntryState = "unrouted"
	EntryDead     EntryState = "dead"
)

// Entry is a row of outbox_deliveries.
type Entry struct {
	Ref
	EventType string
	State     EntryState
	// Failures counts the failed attempts so far.
	Failures int
	// Delay is when the delivery is due, from now. State retry only.
	Delay time.Duration
	// Token is the token of the lease. State running only; with LeaseKeeper's
	// Finish it is the token that the row must still have.
	Token int64
	// Class and Err describe the last failure; both are empty if there was none.
	Class string
	Err   string
}

// LeaseKeeper settles deliveries that outlived the transaction of their claim.
type LeaseKeeper interface {
	// Finish writes what became of leased deliveries, where the lease still
	// holds: those in done are deleted, those in put replaced. It returns how
	// many were fenced off because another relay has their lease by now.
	Finish(ctx context.Context, done []Entry, put []Entry) (fenced int, err error)
	// Renew extends the given leases.
	Renew(ctx context.Context, tokens []int64) error
}

// Housekeeper looks after what no claim finds.
type Housekeeper interface {
	// TakeOver makes due again what leases of vanished relays hold, and
	// returns how many deliveries that were. What this relay's own leases hold is
	// due again where mine says that they have come to their end: a crash of the
	// database has taken back the commit that said so.
	TakeOver(ctx context.Context, mine func() Tokens) (int, error)
	// Reroute makes due again the unrouted events whose type matches, and
	// returns how many event types that were.
	Reroute(ctx context.Context, match func(eventType string) bool) (int, error)
}

// Tokens are those of a relay's leases at one moment.
type Tokens struct {
	// Live are the leases that exist, or may yet be written or settled.
	Live []int64
	// Last is the greatest token that was given to any lease so far.
	Last int64
}
