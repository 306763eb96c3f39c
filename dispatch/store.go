package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Source says where a [Query] looks for work.
type Source uint8

const (
	// SourceIDs claims the fresh events with the given ids.
	SourceIDs Source = iota + 1
	// SourceSweep claims fresh events in the order of their ids.
	SourceSweep
	// SourceDue claims deliveries that had to wait and are due now.
	SourceDue
	// SourceLines claims the first stored deliveries of aggregates.
	SourceLines
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
	// Gaps are ranges of ids in which fresh events may have come up that are to
	// be handed out before what is claimed: what is seen there with a later
	// snapshot is reported as Late. SourceIDs and SourceSweep.
	Gaps []Range
	// Snap asks for a snapshot with SourceIDs, as SourceSweep always has one.
	Snap bool
	// Look bounds how many late events are reported, the smallest ids first.
	Look int
	// Slots are the slots whose aggregates this relay delivers for; nil stands
	// for all. Events without an aggregate are everybody's.
	Slots []int32
	// Lines are whose rows to claim, PerLine how many of each at most.
	// SourceLines only.
	Lines   []LineRef
	PerLine int
	// Blocking are the destinations at which a dead letter holds back what
	// comes after it. SourceDue and SourceLines.
	Blocking []string

	lane    *lane           // whose own sweep this is
	lagged  []*lane         // lanes that lagged behind when the query was made
	asked   time.Time       // when the query was made
	naming  uint64          // number of a claim by id
	checked int64           // Gaps has what may have come up to here
	bound   int64           // of a common sweep: everything up to here has been met
	knows   bool            // and that is all there is
	bounds  map[*lane]int64 // of due deliveries: see bounds; nil where all has been met
	lines   []*line         // of Lines
	lanes   []*lane         // of Lines
}

// String tells what is asked for, for tests and logs.
func (q Query) String() string {
	own := ""
	if q.lane != nil {
		own = " for " + q.lane.name
	}
	switch q.Source {
	case SourceIDs:
		return fmt.Sprintf("ids %v, gaps %v", q.IDs, q.Gaps)
	case SourceSweep:
		return fmt.Sprintf("sweep%s from %d to %d, %d but %v, gaps %v", own, q.After, q.Upto, q.Limit, q.Skip, q.Gaps)
	case SourceDue:
		return fmt.Sprintf("due %v", q.Wanted)
	case SourceLines:
		return fmt.Sprintf("lines %v, %d of each", q.Lines, q.PerLine)
	default:
		return "nothing"
	}
}

// sees reports whether the claim shows all that may come before an event at the lane,
// one that is fresh, or due and not begun with. A sweep leaves out what lanes that lag
// are not to get yet, or what is not for the one lane it is made for, and looks for late
// events likewise. Due events are claimed whether or not what comes before them has been
// met by now.
func (q *Query) sees(l *lane, id int64) bool {
	if q.bounds != nil && id > q.bounds[l] {
		return false
	}
	if q.lane != nil {
		return q.lane == l
	}
	return !slices.Contains(q.lagged, l)
}

// LineRef names the deliveries of one aggregate at one destination.
type LineRef struct {
	Destination string
	Key         string
	// Bound is the highest id that may be claimed.
	Bound int64
}

// LineState is what was found at the head of a line.
type LineState uint8

// What may be found.
const (
	// LineEmpty has no row.
	LineEmpty LineState = iota
	// LineClaimed has had rows claimed.
	LineClaimed
	// LineWaiting begins with a row that is to be tried again later; that is not
	// locked, so that whoever comes for it when it is due can have it.
	LineWaiting
	// LineBlocked begins with a dead letter.
	LineBlocked
	// LineBeyond begins with a row above the bound.
	LineBeyond
	// LineLocked begins with a row that is locked at the moment, or under a lease.
	LineLocked
)

// Work is a claimed event, or a claimed delivery of one.
type Work struct {
	// Event is the event; its Attempt and Destination are not set.
	Event Event
	// Fresh tells a row of outbox_events from one of outbox_deliveries.
	Fresh bool
	// Destination is empty where routes have yet to decide.
	Destination string
	// Failures counts the failed attempts so far.
	Failures int
	// Begun says that a handler has had the delivery, and it had an error: an attempt,
	// or an outage. SourceDue only.
	Begun bool
	// Delay is how long the event has to wait yet. Fresh events only.
	Delay time.Duration
	// Orphan marks a delivery whose event is no longer there.
	Orphan bool
	// Withheld marks an event that is given back, because an earlier one of its
	// aggregate has come up.
	Withheld bool
}

// Claimed is the answer to a [Query]. Its rows stay locked until Settle.
type Claimed struct {
	Work []Work
	// Cut says that there were rows beyond the bytes asked for. They stay
	// locked until Settle as well, and are free after it.
	Cut bool
	// Bytes is the sum of the payloads.
	Bytes int
	// Snapshot was taken before the rows were read. SourceSweep, and SourceIDs
	// with Snap.
	Snapshot
	// Late are the fresh events in the gaps, in the order of ids, whether they
	// are locked or not. LateCut says that there were more.
	Late    []Late
	LateCut bool
	// Reach is the highest id of a fresh event when the rows were about to be read,
	// if that was asked for; math.MinInt64 if there was none. With less than was asked for in
	// Work, everything up to there has been looked at.
	Reach int64
	// Heads are what was found of each of the lines, and Firsts the ids of their
	// first rows. SourceLines only.
	Heads  []LineState
	Firsts []int64
	// NextDue is when the next delivery becomes due; negative if none is
	// known. SourceDue only.
	NextDue time.Duration
}

// Session claims work, one claim at a time, and settles it. It is used by one
// goroutine and reconnects by itself: an error of either method means that
// nothing is locked any more, and that nothing of a settlement was written.
type Session interface {
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
	// Turn is called before COMMIT, once, and returns when this may be settled; nil
	// where nobody has to come first. Nothing that was locked by then may be wanted by
	// those who do.
	Turn func()
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

// The states, as they stand in the column.
const (
	EntryRetry    EntryState = "retry"
	EntryRunning  EntryState = "running"
	EntryUnrouted EntryState = "unrouted"
	EntryDead     EntryState = "dead"
	EntryParked   EntryState = "parked"
)

// Entry is a row of outbox_deliveries.
type Entry struct {
	Ref
	EventType string
	// Key is what order is kept for; empty where it is not.
	Key   string
	State EntryState
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
	// many were fenced off because their lease is somebody else's by now.
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

// LineReader tells which aggregates have stored deliveries.
type LineReader interface {
	// Stored calls f for the first row of each destination and aggregate. Dead
	// letters do not count, but at the destinations in blocking.
	// Aggregates of other slots than the given are left out; nil stands for all.
	Stored(ctx context.Context, blocking []string, slots []int32, f func(StoredLine)) error
}

// StoredLine is the first stored delivery of an aggregate at a destination.
type StoredLine struct {
	Ref
	Key   string
	State EntryState
}

// Bell quiets the trigger while the relay sweeps.
type Bell interface {
	// Silence asks for silence and returns at once; it may take a while to be
	// granted, or never be, which costs writers speed and nothing else.
	Silence()
	// Ring ends the silence, and returns a transaction id such that whoever
	// wrote silently has a smaller one.
	Ring(ctx context.Context) (xid uint64, err error)
}

// QueueWatcher is implemented by a [Bell] that can tell how many writers are
// waiting for one another in order to ring.
type QueueWatcher interface {
	Queued(ctx context.Context) (writers int, err error)
}
