package order

import "time"

// Turn tells when a delivery that joins may begin.
type Turn uint8

const (
	// Begins means that the owner queues the delivery for its workers.
	Begins Turn = iota + 1
	// Waits means that the delivery waits behind another one of its aggregate.
	Waits
	// Parked means that the delivery must wait as a row, outside the queues.
	Parked
	// Returned means that the owner must return the delivery, see Queues.Stopped. It is not in the queues.
	Returned
)

// Result tells how a delivery ended.
type Result uint8

const (
	// Done means that the later deliveries of the aggregate continue.
	Done Result = iota + 1
	// Failed means that the aggregate becomes blocked.
	Failed
	// Undone means that the delivery is returned as if it had never been tried.
	Undone
)

// Item is a delivery with its place in its queue. The owner allocates many items at once, so that queues allocate
// nothing per delivery. An item is ready to join if only Value is set. The owner's lock guards it, except Value.
type Item[T any] struct {
	// Value belongs to the owner.
	Value T

	queue   *Queue[T] // nil if order does not matter
	next    *Item[T]  // of the same aggregate
	started bool      // taken by a worker
	queued  bool      // is or was in the owner's queue
	cut     bool      // ended with another delivery, after started
}

// Queue identifies the aggregate of a delivery in memory; nil if order does not matter.
func (i *Item[T]) Queue() *Queue[T] { return i.queue }

// First reports whether no delivery of the aggregate comes before this one.
func (i *Item[T]) First() bool { return i.queue == nil || i.queue.first == i }

// Cut reports whether the delivery ended together with another one after a worker took it.
func (i *Item[T]) Cut() bool { return i.cut }

// Next returns the delivery that waits behind this one, nil if a worker has taken it or nothing waits.
func (i *Item[T]) Next() *Item[T] {
	if i.next == nil || i.next.started {
		return nil
	}
	return i.next
}

// Queue holds the deliveries of one aggregate that are in flight or wait in memory, in order.
type Queue[T any] struct {
	key         Key
	first, last *Item[T]
	n           int

	left     uint64    // deliveries that have left
	markedAt time.Time // when the speed was last measured; zero for a queue that was never long
	marked   uint64    // left at that time
}

// Options configures queues and never changes.
type Options struct {
	// Total means that all deliveries belong to one aggregate.
	Total bool
	// Batches means that deliveries of one aggregate may share a call. Such deliveries in flight end with the call,
	// even if the first of them failed.
	Batches bool
	// Room is how many deliveries may wait in memory behind others of their aggregate; 0 for no bound. An aggregate
	// whose deliveries take long may use a share of the rest, at most longQueue. Its further ones are
	// parked, so that one aggregate does not take the memory of all. No bound applies in a total order, whose only
	// aggregate would fill the table with rows.
	Room int
}

const (
	// longQueue and shortQueue bound the share of an aggregate that is slow.
	longQueue, shortQueue = 256, 16
	// knownAfter is how long it takes to know the speed of an aggregate, and knownFor how long that counts. An
	// aggregate of unknown speed counts as slow only while half of the room is used.
	knownAfter, knownFor = 10 * time.Millisecond, time.Second
	// longestQueue is how long a delivery may expect to wait in memory for its aggregate.
	longestQueue = time.Second
)

// Entry describes a delivery that joins.
type Entry struct {
	// Key points to zero if order does not matter. A pointer, because a copied key is slow to hash.
	Key *Key
	// Leads means that no stored delivery of the aggregate comes before this one: it begins although the aggregate is
	// blocked. Since is Queues.Failures before the read that proved this: a later failure of the aggregate revokes
	// Leads.
	Leads bool
	Since uint64
	// Stored means that the delivery has a row.
	Stored bool
	// Now is the time of the join, and Slow means that each delivery takes long: both bound the deliveries of the
	// aggregate in memory, see Options.Room. The bound does not apply to a delivery that leads.
	Now  time.Time
	Slow bool
}

// Queues keeps the deliveries of each aggregate in order. The owner's lock guards it.
type Queues[T any] struct {
	options   Options
	all       map[Key]*Queue[T]
	blocked   keySet
	spare     *Queue[T] // for reuse
	waiting   int
	returned  uint64
	stopped   bool
	failures  uint64 // number of failures, plus 1
	withdrawn bool
}

// New returns queues without deliveries and blocked aggregates.
func New[T any](o Options) *Queues[T] {
	return &Queues[T]{options: o, all: make(map[Key]*Queue[T]), failures: 1}
}

