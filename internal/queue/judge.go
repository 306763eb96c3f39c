package queue

import (
	"context"
	"hash/maphash"
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

// subject names an event for one destination. It has a hash of the payload, which can be edited.
type subject struct {
	event       int64
	destination string
	payload     uint64
}

func subjectOf(e *delivery.Event, l dispatch.QueueLane) subject {
	return subject{event: e.ID, destination: l.Destination().Name, payload: maphash.Bytes(payloadSeed, e.Payload)}
}

var payloadSeed = maphash.MakeSeed() //nolint:gochecknoglobals // constant

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

	mu    sync.Mutex
	known map[subject]judgement
	order []subject // oldest first; may have subjects that are used
}

// of returns the judgement about an event.
func (j *judge) of(e *delivery.Event, l dispatch.QueueLane) (known judgement, ok bool) {
	if j.n.Load() == 0 {
		return judgement{}, false
	}
	s := subjectOf(e, l)

	j.mu.Lock()
	defer j.mu.Unlock()

	known, ok = j.known[s]
	return known, ok
}

// used forgets the judgement about an event.
func (j *judge) used(e *delivery.Event, l dispatch.QueueLane) {
	if j.n.Load() == 0 {
		return
	}
	s := subjectOf(e, l)

	j.mu.Lock()
	defer j.mu.Unlock()

	delete(j.known, s)
	j.countLocked()
}

// add stores a judgement, and forgets the oldest ones beyond the bound.
func (j *judge) add(e *delivery.Event, l dispatch.QueueLane, result judgement) {
	s := subjectOf(e, l)

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
	event *delivery.Event
	lane  dispatch.QueueLane
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
		if _, isKnown := j.of(u.event, u.lane); isKnown {
			continue // another claimer has evaluated it
		}

		if candidate.Event != u.event {
			candidate = delivery.Candidate{Event: u.event}
		}
		j.add(u.event, u.lane, j.evaluate(&candidate, u.lane))
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
	key := l.RateKey(candidate.Event)
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

	result, ok = j.of(&w.Event, l)
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
