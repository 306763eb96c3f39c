// Package flight tracks the events of a shard in memory: batches at the lane, and deliveries that the lane has
// returned. These ids are the part of a position that no table has yet: see [Events.Watermark].
package flight

import (
	"cmp"
	"slices"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/tail"
)

// Events are the events of one reader in memory. Only the goroutine of its shard uses them; answers arrive in the
// batches.
type Events struct {
	// Returned has the deliveries that the lane has returned, and others that wait for the lane, by id. They go before
	// unread events.
	Returned []dispatch.Delivery
	// Batches are at the lane, in the order in which they were handed over.
	Batches []*dispatch.Batch
	// Bytes is the size of the events at the lane.
	Bytes int
	// Unanswered is how many of the deliveries at the lane had no answer at the last Take.
	Unanswered int

	valid func() bool // reports whether deliveries may begin
	wake  func()      // wakes the shard: a batch has an answer
	spare []*dispatch.Batch
	sizes map[*dispatch.Batch]int
}

// New returns the Events of a shard that may begin deliveries while valid reports true. Answers call wake. Any
// goroutine may call both functions.
func New(valid func() bool, wake func()) Events {
	return Events{valid: valid, wake: wake, sizes: make(map[*dispatch.Batch]int)}
}

// Batch returns an empty batch, recycled if possible.
func (f *Events) Batch() *dispatch.Batch {
	n := len(f.spare)
	if n == 0 {
		wake := f.wake // f may be replaced when the batch has its answer
		return dispatch.NewBatch(f.valid, func(bool) { wake() })
	}

	p := f.spare[n-1]
	f.spare = f.spare[:n-1]
	return p
}

// Recycle takes an empty batch back.
func (f *Events) Recycle(p *dispatch.Batch) { f.spare = append(f.spare, p) }

// Begin records a filled batch that is about to be handed over.
func (f *Events) Begin(p *dispatch.Batch, all []dispatch.Delivery) {
	size := Size(all)
	f.Bytes += size
	f.Unanswered += len(all)
	f.sizes[p] = size
	f.Batches = append(f.Batches, p)
}

// Return takes back a delivery that no worker has started.
func (f *Events) Return(d dispatch.Delivery) {
	at, _ := slices.BinarySearchFunc(f.Returned, d.Event.ID, func(d dispatch.Delivery, id int64) int { return cmp.Compare(d.Event.ID, id) })
	f.Returned = slices.Insert(f.Returned, at, d)
}

// Take collects the answers, and returns how many events were acknowledged and whether there was any answer. It begins
// with the last batch: if it finds an event of an aggregate answered, earlier events of the aggregate are answered as
// well. In the other order, a row might be removed and an earlier one kept, and a crash would repeat that one alone.
func (f *Events) Take(answered func(*dispatch.Answer)) (acknowledged int64, changed bool) {
	taken := make([]batchAnswers, len(f.Batches))
	for i, p := range slices.Backward(f.Batches) {
		n, answers, left := p.Take()
		taken[i] = batchAnswers{answers, left}
		acknowledged += int64(n)
		changed = changed || n > 0 || len(answers) > 0
	}

	f.Unanswered = 0
	kept := f.Batches[:0]
	for i, p := range f.Batches {
		for k := range taken[i].answers {
			answered(&taken[i].answers[k])
		}

		f.Unanswered += taken[i].left
		if taken[i].left > 0 {
			kept = append(kept, p)
			continue
		}

		f.Bytes -= f.sizes[p]
		delete(f.sizes, p)
		p.Empty()
		f.Recycle(p)
	}

	clear(f.Batches[len(kept):])
	f.Batches = kept

	return acknowledged, changed
}

// batchAnswers are a batch's answers in Take.
type batchAnswers struct {
	answers []dispatch.Answer
	left    int
}

// OpenIDs returns the ids of events that were read, and are neither acknowledged nor rows, nor about to become rows.
func (f *Events) OpenIDs() (ids []int64) {
	note := func(d *dispatch.Delivery) {
		if !d.Row {
			ids = append(ids, d.Event.ID)
		}
	}

	// The last batch first: an event found delivered was delivered after the events that are checked later. So only a
	// suffix of an aggregate's events stays open.
	for _, p := range slices.Backward(f.Batches) {
		p.UnderWay(note)
	}
	for i := range f.Returned {
		note(&f.Returned[i])
	}

	return ids
}

// Watermark returns the position to write: the ids that r has read, without the ids that are neither acknowledged nor
// stored elsewhere. These are the n ids in memory, and more. The next owner reads them all again.
func (f *Events) Watermark(r *tail.Reader, more []int64) (at idset.Watermark, n int) {
	ids := f.OpenIDs()
	n = len(ids)
	ids = append(ids, more...)
	slices.Sort(ids)

	at = r.Watermark()
	at.Open = at.Open.With(ids)

	return at, n
}

// Count returns how many events are in memory, including rows.
func (f *Events) Count() (n int) {
	for _, p := range f.Batches {
		p.UnderWay(func(*dispatch.Delivery) { n++ })
	}
	return n + len(f.Returned)
}

// Size returns the approximate size of events in memory in bytes, without their fixed sizes.
func Size(all []dispatch.Delivery) (size int) {
	for i := range all {
		size += EventSize(all[i].Event)
	}
	return size
}

// EventSize returns the bytes of an event in memory, about.
func EventSize(e *delivery.Event) int {
	n := len(e.Payload) + len(e.AggregateID)
	for name, value := range e.Headers {
		n += len(name) + len(value)
	}
	return n
}
