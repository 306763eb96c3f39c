package queue

import (
	"context"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

// The transaction of a claim is open while the claimer hands out the events. So a claim evaluates filters and rate keys for a short
// time only, and those of a large event not at all: it returns such events. The claimer evaluates them after the end of the
// transaction, and the next claim of the event finds the result here.

const (
	// evaluateFor is how long a claim evaluates filters, and then rate keys. An evaluation that has begun is not interrupted, so a
	// claim exceeds it by one.
	evaluateFor = 20 * time.Millisecond
	// judgeFor is how long a claimer evaluates those of returned events after a claim, before it claims again. It exceeds it by one.
	judgeFor = 100 * time.Millisecond
	// largePayload is the least payload, in bytes, of an event that a claim does not evaluate. The condition that costs most takes
	// 14 ms with a smaller one.
	largePayload = 64 << 10
	// maxJudgements bounds the results that no claim has used yet. The oldest is forgotten, and its event is evaluated again.
	maxJudgements = 10_000
)

// isLarge reports whether a claim leaves the evaluation of an event until its transaction has ended.
func isLarge(e *delivery.Event) bool { return len(e.Payload) >= largePayload }

// subject names an attempt of an event for one destination: each retry and each replay is evaluated anew. It has a hash of what
// filters and rate keys can read, because events can be edited, and ids can begin again.
type subject struct {
	event       int64
	destination string
	failures    int
	replay      int
	content     uint64
}

func subjectOf(w *Work, l dispatch.QueueLane) subject {
	e := &w.Event
	return subject{event: e.ID, destination: l.Destination().Name, failures: w.Failures, replay: e.Replay, content: contentOf(e)}
}

var contentSeed = maphash.MakeSeed() //nolint:gochecknoglobals // constant

// contentOf returns the hash of an event. A report has a dead letter, which does not change.
func contentOf(e *delivery.Event) uint64 {
	type header struct{ name, value string }
	var h maphash.Hash
	h.SetSeed(contentSeed)

	texts := [...]string{e.Type, e.AggregateType, e.AggregateID, e.ContentType}
	maphash.WriteComparable(&h, texts)
	maphash.WriteComparable(&h, e.CreatedAt.UnixNano())
	if e.DeadLetter != nil {
		maphash.WriteComparable(&h, header{"dead letter of", e.DeadLetter.Destination})
	}
	_, _ = h.Write(e.Payload)

	sum := h.Sum64()
	for name, value := range e.Headers {
		sum ^= maphash.Comparable(contentSeed, header{name, value})
	}
	return sum
}

// judgement is the result of the filter and of the rate key of a destination for one event.
type judgement struct {
	drops   bool
	refused error   // the filter has failed
	rateKey *string // nil without a rate key, and for an event that is not delivered
}

// judge evaluates events outside of claims, and keeps the results until a claim uses them.
type judge struct {
	d *dispatch.Dispatcher
	n atomic.Int32 // number of results: nearly always 0

	evaluating []atomic.Pointer[[]unjudged] // by claimer: what it evaluates

	mu    sync.Mutex
	known map[subject]judgement
	order []subject // oldest first; may have subjects that are used
}

// except returns the events that claimers evaluate. Their rows are free, but no claim of this relay takes them: another claimer would
// only evaluate them too, and deliver nothing meanwhile.
func (j *judge) except() (events []int64) {
	for i := range j.evaluating {
		all := j.evaluating[i].Load()
		if all == nil {
			continue // nearly always
		}
		for _, u := range *all {
			events = append(events, u.work.Event.ID)
		}
	}
	return events
}

// begin records that a claimer will evaluate events of its claim. It returns them, without those that another claimer evaluates: the
// claimer claimed them before that one had begun.
func (j *judge) begin(self int, all []unjudged) []unjudged {
	if len(all) == 0 {
		return nil // nearly always
	}
	j.mu.Lock()
	defer j.mu.Unlock()

	others := j.except()
	all = slices.DeleteFunc(all, func(u unjudged) bool { return slices.Contains(others, u.work.Event.ID) })
	j.evaluating[self].Store(&all)
	return all
}

// of returns the judgement about an event.
func (j *judge) of(w *Work, l dispatch.QueueLane) (known judgement, ok bool) {
	if j.n.Load() == 0 {
		return judgement{}, false
	}
	s := subjectOf(w, l)

	j.mu.Lock()
	defer j.mu.Unlock()

	known, ok = j.known[s]
	return known, ok
}

// evaluates reports whether a lane has a filter or a rate key for an event.
func (j *judge) evaluates(w *Work, l dispatch.QueueLane) bool {
	d := l.Destination()
	return d.RateKey != nil || j.d.FilterOf(d.Name, w.Event.Type) != nil
}

// used forgets the judgement about an event.
func (j *judge) used(w *Work, l dispatch.QueueLane) {
	if j.n.Load() == 0 || !j.evaluates(w, l) {
		return
	}
	s := subjectOf(w, l)

	j.mu.Lock()
	defer j.mu.Unlock()

	delete(j.known, s)
	j.countLocked()
}

// add stores a judgement, and forgets the oldest ones beyond the bound.
func (j *judge) add(w *Work, l dispatch.QueueLane, result judgement) {
	s := subjectOf(w, l)

	j.mu.Lock()
	defer j.mu.Unlock()

	if j.known == nil {
		j.known = make(map[subject]judgement)
	}
	j.known[s] = result
	j.order = append(j.order, s)

	for len(j.order) > maxJudgements {
		delete(j.known, j.order[0])
		j.order = j.order[1:]
	}
	j.countLocked()
}

func (j *judge) countLocked() {
	j.n.Store(int32(len(j.known))) //nolint:gosec // bounded by maxJudgements
	if len(j.known) == 0 {
		j.order = nil
	}
}

// unjudged is an event that a claim has returned without evaluating it for a lane.
type unjudged struct {
	work *Work
	lane dispatch.QueueLane
}

// evaluateAll evaluates events of a settled claim. Those left after judgeFor are evaluated after a later claim.
func (j *judge) evaluateAll(ctx context.Context, all []unjudged) {
	began := time.Now()
	var candidate delivery.Candidate

	for i, u := range all {
		isLate := i > 0 && time.Since(began) > judgeFor
		if ctx.Err() != nil || isLate {
			return
		}
		if candidate.Event != &u.work.Event {
			candidate = delivery.Candidate{Event: &u.work.Event}
		}
		j.add(u.work, u.lane, j.evaluate(&candidate, u.lane))
	}
}

// evaluate calls the filter and the function for rate keys of a lane.
func (j *judge) evaluate(candidate *delivery.Candidate, l dispatch.QueueLane) judgement {
	d := l.Destination()
	if f := j.d.FilterOf(d.Name, candidate.Type); f != nil {
		passes, refused := f(candidate)
		if !passes || refused != nil {
			return judgement{drops: !passes, refused: refused}
		}
	}

	if d.RateKey == nil {
		return judgement{}
	}
	key := strings.Clone(l.RateKey(candidate.Event)) // no part of the payload, which it would keep in memory
	return judgement{rateKey: &key}
}

// decide says what a lane does with a work of an open claim. It reports false if that must be evaluated after the claim.
func (j *judge) decide(held *claim, w *Work, l dispatch.QueueLane, candidate *delivery.Candidate) (result judgement, ok bool) {
	if w.Refused != nil {
		return judgement{refused: w.Refused}, true
	}

	f := j.d.FilterOf(l.Destination().Name, w.Event.Type)
	if f == nil && l.Destination().RateKey == nil {
		return judgement{}, true
	}

	result, ok = j.of(w, l)
	isSlow := isLarge(&w.Event) || held.evaluated > evaluateFor
	switch {
	case ok || isSlow:
		return result, ok
	case f == nil:
		return judgement{}, true // Admit evaluates the key
	}

	began := time.Now()
	passes, refused := f(candidate)
	held.evaluated += time.Since(began)
	return judgement{drops: !passes, refused: refused}, true
}
