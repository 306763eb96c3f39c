package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
)

// Source tells where a [Query] looks for work.
type Source uint8

const (
	// SourceIDs claims the fresh events with the given ids.
	SourceIDs Source = iota + 1
	// SourceSweep claims fresh events in id order.
	SourceSweep
	// SourceDue claims stored deliveries that are due.
	SourceDue
)

// Query requests work from a [Claimer].
type Query struct {
	Source Source
	// IDs are the events to claim. SourceIDs only.
	IDs []int64
	// The sweep claims ids above After, up to Upto. SourceSweep only.
	After, Upto int64
	// Limit bounds the number of events. SourceSweep only.
	Limit int
	// Bytes bounds the size of the rows; the first event is always taken.
	Bytes int
	// Skip lists event types to skip. SourceSweep only.
	Skip []string
	// Highest requests the highest id of a fresh event. SourceSweep only.
	Highest bool
	// OpenWriters requests the open transactions, and the last id of the sequence. SourceSweep only.
	OpenWriters bool
	// Wanted is how many deliveries each destination can take. The empty name stands for events without a decided
	// destination. SourceDue only.
	Wanted map[string]int
	// Since is when the first wanted delivery was due, in microseconds since 1970, by destination; 0 means no bound.
	// SourceDue only.
	Since map[string]int64

	lane   dispatch.QueueLane // the lane of this sweep; nil for the common sweep
	passes bool               // this common sweep skips some lanes
	step   bool               // Upto is not the end: another query continues after it
	asked  time.Time          // when the query was made
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

// most returns the maximum number of events in the result.
func (q *Query) most() int {
	switch q.Source {
	case SourceIDs:
		return len(q.IDs)
	case SourceDue:
		n := 0
		for _, capacity := range q.Wanted {
			n += capacity
		}
		return n
	default:
		return q.Limit
	}
}

// atMost returns the query bounded to n events.
func (q Query) atMost(n int) Query {
	q.IDs, q.Limit = q.IDs[:min(n, len(q.IDs))], n
	return q
}

// Work is a claimed event or a claimed delivery.
type Work struct {
	// Row is the delivery. For a fresh event only its event is set.
	deliveries.Row

	// Fresh distinguishes a row of outbox_events from a row of outbox_deliveries.
	Fresh bool
}

// expires returns when the event expires in a lane. Replayed events, and reports of dead letters, do not expire.
func (w *Work) expires(l dispatch.QueueLane) time.Time {
	if w.Lasts() {
		return time.Time{}
	}
	return l.Destination().Expires(w.Event.CreatedAt, w.Available())
}

// Claimed is the result of a [Query]. Its rows stay locked until Settle.
type Claimed struct {
	Work []Work
	// Cut reports rows beyond Query.Bytes. They also stay locked until Settle, and are free after it.
	Cut bool
	// Bytes is the size of the rows in Work.
	Bytes int
	// Snapshot was taken before the rows were read. SourceSweep only.
	Snapshot
	// Highest is the highest id of a fresh event just before the rows were read, if requested; math.MinInt64 without
	// such an event. If Work has fewer events than the limit, the claim has read everything up to Highest.
	Highest int64
	// Open lists the transactions that were open in the snapshot. LastID is the last id from the sequence, nil if
	// unknown. Both are set only if requested.
	Open   []uint64
	LastID *int64
	// NextDue is the time until the next delivery is due; negative without one. SourceDue only.
	NextDue time.Duration
}

// Snapshot tells which transactions had ended when a claim began: all below Xmin, and none from Xmax up.
type Snapshot struct{ Xmin, Xmax uint64 }

// Claimer claims work, one claim at a time, and settles it. One goroutine uses it. It reconnects automatically: after
// an error of either method, nothing is locked, and nothing of a settlement was written.
type Claimer interface {
	Claim(ctx context.Context, q Query) (Claimed, error)
	Settle(ctx context.Context, s *Settlement) error
}

// Settlement is the outcome of a claim. Rows outside it are unlocked unchanged.
type Settlement struct {
	// Done has fresh events that every destination acknowledged.
	Done []int64
	// DeadLettered has fresh events that are finished, with dead letters.
	DeadLettered []int64
	// Deferred has fresh events with unfinished deliveries.
	Deferred []int64
	// Put has the unfinished and the dead deliveries; they replace their rows.
	Put []deliveries.Entry
	// Remove has the finished deliveries, and those that Put has split up.
	Remove []deliveries.Ref
	// Acknowledged has the entries of Remove that a person replayed and the destination acknowledged.
	Acknowledged []deliveries.Ref
}

// Empty reports whether there is nothing to write.
func (s *Settlement) Empty() bool {
	return len(s.Done)+len(s.DeadLettered)+len(s.Deferred)+len(s.Put)+len(s.Remove) == 0
}

// add adds the unfinished rest of a work that at least one lane has begun.
func (s *Settlement) add(w *Work, r *unfinished) {
	first := len(s.Put)
	s.Put = append(s.Put, r.put...)
	for _, l := range r.leased {
		if !l.answered {
			s.Put = append(s.Put, l.entry)
		}
	}
	for i := range r.returned {
		s.Put = append(s.Put, r.returned[i].entry)
	}
	open := false
	for i := first; i < len(s.Put); i++ {
		open = open || s.Put[i].State != deliveries.Dead || s.Put[i].ReportTo != ""
	}
	rest := len(s.Put) - first
	switch {
	case !w.Fresh && w.Destination != "" && rest > 0: // Put replaces the row
	case !w.Fresh:
		s.Remove = append(s.Remove, deliveries.Ref{EventID: w.Event.ID, Destination: w.Destination})
	case open:
		s.Deferred = append(s.Deferred, w.Event.ID)
	case rest > 0:
		s.DeadLettered = append(s.DeadLettered, w.Event.ID)
	default:
		s.Done = append(s.Done, w.Event.ID)
	}
}

// finished returns the events with a finished delivery, in order.
func (s *Settlement) finished() []int64 {
	var ids []int64
	for _, r := range s.Remove {
		ids = append(ids, r.EventID)
	}
	fresh := make(map[int64]bool, len(s.DeadLettered))
	for _, id := range s.DeadLettered {
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

// LeaseStore writes the leases and outcomes of deliveries that outlived the transaction of their claim.
type LeaseStore interface {
	// Finish writes the outcome of leased deliveries whose leases are still valid: it deletes rows in done, and
	// replaces rows in put. It returns how many were fenced off because another relay took over their leases.
	Finish(ctx context.Context, done []deliveries.Entry, put []deliveries.Entry) (fenced int, err error)
	// Renew extends the given leases.
	Renew(ctx context.Context, tokens []int64) error
}

// Housekeeper maintains the rows that no claim finds.
type Housekeeper interface {
	// TakeOver makes deliveries due again that dead relays had leased, and returns their number. It does the same for
	// leases of this relay that are not live according to mine: a crash of the database has undone the commit that
	// ended them.
	TakeOver(ctx context.Context, mine func() deliveries.Tokens) (int, error)
	// Reroute makes unrouted events due again whose type matches, for a bounded time. It returns their number, and
	// whether more may exist.
	Reroute(ctx context.Context, match func(eventType string) bool) (n int, more bool, err error)
}

// Companions lists the sessions that claim from the tables of the database by process id, including this relay's. The
// rows that a session had locked are free when the session is no longer listed.
type Companions interface {
	Claimers(ctx context.Context) (pids []int32, err error)
}