// Len returns the number of aggregates with deliveries in memory.
func (q *Queues[T]) Len() int { return len(q.all) }

// Waiting returns the number of deliveries that wait behind others of their aggregate, outside the owner's queue and
// its workers.
func (q *Queues[T]) Waiting() int { return q.waiting }

// Busy reports whether a delivery of the aggregate is in memory.
func (q *Queues[T]) Busy(k Key) bool {
	_, is := q.all[k]
	return is
}

// Blocked returns the number of blocked aggregates.
func (q *Queues[T]) Blocked() int { return q.blocked.len() }

// IsBlocked reports whether the aggregate is blocked.
func (q *Queues[T]) IsBlocked(k Key) bool { return q.blocked.has(k) }

// Block blocks an aggregate that has stored rows, without a failure.
func (q *Queues[T]) Block(k Key) { q.blocked.add(k) }

// Fail blocks an aggregate as a failed delivery does.
func (q *Queues[T]) Fail(k Key) {
	q.failures++
	q.blocked.setFailure(k, q.failures)
}

// Unblock ends the block of an aggregate, if there is one.
func (q *Queues[T]) Unblock(k Key) { q.blocked.remove(k) }

// Failures counts how often a failure blocked an aggregate, plus 1.
func (q *Queues[T]) Failures() uint64 { return q.failures }

// Stopped reports whether a delivery was returned since the last Resume. Nothing may join: it would overtake the
// returned delivery.
func (q *Queues[T]) Stopped() bool { return q.stopped }

// Returned counts the returned deliveries.
func (q *Queues[T]) Returned() uint64 { return q.returned }

// Resume ends Stopped, unless a delivery was returned after Returned was n.
func (q *Queues[T]) Resume(n uint64) bool {
	if q.returned != n {
		return false
	}
	q.stopped = false
	return true
}

// Withdrawn reports whether Withdraw was called. No delivery may begin after that.
func (q *Queues[T]) Withdrawn() bool { return q.withdrawn }

// Held reports whether a returned delivery or a failure would hold a delivery back if it joined now.
func (q *Queues[T]) Held(e Entry) bool {
	return q.stopped || q.blocked.has(*e.Key) && !q.leads(e)
}

// Parks reports whether a delivery behind a failure is parked; otherwise it is returned. In a total order every later
// delivery waits behind a failure, and parking would turn the whole table into rows. So the owner takes back the
// deliveries without a row, and hands them over again when deliveries continue.
func (q *Queues[T]) Parks(stored bool) bool { return stored || !q.options.Total }

// Join adds a delivery.
func (q *Queues[T]) Join(i *Item[T], e Entry) Turn {
	switch {
	case q.stopped:
		return Returned
	case *e.Key == Key{}:
		i.queued = true
		return Begins
	}

	if q.blocked.has(*e.Key) && !q.leads(e) {
		if q.Parks(e.Stored) {
			return Parked
		}
		q.stop()
		return Returned
	}

	g := q.all[*e.Key]
	switch {
	case g == nil:
		g = q.spare
		if g == nil {
			g = &Queue[T]{}
		}

		q.spare = nil
		*g = Queue[T]{key: *e.Key, first: i, last: i, n: 1}
		q.all[*e.Key] = g
		i.queue = g
		i.queued = true
		return Begins
	case q.isFull(g, &e):
		q.blocked.add(*e.Key)
		return Parked
	}

	g.last.next = i
	g.last = i
	i.queue = g
	g.n++
	q.waiting++

	return Waits
}

// isFull reports whether a delivery must not wait in memory for its aggregate.
func (q *Queues[T]) isFull(g *Queue[T], e *Entry) bool {
	isUnbounded := q.options.Room == 0 || q.options.Total || e.Leads
	if isUnbounded || g.n < shortQueue {
		return false
	}

	share := min(longQueue, max(shortQueue, (q.options.Room-q.waiting)/4))
	if g.n < share {
		return false
	}

	isScarce := q.waiting >= q.options.Room/2
	return e.Slow || g.isSlow(e.Now, isScarce)
}

// isSlow reports whether a delivery that joins waits for long, by the speed of the queue, and unknown while the speed is
// not known.
func (g *Queue[T]) isSlow(now time.Time, unknown bool) bool {
	if g.markedAt.IsZero() {
		g.markedAt = now
		g.marked = g.left
	}

	elapsed := now.Sub(g.markedAt)
	if elapsed < knownAfter {
		return unknown
	}

	left := max(1, g.left-g.marked)
	wait := time.Duration(float64(elapsed) * float64(g.n) / float64(left))

	if elapsed >= knownFor {
		g.markedAt = now
		g.marked = g.left
	}

	return wait >= longestQueue
}

