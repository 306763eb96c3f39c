package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/session"
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
	// Except lists events to skip. IDs does not contain them.
	Except []int64
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
	q.IDs = q.IDs[:min(n, len(q.IDs))]
	q.Limit = n
	return q
}

// skip makes the query skip events.
func (q *Query) skip(events []int64) {
	q.Except = events
	if len(events) == 0 {
		return // nearly always
	}

	slices.Sort(events)
	q.IDs = slices.DeleteFunc(q.IDs, func(id int64) bool {
		_, isSkipped := slices.BinarySearch(events, id)
		return isSkipped
	})
}

// Work is a claimed event or a claimed delivery.
type Work struct {
	// Row is the delivery. For a fresh event only its event is set.
	deliveries.Row

	// Fresh distinguishes a row of outbox_events from a row of outbox_deliveries.
	Fresh bool
}

// ref names the claimed row. A fresh event has no destination.
func (w *Work) ref() deliveries.Ref {
	return deliveries.Ref{EventID: w.Event.ID, Destination: w.Destination}
}

// expires returns when the event expires in a lane. Replayed events, and reports of dead letters, do not expire.
func (w *Work) expires(l dispatch.QueueLane) time.Time {
	if w.Lasts() {
		return time.Time{}
	}
	return l.Destination().Expires(w.Written, w.Available())
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
// an error of either method, nothing is locked. After an error of Settle nothing was written, or a part that it is safe
// to write again. It returns the rows that the database refuses alone, after it has written the others.
type Claimer interface {
	Claim(ctx context.Context, q Query) (Claimed, error)
	Settle(ctx context.Context, s *Settlement) (refused []Refused, err error)
}

// Refused is a claimed row whose settlement the database refuses. A fresh event has no destination.
type Refused = session.Refused[deliveries.Ref]

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

// owner returns a function that returns the claimed row to which a row of the settlement belongs: that of a fresh event,
// or of an event without a decided destination, or else the row itself.
func (s *Settlement) owner() func(deliveries.Ref) deliveries.Ref {
	whole := make(map[int64]bool)

	for _, id := range slices.Concat(s.Done, s.DeadLettered, s.Deferred) {
		whole[id] = true
	}

	for _, r := range s.Remove {
		if r.Destination == "" {
			whole[r.EventID] = true
		}
	}

	return func(r deliveries.Ref) deliveries.Ref {
		if whole[r.EventID] {
			return deliveries.Ref{EventID: r.EventID}
		}
		return r
	}
}

// rows returns the claimed rows that the settlement ends, in the order of ids.
func (s *Settlement) rows() []deliveries.Ref {
	var all []deliveries.Ref
	for _, id := range slices.Concat(s.Done, s.DeadLettered, s.Deferred) {
		all = append(all, deliveries.Ref{EventID: id})
	}

	owner := s.owner()
	for _, r := range s.Remove {
		all = append(all, owner(r))
	}
	for i := range s.Put {
		all = append(all, owner(s.Put[i].Ref))
	}
	slices.SortFunc(all, func(a, b deliveries.Ref) int {
		return cmp.Or(cmp.Compare(a.EventID, b.EventID), cmp.Compare(a.Destination, b.Destination))
	})
	return slices.Compact(all)
}

// of returns the part of the settlement for some of its rows.
func (s *Settlement) of(rows []deliveries.Ref) *Settlement {
	wanted := make(map[deliveries.Ref]bool, len(rows))
	for _, r := range rows {
		wanted[r] = true
	}

	owner := s.owner()
	events := func(ids []int64) (some []int64) {
		for _, id := range ids {
			if wanted[deliveries.Ref{EventID: id}] {
				some = append(some, id)
			}
		}
		return some
	}

	refs := func(all []deliveries.Ref) (some []deliveries.Ref) {
		for _, r := range all {
			if wanted[owner(r)] {
				some = append(some, r)
			}
		}
		return some
	}

	part := &Settlement{
		Done: events(s.Done), DeadLettered: events(s.DeadLettered), Deferred: events(s.Deferred),
		Remove: refs(s.Remove), Acknowledged: refs(s.Acknowledged),
	}
	for i := range s.Put {
		if wanted[owner(s.Put[i].Ref)] {
			part.Put = append(part.Put, s.Put[i])
		}
	}

	return part
}

// runs reports whether a delivery is still running: its result is not known.
func (s *Settlement) runs() bool {
	return slices.ContainsFunc(s.Put, func(e deliveries.Entry) bool { return e.State == deliveries.Running })
}

// lost returns the part that is written after the claim was lost.
func (s *Settlement) lost() *Settlement {
	rest := &Settlement{Done: s.Done}
	if len(s.Put) == 0 { // an entry of Remove may belong to a delivery that Put has split up: write both or neither
		rest.Remove = s.Remove
		rest.Acknowledged = s.Acknowledged
	}
	return rest
}

// join adds another settlement, of other rows.
func (s *Settlement) join(o *Settlement) {
	s.Done = append(s.Done, o.Done...)
	s.DeadLettered = append(s.DeadLettered, o.DeadLettered...)
	s.Deferred = append(s.Deferred, o.Deferred...)
	s.Put = append(s.Put, o.Put...)
	s.Remove = append(s.Remove, o.Remove...)
	s.Acknowledged = append(s.Acknowledged, o.Acknowledged...)
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
	// ended them. With an error it may have taken over some.
	TakeOver(ctx context.Context, mine func() deliveries.Tokens) (int, error)
	// Unpark makes some parked deliveries due, which a restore has brought from a stream, and returns their number.
	Unpark(ctx context.Context) (int, error)
	// Reroute makes unrouted events due again whose type matches, for a bounded time. It returns their number, and
	// whether more may exist.
	Reroute(ctx context.Context, match func(eventType string) bool) (n int, more bool, err error)
}

// Companions lists the sessions that claim from the tables, including those of this relay, by process id. A session that
// is not listed holds no row locks.
type Companions interface {
	Claimers(ctx context.Context) (pids []int32, err error)
}
