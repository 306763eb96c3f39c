package queue

import (
	"context"
	"fmt"
	"slices"
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
	// SourceDue claims stored deliveries that are due.
	SourceDue
)

// Query requests work from a [Claimer].
type Query struct {
	Source Source
	// IDs are the events wanted. SourceIDs only.
	IDs []int64
	// The sweep takes ids above After, up to Upto. SourceSweep only.
	After, Upto int64
	// Limit bounds the number of events. SourceSweep only.
	Limit int
	// Bytes bounds the size of the rows; one event is always taken.
	Bytes int
	// Skip lists event types to skip. SourceSweep only.
	Skip []string
	// Reach requests the highest id of a fresh event. SourceSweep only.
	Reach bool
	// Doubt requests the open transactions, and the last id of the sequence. SourceSweep only.
	Doubt bool
	// Wanted is how many deliveries each destination can take. The empty name stands for events
	// whose destination is not decided yet. SourceDue only.
	Wanted map[string]int
	// Since is when the first of them was due, in microseconds since 1970, by destination; 0 for the
	// very first one. SourceDue only.
	Since map[string]int64

	lane   dispatch.QueueLane // the lane whose own sweep this is; nil for the common sweep
	passes bool               // this common sweep skips some lanes
	step   bool               // Upto is not the end: another query continues behind it
	asked  time.Time          // time of the query
}

