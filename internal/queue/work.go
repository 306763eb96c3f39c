package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
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
	// Row is the delivery. Of an event that is fresh it has the event alone.
	deliveries.Row

	// Fresh distinguishes a row of outbox_events from one of outbox_deliveries.
	Fresh bool
}

// expires returns when the event is too old for a lane. What a person asks for again does not expire.
func (w *Work) expires(l dispatch.QueueLane) time.Time {
	if w.Event.Replay > 0 {
		return time.Time{}
	}
	return l.Destination().Expires(w.Event.CreatedAt, w.Available())
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
	Put []deliveries.Entry
	// Remove are the finished deliveries, and those that Put has split up.
	Remove []deliveries.Ref
	// Acknowledged are those of Remove that a person has replayed and the destination has acknowledged.
	Acknowledged []deliveries.Ref
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
		open = open || s.Put[i].State != deliveries.Dead
	}
	rest := len(s.Put) - first
	switch {
	case !w.Fresh && w.Destination != "" && rest > 0: // Put replaces the row
	case !w.Fresh:
		s.Remove = append(s.Remove, deliveries.Ref{EventID: w.Event.ID, Destination: w.Destination})
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
		if e.State == deliveries.Dead && !fresh[e.EventID] {
			ids = append(ids, e.EventID)
		}
	}
	slices.Sort(ids)
	return ids
}

// LeaseKeeper settles deliveries that outlived the transaction of their claim.
type LeaseKeeper interface {
	// Finish writes the outcome of leased deliveries whose lease still holds: rows in done are
	// deleted, those in put replaced. It returns how many were fenced off because another relay has
	// taken over their lease.
	Finish(ctx context.Context, done []deliveries.Entry, put []deliveries.Entry) (fenced int, err error)
	// Renew extends the given leases.
	Renew(ctx context.Context, tokens []int64) error
}

// Housekeeper maintains the rows that no claim finds.
type Housekeeper interface {
	// TakeOver makes due again the deliveries leased by dead relays, and returns how many there
	// were. It does the same for leases of this relay that are not live according to mine: a crash
	// of the database has undone the commit that ended them.
	TakeOver(ctx context.Context, mine func() deliveries.Tokens) (int, error)
	// Reroute makes due again unrouted events whose type matches, for a bounded time. It returns how
	// many there were, and whether there may be more.
	Reroute(ctx context.Context, match func(eventType string) bool) (n int, more bool, err error)
}

// Companions lists the sessions that claim from the tables of the database, those of this relay among
// them, by process id. The rows that one had locked are free when it is not listed any more.
type Companions interface {
	Claimers(ctx context.Context) (pids []int32, err error)
}