// leads reports whether a delivery begins although its aggregate is blocked. A failure since the read of the stored
// deliveries prevents that: the failed delivery may come first.
func (q *Queues[T]) leads(e Entry) bool {
	return e.Leads && e.Since >= q.blocked.all[*e.Key]
}

// Begin records that a worker took a delivery: from the owner's queue, or with the one before it, see Item.Next.
func (q *Queues[T]) Begin(i *Item[T]) {
	i.started = true
	if !i.queued {
		q.waiting--
	}
}

// PutBack takes back a delivery that a worker took and did not begin. It reports whether the owner must queue the
// delivery; otherwise it waits behind another one.
func (q *Queues[T]) PutBack(i *Item[T]) (first bool) {
	i.started = false

	if i.First() {
		i.queued = true // or it reached the front while the worker had it
		return true
	}

	i.queued = false
	q.waiting++
	return false
}

// Leave removes a delivery that has ended. rests means that the owner begins no new delivery. behind reports whether
// rows may wait behind the delivery. next is the delivery that the owner must queue, or nil. gone are the deliveries
// that end with this one: after Failed they are parked or returned, see Parks; otherwise they are returned.
func (q *Queues[T]) Leave(i *Item[T], how Result, rests bool) (behind bool, next *Item[T], gone []*Item[T]) {
	if how == Undone {
		q.stop()
	}

	g := i.queue
	if g == nil {
		return false, nil, nil
	}

	g.remove(i)
	switch how {
	case Undone:
		gone = q.cut(g, true)
	case Failed:
		q.Fail(g.key)
		gone = q.cut(g, true)
		if q.options.Total {
			q.stop()
		}

	default:
	}

	if g.first == nil {
		q.drop(g)
		q.spare = g
		return how == Done && q.blocked.has(g.key), nil, gone
	}

	i = g.first
	if i.started || i.queued {
		return false, nil, gone
	}

	if rests || q.stopped {
		q.stop()
		gone = append(gone, q.cut(g, true)...)
		q.drop(g)
		return false, nil, gone
	}

	i.queued = true
	q.waiting--

	return false, i, gone
}

// Release removes a delivery that the owner took out of its queue. The owner must return all results: the delivery,
// and the deliveries that wait behind it.
func (q *Queues[T]) Release(i *Item[T]) (gone []*Item[T]) {
	q.stop()

	g := i.queue // cut clears it
	if g == nil {
		return []*Item[T]{i}
	}

	gone = q.cut(g, true)
	q.drop(g)
	return gone
}

// Withdraw removes the deliveries that wait behind others, and returns them for release. Deliveries of workers
// continue.
func (q *Queues[T]) Withdraw() (gone []*Item[T]) {
	q.stop()
	q.withdrawn = true
	for _, g := range q.all {
		gone = append(gone, q.cut(g, false)...)
	}
	return gone
}

// stop records that a delivery is returned.
func (q *Queues[T]) stop() {
	q.stopped = true
	q.returned++
}

func (q *Queues[T]) drop(g *Queue[T]) { delete(q.all, g.key) }

// cut removes deliveries from a queue and returns them. Deliveries that share a call stay in the queue and end with
// the call. taken says whether to remove the other deliveries that a worker has taken.
func (q *Queues[T]) cut(g *Queue[T], taken bool) (gone []*Item[T]) {
	var first, last *Item[T]
	n := 0
	for i := g.first; i != nil; {
		next := i.next
		if i.started && (q.options.Batches || !taken) {
			if last == nil {
				first = i
			} else {
				last.next = i
			}

			last = i
			i.next = nil
			n++
			i = next
			continue
		}

		switch {
		case i.started:
			i.cut = true
		case !i.queued:
			q.waiting--
		}

		i.next = nil
		i.queue = nil
		gone = append(gone, i)
		i = next
	}

	g.first = first
	g.last = last
	g.n = n

	return gone
}

// remove removes a delivery from the queue.
func (g *Queue[T]) remove(i *Item[T]) {
	g.n--
	g.left++
	if g.first == i {
		g.first = i.next
		if g.first == nil {
			g.last = nil
		}
		i.next = nil
		return
	}

	for k := g.first; k != nil; k = k.next {
		if k.next == i {
			k.next = i.next
			if g.last == i {
				g.last = k
			}
			i.next = nil
			return
		}
	}
}