// String describes the query, for tests and logs.
func (q Query) String() string {
	own := ""
	if q.lane != nil {
		own = " for " + q.lane.Destination().Name
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

// most is how many events the query returns at most.
func (q *Query) most() int {
	switch q.Source {
	case SourceIDs:
		return len(q.IDs)
	case SourceDue:
		n := 0
		for _, room := range q.Wanted {
			n += room
		}
		return n
	default:
		return q.Limit
	}
}

// atMost returns the query for n events at most.
func (q Query) atMost(n int) Query {
	q.IDs, q.Limit = q.IDs[:min(n, len(q.IDs))], n
	return q
}

// Work is a claimed event, or a claimed delivery of one.
type Work struct {
	// Event is the event; its Attempt and Destination are not set.
	Event delivery.Event
	// Fresh distinguishes a row of outbox_events from one of outbox_deliveries.
	Fresh bool
	// Destination is empty if the routes have not decided yet.
	Destination string
	// Failures counts the failed attempts so far.
	Failures int
	// Delay is how long the event must still wait. Fresh events only.
	Delay time.Duration
	// Ago is how long ago an event became available that was delayed; 0 for others.
	Ago time.Duration
	// Due is when a stored delivery was due, in microseconds since 1970.
	Due int64
	// Refused is why the event must not be delivered: it is too large, and was not read. It is nil
	// for nearly all.
	Refused error
	// Missing marks a delivery whose event is not in outbox_events, for the moment or for good.
	Missing bool
}

// expires returns when the event is too old for a lane. What a person asks for again does not expire.
func (w *Work) expires(l dispatch.QueueLane) time.Time {
	switch {
	case w.Event.Replay > 0:
		return time.Time{}
	case w.Ago > 0:
		return l.Destination().Expires(w.Event.CreatedAt, time.Now().Add(-w.Ago))
	}
	return l.Destination().Expires(w.Event.CreatedAt, time.Time{})
}

// Claimed is the answer to a [Query]. Its rows stay locked until Settle.
type Claimed struct {
	Work []Work
	// Cut reports that there were rows beyond Query.Bytes. They also stay locked until Settle, and
	// are free after it.
	Cut bool
	// Bytes is the size of the rows in Work.
	Bytes int
	// Snapshot was taken before the rows were read. SourceSweep only.
	Snapshot
	// Reach is the highest id of a fresh event just before the rows were read, if requested;
	// math.MinInt64 if there was none. If Work has fewer events than the limit, the claim has read
	// everything up to Reach.
	Reach int64
	// Open are the transactions that were open at the snapshot, and LastID is the id that the
	// sequence gave out last, nil if it is unknown; both only if requested.
	Open   []uint64
	LastID *int64
	// NextDue is the time until the next delivery is due; negative if there is none. SourceDue
	// only.
	NextDue time.Duration
}

// Snapshot tells which transactions had ended when a claim began: all below Xmin, and none from
// Xmax on.
type Snapshot struct{ Xmin, Xmax uint64 }

// Claimer claims work, one claim at a time, and settles it. One goroutine uses it. It reconnects by
// itself: after an error of either method, nothing is locked any more, and nothing of a settlement
// was written.
type Claimer interface {
	Claim(ctx context.Context, q Query) (Claimed, error)
	Settle(ctx context.Context, s *Settlement) error
}

// Settlement is the outcome of a claim. Rows that it does not mention are unlocked unchanged.
type Settlement struct {
	// Done are fresh events that every destination has acknowledged.
	Done []int64
	// Buried are fresh events that are finished, but left dead letters.
	Buried []int64
	// Deferred are fresh events with deliveries left.
	Deferred []int64
	// Put are the remaining deliveries and the dead ones; they replace their rows.
	Put []Entry
	// Remove are the finished deliveries, and those that Put has split up.
	Remove []Ref
	// Acknowledged are those of Remove that a person has replayed and the destination has acknowledged.
	Acknowledged []Ref
}

// Empty reports whether there is nothing to write.
func (s *Settlement) Empty() bool {
	return len(s.Done)+len(s.Buried)+len(s.Deferred)+len(s.Put)+len(s.Remove) == 0
}

// add adds the rest of a work that at least one lane has started.
func (s *Settlement) add(w *Work, r *remainder) {
	first := len(s.Put)
	s.Put = append(s.Put, r.put...)
	for _, l := range r.leased {
		if !l.over {
			s.Put = append(s.Put, l.entry)
		}
	}
	for i := range r.back {
		s.Put = append(s.Put, r.back[i].entry)
	}
	open := false
	for i := first; i < len(s.Put); i++ {
		open = open || s.Put[i].State != EntryDead
	}
	rest := len(s.Put) - first
	switch {
	case !w.Fresh && w.Destination != "" && rest > 0: // Put replaces the row
	case !w.Fresh:
		s.Remove = append(s.Remove, Ref{w.Event.ID, w.Destination})
	case open:
		s.Deferred = append(s.Deferred, w.Event.ID)
	case rest > 0:
		s.Buried = append(s.Buried, w.Event.ID)
	default:
		s.Done = append(s.Done, w.Event.ID)
	}
}

// finished returns the events of which a delivery has ended, in order.
func (s *Settlement) finished() []int64 {
	var ids []int64
	for _, r := range s.Remove {
		ids = append(ids, r.EventID)
	}
	fresh := make(map[int64]bool, len(s.Buried))
	for _, id := range s.Buried {
		fresh[id] = true
	}
	for _, e := range s.Put {
		if e.State == EntryDead && !fresh[e.EventID] {
			ids = append(ids, e.EventID)
		}
	}
	slices.Sort(ids)
	return ids
}

// Ref names a row of outbox_deliveries.
type Ref struct {
	EventID     int64
	Destination string
}

// EntryState is the state of a row of outbox_deliveries.
type EntryState string

// The states of a queue, as stored in the column.
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
	// Delay is the time from now until the delivery is due. State retry only.
	Delay time.Duration
	// Token is the token of the lease. State running only. For LeaseKeeper.Finish it is the
	// token that the row must still have.
	Token int64
	// Class and Err describe the last failure; both are empty if there was none.
	Class string
	Err   string
}

// LeaseKeeper settles deliveries that outlived the transaction of their claim.
type LeaseKeeper interface {
	// Finish writes the outcome of leased deliveries whose lease still holds: rows in done are
	// deleted, those in put replaced. It returns how many were fenced off because another relay has
	// taken over their lease.
	Finish(ctx context.Context, done []Entry, put []Entry) (fenced int, err error)
	// Renew extends the given leases.
	Renew(ctx context.Context, tokens []int64) error
}

// Housekeeper maintains the rows that no claim finds.
type Housekeeper interface {
	// TakeOver makes due again the deliveries leased by dead relays, and returns how many there
	// were. It does the same for leases of this relay that are not live according to mine: a crash
	// of the database has undone the commit that ended them.
	TakeOver(ctx context.Context, mine func() Tokens) (int, error)
	// Reroute makes due again unrouted events whose type matches, for a bounded time. It returns how
	// many there were, and whether there may be more.
	Reroute(ctx context.Context, match func(eventType string) bool) (n int, more bool, err error)
}

// Companions lists the sessions that claim from the tables of the database, those of this relay among
// them, by process id. The rows that one had locked are free when it is not listed any more.
type Companions interface {
	Claimers(ctx context.Context) (pids []int32, err error)
}

// Tokens are the tokens of a relay's leases at one moment.
type Tokens struct {
	// Live are the leases that exist, or may yet be written or settled.
	Live []int64
	// Last is the greatest token that was given to any lease so far.
	Last int64
}
