package dispatch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/health"
	"github.com/notifyd/notifyd/internal/limit"
	"github.com/notifyd/notifyd/internal/order"
	"github.com/notifyd/notifyd/internal/safecall"
	"github.com/notifyd/notifyd/observe"
)

const (
	// maxQueued bounds a lane's queue at any speed.
	maxQueued = 8192
	// chunkTime is how much work a worker takes from the queue at once. Workers of very fast handlers then spend
	// little time on the queue's lock.
	chunkTime = 200 * time.Microsecond
	// maxChunk bounds a chunk by number.
	maxChunk = 64
	// slowCall ends a chunk early: the remaining jobs return to the queue.
	slowCall = time.Millisecond
	// replayWindow bounds the replayed work in a lane, in time: live deliveries hardly wait for it.
	replayWindow = 2 * time.Millisecond
	// totalQueue is how many events of a slow destination with total order wait in memory.
	totalQueue = 256
	// maxBehind bounds how many jobs wait in memory behind other events of their aggregate.
	maxBehind = maxQueued
)

// lane delivers to one destination. It has a bounded queue, a bounded number of workers, and the measured speed and
// health of the destination. Workers are goroutines that exist while there is work.
type lane struct {
	dest       Destination
	target     target
	log        *slog.Logger
	observer   delivery.Observer
	ctx        context.Context //nolint:containedctx // ends all calls of the lane when the relay cancels them
	onCapacity func()          // called without locks once a refused engine can reserve again
	outage     *outage         // shared by the lanes of the destination
	repeats    *repeats        // shared by the lanes of the destination
	goroutines sync.WaitGroup
	figures    figures // guarded by figures.mu

	mu          sync.Mutex // guards the fields below
	queue       []*job     // not begun
	head        int        // index into queue; earlier jobs have left
	load        int        // reserved and not answered
	running     int        // workers
	throughput  throughput
	engineWaits bool // an engine was refused since onCapacity was last called
	stopped     bool
	paused      bool // by a person or a stored pause; see pause
	owned       bool // an engine has the lane
	workers     workers
	health      health.Health
	slow        map[*job]struct{} // begun jobs of events whose last calls failed slowly
	timer       *time.Timer       // wakes the engine; nil before the first wait
	limiter     *limit.Limiter    // nil without a rate limit
	calls       Calls             // records calls with large events; may be nil
	turns       *turns            // of calls with large events

	agg      *queues // keeps the events of each aggregate in order; nil for an engine without order
	together bool    // the handler accepts several events of an aggregate in one call
}

func newLane(name string, h delivery.Handler, cfg LaneConfig, window time.Duration, log *slog.Logger) *lane {
	l := &lane{
		dest:       newDestination(name, cfg),
		target:     newTarget(h, cfg),
		throughput: throughput{window: window, pace: startPace},
		log:        log.With("destination", name),
		observer:   noObserver{},
		onCapacity: func() {},
		outage:     &outage{},
		repeats:    &repeats{every: repeatsEvery},
		slow:       make(map[*job]struct{}),
		turns:      processTurns,
	}

	l.workers = workers{lane: l, epoch: time.Now()}
	l.health = health.New(&l.dest.Lane)

	if k, ok := delivery.As[delivery.PositionStore](h); ok && k.StoresPosition() {
		l.dest.Position = k
	}
	if k, ok := h.(delivery.OrderedBatchHandler); ok {
		l.together = k.KeepsOrder() && !l.dest.BlockOnDead
	}

	return l
}

// Destination returns the constant properties of the destination.
func (l *lane) Destination() *Destination { return &l.dest }

// Serve assigns the lane to an engine without order.
func (l *lane) Serve(onCapacity func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agg = nil
	l.onCapacity = onCapacity
	l.owned = true
}

// Own assigns the lane to an engine with order.
func (l *lane) Own(onCapacity func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agg = newQueues(&l.dest, &l.target)
	l.onCapacity = onCapacity
	l.owned = true
}

// isUnordered reports whether events of the lane may arrive in any order.
func (l *lane) isUnordered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	isQueue := l.owned && l.agg == nil
	return isQueue || l.dest.Unordered
}

// Disown forgets the health of the destination.
func (l *lane) Disown() {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}

	l.health.Forget()
	l.outage.ends(l)
	l.owned = false
}

// Withdraw returns all deliveries that no worker has begun.
func (l *lane) Withdraw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	gone := l.emptyLocked()
	gone = l.appendUnstartedLocked(gone, l.agg.Withdraw(), VerdictReleased)
	l.answerUnstarted(gone)
}

// Reserve reserves capacity for the deliveries that the lane can begin within its window. A fast destination gets large
// claims; a slow one gets no claims that would only wait.
func (l *lane) Reserve(r Request) int {
	l.mu.Lock()
	defer l.mu.Unlock()

	n := r.N
	if r.Replay {
		most := l.replayLimitLocked()
		free := most - r.Held
		if 2*free < most {
			return 0
		}
		n = min(n, free)
	}

	now := time.Now()
	capacity := l.capacityLocked(now)
	if (r.Once || r.Replay) && capacity < min(n, l.worthwhileLocked()) {
		capacity = 0 // otherwise each finished call of a full lane would trigger a read
	}

	reserved := min(n, capacity)
	l.load += reserved
	l.health.Take(reserved)

	if reserved < n {
		l.refuseLocked(now)
	}

	return reserved
}

// Capacity returns the capacity, or 0 if a claim is not worthwhile.
func (l *lane) Capacity(stored bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := time.Now()
	capacity := l.capacityLocked(now)
	if capacity < l.worthwhileLocked() || stored && l.health.Waits(now, true) {
		l.refuseLocked(now)
		return 0
	}

	return capacity
}

// HasCapacity reports whether there is capacity for at least one delivery.
func (l *lane) HasCapacity() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.capacityLocked(time.Now()) > 0
}

// Chooses returns how many deliveries the lane wants to choose its next one among.
func (l *lane) Chooses() (among int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok = l.health.Chooses(0)
	return health.Candidates, ok
}

// Waits reports whether other deliveries must first find out whether the destination is down.
func (l *lane) Waits(stored bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := time.Now()
	if !l.health.Waits(now, stored) {
		return false
	}

	l.refuseLocked(now)
	return true
}

// Return returns unused reserved capacity.
func (l *lane) Return(n int) {
	if n <= 0 {
		return
	}

	l.mu.Lock()
	l.load -= n
	call := l.returnLocked(n)
	l.mu.Unlock()
	call()
}

// Refused counts a delivery that found no capacity.
func (l *lane) Refused() { l.figures.skipped.refused.Add(1) }

// Slow reports whether an event takes longer than a lease costs.
func (l *lane) Slow() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.throughput.slow()
}

// Observe records that an event takes at least this long.
func (l *lane) Observe(atLeast time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if atLeast > l.throughput.pace {
		l.throughput.observe(atLeast)
	}
}

// Deliver hands over a batch.
func (l *lane) Deliver(p *Batch, unblock []Key) {
	held := l.deliver(p, unblock)
	if held == 0 {
		return
	}

	// A lane that recovers has a small budget. It must not spend the budget on deliveries that wait behind a failure,
	// and write them row by row. Their capacity is free. A refused engine must be notified, even if the blocked
	// delivery was the only probe.
	l.mu.Lock()
	call := l.returnLocked(held)
	l.mu.Unlock()
	call()
}

func (l *lane) deliver(p *Batch, unblock []Key) (held int) {
	l.mu.Lock()
	defer l.mu.Unlock()

	a := l.agg
	p.order = a

	if l.head > 0 && len(l.queue)+len(p.jobs) > cap(l.queue) {
		l.compactLocked()
	}

	l.health.Press(l.aheadLocked())
	isSlow := l.throughput.slow()
	now := time.Now()

	var back []unstarted
	for i := range p.jobs {
		j := &p.jobs[i]
		d := &p.events[i]
		j.Value = task{batch: p, index: i, event: d.Event}
		turn := order.Begins

		if a != nil {
			e := d.entry(a)
			e.Now = now
			e.Slow = isSlow
			turn = a.Join(j, e)
		}

		switch turn {
		case order.Begins:
			l.queue = append(l.queue, j)
		case order.Parked:
			l.load--
			back = append(back, unstarted{job: j, out: outcome{verdict: VerdictParked}})
		case order.Returned:
			l.load--
			back = append(back, unstarted{job: j, out: outcome{verdict: VerdictReleased}})
		default: // it waits behind others
		}
	}

	if a != nil && !a.Stopped() {
		for _, key := range unblock {
			a.Unblock(key)
		}
	}

	if len(back) > 0 {
		l.health.Held(now, len(back))
	}

	held = len(back)
	if begun := l.aheadLocked() - (len(l.queue) - l.head); l.health.Impaired() {
		if n, ok := l.health.Chooses(begun); ok {
			back = append(back, l.chooseLocked(n)...)
		}
	}

	l.startWorkersLocked()
	l.answerUnstarted(back)

	return held
}

// chooseLocked leaves n jobs in the queue of a destination that fails, and returns the others. The most promising ones
// go. Among equals chance decides, in which two kinds come first in turn: the newest event, because bad ones are most
// often the oldest, and an event with others behind it, because bad ones most often have an aggregate of their own.
func (l *lane) chooseLocked(n int) []unstarted {
	queue := slices.Clone(l.queue[l.head:])
	if len(queue) <= n {
		return nil
	}

	first := len(queue) - 1
	behind := slices.IndexFunc(queue, func(j *job) bool { return j.Next() != nil })
	if behind >= 0 && rand.IntN(2) == 0 { //nolint:gosec // no secret
		first = behind
	}

	queue[0], queue[first] = queue[first], queue[0]
	rand.Shuffle(len(queue)-1, func(i, k int) { queue[i+1], queue[k+1] = queue[k+1], queue[i+1] }) //nolint:gosec // no secret
	slices.SortStableFunc(queue, func(a, b *job) int { return l.health.Compare(a.Value.event, b.Value.event) })

	l.queue = queue[n:]
	l.head = 0
	gone := l.emptyLocked()
	l.queue = queue[:n:n]

	return gone
}

// SetRows records whether deliveries of the aggregate are stored.
func (l *lane) SetRows(key Key, rows Rows) {
	l.mu.Lock()
	defer l.mu.Unlock()

	a := l.agg
	switch rows {
	case NoRows:
		a.Unblock(key)
	case SomeRows:
		a.Block(key)
	case NewRow:
		a.Fail(key)
	}
}

// Order returns the state of the order; zero while no engine owns the lane.
func (l *lane) Order(key Key) (o Order) {
	l.mu.Lock()
	defer l.mu.Unlock()

	a := l.agg
	if a == nil {
		return o
	}

	o = Order{Aggregates: a.Blocked(), Failures: a.Failures(), Returned: a.Returned(), Stopped: a.Stopped()}
	if key != (Key{}) {
		o.Blocked = a.IsBlocked(key)
		o.Busy = a.Busy(key)
	}

	return o
}

// GoOn resumes the lane, unless it has returned deliveries since Order counted n.
func (l *lane) GoOn(n uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.agg.Resume(n)
}

// ErrLimited is the error of a delivery that the rate limit of its destination delays.
var ErrLimited = errors.New(limit.Waits)

// NotEvaluated is the wait of a delivery whose key is not known, because the keys before it took too long.
const NotEvaluated time.Duration = -1

// maxRateKey is the longest key that is stored unhashed, in bytes.
const maxRateKey = 128

// Engines take from the rate limit before they hand anything over: a delayed event takes no capacity in the lane, and
// waits where that costs least. Without keys, events wait in the table, as for a full lane. With keys, an event waits
// as a row, because one key must not hold up the others.

// Admit takes from the rate limit for deliveries that the engine will hand over. It returns how long each has to
// wait, 0 for those that may begin; nil if all may. Without keys, all deliveries behind a delayed one wait at least
// as long. Call it in the order of the handover. It may query the database.
//
// Deliveries that the lane will not begin take nothing: those behind a failure, refused or expired. Once the function for keys has
// taken longer than within, the further deliveries get NotEvaluated and take nothing. 0 means no bound.
func (l *lane) Admit(all []Delivery, within time.Duration) (waits []time.Duration) {
	places := l.begins(all)
	wants := make([]limit.Want, 0, len(places))
	began := time.Now()
	isBounded := l.dest.RateKey != nil && within > 0
	for _, at := range places {
		if isBounded && len(wants) > 0 && time.Since(began) > within {
			break
		}
		wants = append(wants, limit.Want{Key: l.rateKeyOf(&all[at]), Waited: all[at].Waited})
	}

	late := places[len(wants):]
	places = places[:len(wants)]

	some, err := l.limiter.Take(l.ctx, wants)
	switch {
	case some == nil && len(late) == 0:
		return nil
	case some == nil:
		some = make([]time.Duration, len(wants))
	}

	if err != nil {
		l.log.Debug("rate limit query failed", "err", err)
	}

	now := time.Now()
	waits = make([]time.Duration, len(all))
	held := uint64(0)
	for i, at := range places {
		d := &all[at]
		waits[at] = some[i]

		if some[i] > 0 {
			held++
			if !d.Expires.IsZero() {
				waits[at] = max(min(waits[at], d.Expires.Sub(now)), time.Millisecond)
			}
			l.figures.skipped.limitedFor(now.Add(waits[at]))
		}
	}

	for _, at := range late {
		waits[at] = NotEvaluated
	}

	if !l.limiter.Keyed() {
		for i := 1; i < len(waits); i++ {
			waits[i] = max(waits[i], waits[i-1])
		}
	}

	l.figures.skipped.limited.Add(held)
	return waits
}

// begins returns the indexes of the deliveries that the lane would begin. It sets Since of those that lead, because
// others may fail before they begin.
func (l *lane) begins(all []Delivery) []int {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := time.Now()
	places := make([]int, 0, len(all))
	a := l.agg

	for i := range all {
		d := &all[i]
		held := a != nil && a.Held(d.entry(a))
		if held || d.Refused != nil || d.late(now) {
			continue
		}
		places = append(places, i)
	}

	return places
}

// rateKeyOf returns the key of a delivery.
func (l *lane) rateKeyOf(d *Delivery) string {
	if d.RateKey != nil {
		return *d.RateKey
	}
	return l.RateKey(d.Event)
}

// RateKey returns the key of an event in its stored form.
func (l *lane) RateKey(e *delivery.Event) string {
	if l.dest.RateKey == nil {
		return ""
	}

	began := time.Now()
	key, err := keyOf(l.dest.RateKey, &delivery.Candidate{Event: e})
	l.logSlow("rate_key", "", e, began)
	switch {
	case err != nil:
		return "" // limited together with all events whose key is unknown, and not lost
	case len(key) > maxRateKey || !utf8.ValidString(key) || strings.ContainsRune(key, 0):
		sum := sha256.Sum256([]byte(key))
		return hex.EncodeToString(sum[:])
	}

	return key
}

// keyOf calls a function for keys and turns its panic into an error.
func keyOf(f delivery.RateKey, c *delivery.Candidate) (key string, err error) {
	defer safecall.Recover("it", &err)
	return f(c)
}

// limitWaitsLocked reports whether deliveries wait for the rate limit.
func (l *lane) limitWaitsLocked(now time.Time) bool {
	if l.limiter == nil {
		return false
	}
	return l.engineWaits && l.limiter.Wait(now) > 0 || now.UnixNano() < l.figures.skipped.limitedUntil.Load()
}

// slow is how long a filter or the function of a rate key may take without a line in the log: meanwhile other events wait.
const slow = 100 * time.Millisecond

// logSlow logs a call of a filter or of the function of a rate key that took long.
func (l *lane) logSlow(of, route string, e *delivery.Event, began time.Time) {
	if took := time.Since(began); took > slow {
		l.log.Warn("slow evaluation", "of", of,
			"event_id", e.ID, "event_type", e.Type, "bytes", len(e.Payload), "route", route, "took", took)
	}
}

// guarded wraps the filter of a route: it survives a panic, and logs a call that takes long. It returns nil for nil.
func (l *lane) guarded(f delivery.Filter, route string) delivery.Filter {
	if f == nil {
		return nil
	}
	return func(c *delivery.Candidate) (bool, error) {
		began := time.Now()

		passes, err := ask(f, c)
		l.logSlow("filter", route, c.Event, began)
		if err != nil {
			return true, fmt.Errorf("the filter of %q failed: %s", l.dest.Name, safecall.Text(err))
		}
		return passes, nil
	}
}

// restingLocked reports whether the lane begins no deliveries.
func (l *lane) restingLocked() bool {
	if l.paused || l.health.Rests() || l.workers.allStuckLocked() {
		return true
	}

	return l.agg != nil && l.agg.Withdrawn()
}

// pause pauses the lane, and reports whether it was running.
func (l *lane) pause() bool {
	l.mu.Lock()
	was := l.paused
	l.paused = true
	if !was {
		l.answerUnstarted(l.emptyLocked())
	}

	l.mu.Unlock()
	return !was
}

// resume resumes the lane, and reports whether it was paused.
func (l *lane) resume() bool {
	l.mu.Lock()
	was := l.paused
	l.paused = false
	call := func() {}

	if was {
		l.refuseLocked(time.Now()) // the engine may have missed events during the pause, and the timer the lack of capacity
		call = l.wakeLocked()
	}

	l.mu.Unlock()
	call()

	return was
}

// worthwhileLocked returns the capacity that makes a claim worthwhile: under load, a claim per answered event would
// cost more than it brings.
func (l *lane) worthwhileLocked() int {
	fair := l.health.Worthwhile(l.sizeLocked())
	if l.limiter != nil {
		fair = max(1, min(fair, l.limiter.Batch()))
	}
	return fair
}

func (l *lane) capacityLocked(now time.Time) int {
	if l.stopped || l.paused || l.workers.allStuckLocked() {
		return 0
	}

	capacity := l.sizeLocked() - l.aheadLocked()
	_, chooses := l.health.Chooses(0)
	if chooses {
		capacity = maxQueued - l.aheadLocked()
	}
	if l.agg != nil {
		capacity = min(capacity, maxBehind-l.load)
	}

	if l.health.Impaired() {
		// An impaired destination has at most that many deliveries in flight, however large its batches are.
		capacity = l.health.Allowed(now, min(capacity, maxQueued+l.load), l.load, l.aheadLocked())
	}

	if l.limiter != nil {
		capacity = l.limiter.Capacity(now, capacity)
	}

	switch {
	case !l.throughput.slow() || chooses:
	case l.agg != nil && l.dest.Total:
		// One call at a time empties the queue, however many workers are idle.
		capacity = min(capacity, max(totalQueue, l.perCall())-l.load)
	default:
		// Engines do not wait for jobs that no worker begins at once: they would withdraw the jobs and claim them
		// again, endlessly.
		capacity = min(capacity, l.idleLocked()*l.perCall()-(len(l.queue)-l.head))
	}

	return max(0, capacity)
}

// aheadLocked counts the jobs that a worker has begun or could begin. With order, jobs that wait behind others of their
// aggregate take no capacity from other aggregates.
func (l *lane) aheadLocked() int {
	return l.load - l.waitingLocked()
}

// waitingLocked counts the jobs outside the queue that wait behind others of their aggregate.
func (l *lane) waitingLocked() int {
	if l.agg == nil {
		return 0
	}
	return l.agg.Waiting()
}

// perCall returns how many events a worker begins together.
func (l *lane) perCall() int {
	if l.target.batch != nil {
		return l.dest.Batch
	}
	return 1
}

// idleLocked returns how many more workers there may be.
func (l *lane) idleLocked() int { return l.workers.allowedLocked() - l.running }

// sizeLocked returns how many jobs the lane holds: at least one call per allowed worker, and no more if the lane is
// slow.
func (l *lane) sizeLocked() int {
	workers := max(1, l.workers.allowedLocked())
	if l.agg != nil && l.dest.Total {
		workers = 1
	}

	parallel := workers * l.perCall()
	if l.throughput.slow() {
		return parallel
	}
	if l.throughput.pace <= 0 {
		return max(maxQueued, parallel)
	}

	inWindow := int(int64(workers) * int64(l.throughput.window) / int64(l.throughput.pace))
	return min(max(inWindow, parallel), max(maxQueued, parallel))
}

// compactLocked drops the jobs before the head of the queue. Under load the queue is never empty, and its array would
// grow without bound.
func (l *lane) compactLocked() {
	n := copy(l.queue, l.queue[l.head:])
	clear(l.queue[n:])
	l.queue = l.queue[:n]
	l.head = 0
}

// startWorkersLocked starts as many workers as the queue justifies, each with its first jobs. A worker must not take
// its first jobs later: the claim may stop waiting and withdraw all jobs not begun.
func (l *lane) startWorkersLocked() {
	per := l.perCall()
	if l.target.batch == nil && l.throughput.pace < chunkTime/maxChunk {
		per = maxChunk // another worker would only wait for the lock
	}

	wanted := min(l.workers.allowedLocked(), l.running+(len(l.queue)-l.head+per-1)/per)
	started := max(0, wanted-l.running)
	l.running += started

	for range started {
		first := l.takeLocked(nil)
		if len(first) == 0 {
			l.running--
			continue
		}
		l.workers.startLocked(first)
	}
}

// take returns the next jobs of a worker. It returns nil when the worker must end.
func (l *lane) take(w *worker, buf []*job) []*job {
	l.mu.Lock()
	buf = l.takeLocked(buf)
	call := func() {}
	if len(buf) == 0 {
		buf = nil
		l.workers.removeLocked(w)
		l.workers.ended = append(l.workers.ended, w)
		l.queue = l.queue[:0]
		l.head = 0
		call = l.wakeLocked() // a slow lane has capacity only while a worker is missing
	}

	l.mu.Unlock()
	call()

	return buf
}

func (l *lane) takeLocked(buf []*job) []*job {
	waiting := len(l.queue) - l.head

	n := 1
	if l.target.batch != nil {
		n = l.dest.Batch
	} else if l.throughput.pace < chunkTime/2 {
		n = min(maxChunk, int(chunkTime/max(l.throughput.pace, time.Microsecond)), 1+(waiting+l.waitingLocked())/l.running)
	}

	buf = buf[:0]
	for len(buf) < n && l.head < len(l.queue) {
		j := l.queue[l.head]
		if delay, why, ok := l.heldLocked(j); ok {
			l.queue[l.head] = nil
			l.head++
			l.answerUnstarted(l.postponeLocked(nil, j, delay, why))
			continue
		}

		if l.aloneLocked(j) {
			if len(buf) > 0 {
				break
			}

			n = 1
			l.health.Begins(j.Value.event.ID)
			if l.health.Slow(j.Value.event.ID) {
				l.slow[j] = struct{}{}
			}
		}

		l.queue[l.head] = nil
		l.head++
		buf = append(buf, j)

		q := j.Value.batch.order
		if q == nil {
			continue
		}

		q.Begin(j)

		if l.target.batch != nil && !l.together {
			continue
		}

		// One worker delivers the events of an aggregate one after the other.
		for len(buf) < n {
			next := j.Next()
			if next == nil || l.aloneLocked(next) {
				break
			}

			q.Begin(next)
			buf = append(buf, next)
			j = next
		}
	}

	return buf
}

// heldLocked returns how long a job waits although a worker could begin it, and why: its type is suspected, or the events
// whose calls failed slowly have half of the workers.
func (l *lane) heldLocked(j *job) (delay time.Duration, why error, ok bool) {
	mayWait := l.health.Impaired() && !l.dest.Total && j.Value.refused() == nil
	if !mayWait {
		return 0, nil, false
	}

	now := time.Now()
	isSlow := l.health.Slow(j.Value.event.ID)
	if isSlow && len(l.slow) >= max(1, l.workers.allowedLocked()/2) {
		return l.health.Postponed(now, j.Value.event.ID)
	}

	return l.health.Holds(now, j.Value.event.Type)
}

// aloneLocked reports whether an event is quarantined, refused or large: its call has no other events.
func (l *lane) aloneLocked(j *job) bool {
	return l.health.Quarantined(j.Value.event.ID) || j.Value.refused() != nil || l.large(j)
}

// large reports whether the calls with the event are recorded.
func (l *lane) large(j *job) bool { return l.calls != nil && len(j.Value.event.Payload) >= largeEvent }

// putBack returns jobs that a worker took and did not begin to the queue. They need more workers now than short calls
// did.
func (l *lane) putBack(jobs []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()

	back := make([]*job, 0, len(jobs))
	for _, j := range jobs {
		delete(l.slow, j)

		if j.Cut() {
			continue
		}
		if q := j.Value.batch.order; q == nil || q.PutBack(j) {
			back = append(back, j)
		}
	}

	l.head -= len(back)
	if l.head < 0 {
		l.queue = append(make([]*job, -l.head, len(l.queue)-l.head), l.queue...)
		l.head = 0
	}

	copy(l.queue[l.head:], back)

	if !l.restingLocked() {
		l.startWorkersLocked()
	}
}

func (l *lane) callContext() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(l.ctx, l.dest.Timeout, l.target.expired)
}

// settle records the outcomes of the first n jobs of a chunk, and leaves the jobs with which the worker continues. A
// non-nil r is the failure of the n-th job.
func (l *lane) settle(c *chunk, n int, r *result) {
	jobs := c.jobs[:n]
	outs := c.outs[:n]
	rest := c.jobs[n:]
	out := &outs[n-1]
	from := out.from
	to := out.to

	if r != nil {
		of := health.Call{Began: c.begin.Add(from), Took: to - from}
		if n > 1 {
			of.Proof = c.begin.Add(outs[n-2].from)
		}

		*out = l.classify(jobs[n-1], &of, r)
		out.from = from
		out.to = to
	}

	c.record.end(l, jobs[n-1], out.verdict)

	if len(rest) > 0 && (to-from > slowCall || l.halted()) {
		l.putBack(rest)
		rest = nil
	}

	rest = l.finishedBefore(c.begin, to-c.from, jobs, outs, rest)
	c.jobs = rest
	c.outs = c.outs[n : n+len(rest)]
	c.from = to
}

// settleBatch records the outcomes of jobs that shared a call. Jobs behind a failed one of their aggregate count as
// not delivered, whatever their result.
func (l *lane) settleBatch(c *chunk, results []*result) {
	elapsed := time.Since(c.begin)
	outs := make([]outcome, len(c.jobs))
	of := health.Call{Began: c.begin, Took: elapsed, Shared: len(c.jobs) > 1}

	if results == nil || slices.ContainsFunc(results, (*result).reachable) {
		of.Proof = c.begin
		of.Shared = false
	}

	of.Others = results == nil || slices.Contains(results, nil)

	var broken map[*order.Queue[task]]Verdict
	for i, j := range c.jobs {
		var r *result
		if results != nil {
			r = results[i]
		}

		group := j.Queue()
		if v := broken[group]; r != nil && group != nil && v != 0 {
			outs[i] = outcome{verdict: j.Value.behind(v)}
			continue
		}

		outs[i] = outcome{verdict: VerdictDelivered}
		if r != nil {
			outs[i] = l.classify(j, &of, r)
		}

		outs[i].to = elapsed

		if outs[i].verdict != VerdictDelivered && group != nil {
			if broken == nil {
				broken = make(map[*order.Queue[task]]Verdict)
			}
			broken[group] = l.follows(&outs[i])
		}
	}

	c.record.end(l, c.jobs[0], outs[0].verdict)
	l.finished(c.begin, elapsed, c.jobs, outs)
}

// finished records the outcomes of jobs that took a worker the given time in total. Outcome times count from begin.
func (l *lane) finished(begin time.Time, elapsed time.Duration, jobs []*job, outs []outcome) {
	if len(jobs) > 0 {
		l.finishedBefore(begin, elapsed, jobs, outs, nil)
	}
}

// finishedBefore does the same for the first jobs of a chunk, and returns the remaining ones. Jobs that a failed job
// cuts off are answered with it, and their memory may be reused at once: the worker must not even read whether they
// are cut.
func (l *lane) finishedBefore(begin time.Time, elapsed time.Duration, jobs []*job, outs []outcome, rest []*job) []*job {
	l.figures.record(begin, elapsed, jobs, outs)
	l.mu.Lock()
	l.load -= len(jobs)

	if elapsed != notBegun {
		l.throughput.observe(elapsed / time.Duration(len(jobs)))
	}

	var changed health.Change
	ends := false
	var gone []unstarted

	if l.health.Impaired() {
		for _, j := range jobs {
			delete(l.slow, j)
		}

		now := time.Now()
		changed = l.reportLocked(now, begin, jobs, outs)
		l.engineWaits = l.engineWaits || changed.Closes || l.health.Recovers() // a refused request may fit now
		l.armLocked(now)
		ends = changed.Closes && l.outage.ends(l)
	}

	rests := l.restingLocked()
	for i, j := range jobs {
		if j.Value.batch.order != nil {
			gone = l.leaveLocked(gone, j, &outs[i], rests || l.stopped)
		}
	}

	if rests {
		// Earlier queued jobs. None is a probe: probes are reserved only while nothing else is in flight.
		gone = append(gone, l.emptyLocked()...)
		l.health.Finished(spoiled(outs))
	} else {
		l.startWorkersLocked()
	}

	rest = slices.DeleteFunc(rest, func(j *job) bool { return j.Cut() })
	call := l.wakeLocked()

	// Last, and under the lock: see Batch.answer. An answered batch may be refilled at once.
	answerBatches(jobs, outs)
	l.answerUnstarted(gone)
	l.mu.Unlock()
	l.logChange(changed, ends)
	call()

	return rest
}

// leaveLocked removes a job with its outcome from the queue of its aggregate, and appends to gone the jobs that get a
// verdict with it. rests: the lane begins no jobs.
func (l *lane) leaveLocked(gone []unstarted, j *job, out *outcome, rests bool) []unstarted {
	how := order.Failed
	v := VerdictParked
	switch {
	case out.verdict.Settles() || out.verdict == VerdictDead && !l.dest.BlockOnDead:
		how = order.Done
		v = VerdictReleased
	case out.verdict == VerdictReleased:
		how = order.Undone
		v = VerdictReleased
	}

	behind, next, with := j.Value.batch.order.Leave(j, how, rests)
	out.behind = behind
	if next != nil {
		l.queue = append(l.queue, next)
	}
	if len(with) == 0 {
		return gone
	}

	return l.appendUnstartedLocked(gone, with, v)
}

// reportLocked reports answers to the health of the destination. begin is when the first of their calls began.
func (l *lane) reportLocked(now, begin time.Time, jobs []*job, outs []outcome) health.Change {
	var all health.Answers
	for i := range outs {
		switch out := &outs[i]; {
		case out.throttled:
			all.Throttled++
		case out.answered():
			all.Answered++
			e := jobs[i].Value.event
			l.health.Answered(now, e.ID, e.Type, begin.Add(out.from), out.verdict == VerdictDelivered)

		case out.unclear && out.verdict.counts():
			all.Refused++
			l.health.Counted(now, jobs[i].Value.event.ID, out.delay, out.verdict == VerdictDead)
		case out.silent:
			l.health.Counted(now, jobs[i].Value.event.ID, out.delay, out.verdict == VerdictDead)
		}
	}

	return l.health.Record(now, begin, all, l.sizeLocked(), min(l.load+len(jobs), l.running*l.perCall()))
}

// classify turns a failed delivery into an outcome. Package health decides who is at fault, whether to retry, and when.
func (l *lane) classify(j *job, c *health.Call, r *result) outcome {
	if l.ctx.Err() != nil {
		// The relay interrupted the handler: its error is meaningless.
		return outcome{verdict: VerdictReleased, class: delivery.ClassRelay, err: ErrStopping}
	}

	isUnknown := r.reopen || r.Late || r.Unanswered
	f := health.Failed{
		Event:    j.Value.event,
		Call:     *c,
		Result:   r.Result,
		Attempts: j.Value.failures() + 1,
		Reopen:   l.dest.Position != nil && isUnknown,
		Err:      r,
	}

	l.mu.Lock()
	now := time.Now()
	f.FirstGap = 2 * l.throughput.pace / time.Duration(max(1, l.running))
	d := l.health.Decide(now, &f)
	if d.Slower {
		l.refuseLocked(now) // the events of this lane must be queried again
	}

	begins := d.Opened && l.outage.begins(l)
	l.mu.Unlock()

	if d.Row > 0 {
		r = r.inRow(d.Row)
	}

	if d.General {
		l.reportFault(now, d.Outage, begins, r)
	} else {
		l.reportFailure(j.Value.event, &d, begins, r)
	}

	out := outcome{
		verdict:   verdictOf(d.Next),
		delay:     d.Wait,
		class:     d.Class,
		err:       r,
		permanent: d.Final,
		unclear:   r.Unclear,
		silent:    d.Silent,
		throttled: d.Throttled,
	}

	if f.Reopen {
		out.err = fmt.Errorf("%w: %w", delivery.ErrReopen, r)
	}

	return out
}

// reportFailure logs a failed delivery, and reports a dead letter and the begin of an outage to the observer.
func (l *lane) reportFailure(e *delivery.Event, d *health.Decision, begins bool, r *result) {
	log := l.log.With("event_id", e.ID, "event_type", e.Type, "attempt", e.Attempt)
	switch {
	case d.Next == health.Bury:
		l.repeats.log(l.log, log, slog.LevelError, "event is a dead letter", r, "class", d.Class, "permanent", d.Final)
		l.observer.Observe(delivery.Incident{
			Kind:        delivery.IncidentDead,
			Time:        time.Now(),
			Destination: l.dest.Name,
			EventID:     e.ID,
			EventType:   e.Type,
			Err:         r,
		})

	case d.Next == health.Retry:
		l.repeats.log(l.log, log, slog.LevelWarn, "delivery failed", r, "class", d.Class, "retry_in", d.Wait)
	case d.Throttled && d.Next == health.SetAside:
		l.repeats.log(l.log, log, slog.LevelInfo, "event throttled and quarantined", r, "class", d.Class, "retry_in", d.Wait)
	case d.Begins && r.Exhausted:
		log.Warn("machine has no resources for more calls", "class", d.Class, "gap", d.Gap, "err", r)
	case d.Begins:
		log.Warn("destination throttles", "class", d.Class, "gap", d.Gap, "wait", r.Delay, "err", r)
	case d.Throttled:
		log.Debug("destination still throttles", "class", d.Class, "gap", d.Gap, "wait", r.Delay, "err", r)
	case d.Suspected:
		l.repeats.log(l.log, log, slog.LevelInfo, "destination fails over one event and answers others", r,
			"class", d.Class, "retry_in", d.Wait)
	case begins:
		l.reportUnavailable(log, time.Now(), r)
	case d.Again && d.Longer:
		log.Info("destination failed again during recovery", "class", d.Class, "pause", d.Pause, "err", r)
	default:
		log.Debug("destination still down", "class", d.Class, "pause", d.Pause, "err", r)
	}
}

// follows returns the verdict for jobs of the same aggregate that failed behind a job in the same call; 0 if each
// must be classified alone. Jobs behind a released one are released, too: as rows, the engine would find them before
// the released one.
func (l *lane) follows(out *outcome) Verdict {
	switch {
	case out.verdict == VerdictDead && !l.dest.BlockOnDead && out.permanent:
		return 0
	case out.verdict == VerdictReleased:
		return VerdictReleased
	}
	return VerdictParked
}

func (l *lane) reportUnavailable(log *slog.Logger, now time.Time, err error) {
	log.Warn("destination down", "class", delivery.ClassDestination, "err", err)
	l.observer.Observe(delivery.Incident{Kind: delivery.IncidentDown, Time: now, Destination: l.dest.Name, Err: err})
}

// fault records that the destination did not answer a request that began at the given time and concerned no single
// event. With repeat, fault always reports the outage.
func (l *lane) fault(began time.Time, err error, repeat bool) (pause time.Duration) {
	l.mu.Lock()
	now := time.Now()
	o := l.health.Fault(now, began, err)
	if o.Longer {
		l.refuseLocked(now)
	}

	begins := o.Opened && l.outage.begins(l)
	l.mu.Unlock()
	l.reportFault(now, o, begins || repeat, err)

	return o.Pause
}

// reportFault records and logs a failure that concerned no single event.
func (l *lane) reportFault(now time.Time, o health.Outage, begins bool, err error) {
	l.figures.fault(now, err)
	if begins {
		l.reportUnavailable(l.log, now, err)
		return
	}
	l.log.Debug("destination still down", "class", delivery.ClassDestination, "pause", o.Pause, "err", err)
}

// answers records that the destination answers again, and lets the lane recover step by step.
func (l *lane) answers() {
	l.mu.Lock()
	now := time.Now()
	change := l.health.Responds(now, l.sizeLocked())
	ends := change.Closes && l.outage.ends(l)
	l.engineWaits = true
	l.armLocked(now)
	call := l.wakeLocked()
	l.mu.Unlock()
	l.logChange(change, ends)
	call()
}

// spoiled counts the answers that slowed the lane down: queued jobs are returned until health has recorded them.
func spoiled(outs []outcome) (n int) {
	for i := range outs {
		if outs[i].throttled && outs[i].verdict == VerdictReleased {
			n++
		}
	}
	return n
}

// busy reports whether a call of the handler is running.
func (l *lane) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running+l.workers.stuck > 0
}

// replayLimitLocked returns how many replayed deliveries the lane may hold while live ones hardly wait.
func (l *lane) replayLimitLocked() int {
	half := l.sizeLocked() / 2
	if l.throughput.pace <= 0 {
		return max(1, half)
	}

	workers := max(1, l.workers.allowedLocked())
	quick := int(int64(workers) * int64(replayWindow) / int64(l.throughput.pace))
	return max(1, min(half, max(workers*l.perCall()/2, quick)))
}

// halted reports whether a worker must put back the jobs that it has not begun.
func (l *lane) halted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.restingLocked()
}

// refuseLocked records that an engine did not get the capacity that it requested.
func (l *lane) refuseLocked(now time.Time) {
	l.engineWaits = true

	if !l.health.Impaired() && l.limiter == nil {
		return
	}

	// An engine requests capacity before it knows whether there are events, so only handed-over deliveries count as
	// pressure.
	if l.agg == nil {
		l.health.Press(l.aheadLocked())
	}

	l.armLocked(now)
}

// wakeLocked returns the function to call after unlocking: onCapacity if an engine was refused and enough capacity is
// free.
func (l *lane) wakeLocked() func() {
	if !l.engineWaits {
		return func() {}
	}

	if now := time.Now(); l.capacityLocked(now) < l.worthwhileLocked() {
		if l.limiter != nil {
			l.armLocked(now) // the limit has closed since the refusal, and answers do not open it
		}
		return func() {}
	}

	l.engineWaits = false
	return l.onCapacity
}

// armLocked sets the timer for changes that only time brings, in the health or the rate limit. Each answer checks all
// other changes.
func (l *lane) armLocked(now time.Time) {
	if l.stopped {
		return
	}

	wanted := 0
	if l.engineWaits {
		wanted = l.worthwhileLocked()
	}

	next := l.health.Next(now, wanted)
	if l.engineWaits && l.limiter != nil {
		if d := l.limiter.Wait(now); d > 0 && (next == 0 || d < next) {
			next = d
		}
	}

	switch {
	case next == 0:
	case l.timer == nil:
		l.timer = time.AfterFunc(next, l.tick)
	default:
		l.timer.Reset(next)
	}
}

// tick applies the changes that only time brings.
func (l *lane) tick() {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return
	}

	now := time.Now()
	change := l.health.Calm(now)
	ends := change.Closes && l.outage.ends(l)
	l.engineWaits = l.engineWaits || change.Closes
	call := l.wakeLocked()
	l.armLocked(now)
	l.mu.Unlock()
	l.logChange(change, ends)
	call()
}

// logChange logs and reports a change of the health. ends: all lanes of the destination are available.
func (l *lane) logChange(c health.Change, ends bool) {
	if c.Ramps {
		l.log.Debug("destination answers a probe")
	}
	if c.Closes {
		l.available(c.Answered, ends)
	}
	if c.Unthrottled {
		l.log.Info("destination is no longer throttled")
	}
}

// available reports the end of an outage, unless another lane of the destination is still down. answered is when a probe of
// this lane succeeded.
func (l *lane) available(answered time.Time, ends bool) {
	if !ends {
		l.log.Debug("destination up for this shard")
		return
	}
	l.log.Info("destination up", "after", l.outage.lasted(answered).Round(time.Millisecond))
	l.observer.Observe(delivery.Incident{Kind: delivery.IncidentUp, Time: time.Now(), Destination: l.dest.Name})
}

// returnLocked returns unused tokens to the pacer. Its result is the function to call after unlocking.
func (l *lane) returnLocked(n int) func() {
	l.health.Take(-n)
	return l.wakeLocked()
}

// bit returns the bit of the lane in an outage. MaxShards bits fit.
func (l *lane) bit() uint64 { return 1 << l.dest.Shard }

// countsLocked reports whether the lane's health counts for the destination. A relay without the lease of a shard
// knows nothing about its health.
func (l *lane) countsLocked() bool { return l.owned || l.dest.Shards <= 1 }

// blocked returns the number of blocked aggregates, 0 while no engine with order owns the lane.
func (l *lane) blocked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.agg == nil || !l.owned {
		return 0
	}
	return l.agg.Blocked()
}

// unstarted is a job that no worker begins, with its verdict.
type unstarted struct {
	job *job
	out outcome
}

// answerUnstarted answers jobs that no worker began. The lane's lock is held.
func (l *lane) answerUnstarted(all []unstarted) {
	for _, k := range all {
		l.figures.skipped.count(k.out.verdict)
		k.job.Value.batch.answer([]*job{k.job}, []outcome{k.out})
	}
}

// drop ends the lane: it removes all jobs that no worker has begun, and accepts no more.
func (l *lane) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.stopped = true

	if l.timer != nil {
		l.timer.Stop()
	}

	gone := l.emptyLocked()
	if l.agg != nil {
		gone = l.appendUnstartedLocked(gone, l.agg.Withdraw(), VerdictReleased)
	}

	l.answerUnstarted(gone)
}

// emptyLocked empties the queue, and returns its jobs and the jobs that wait behind them.
func (l *lane) emptyLocked() (gone []unstarted) {
	queue := l.queue[l.head:]
	l.queue = nil
	l.head = 0
	for _, j := range queue {
		if delay, err, ok := l.postponedLocked(j); ok {
			gone = l.postponeLocked(gone, j, delay, err)
			continue
		}

		if o := j.Value.batch.order; o != nil {
			gone = l.appendUnstartedLocked(gone, o.Release(j), VerdictReleased)
			continue
		}

		l.load--
		gone = append(gone, unstarted{job: j, out: outcome{verdict: VerdictReleased}})
	}

	return gone
}

// postponedLocked reports whether a job of an event in quarantine makes room for others, as a row.
func (l *lane) postponedLocked(j *job) (delay time.Duration, err error, ok bool) {
	if !l.health.Down() || l.stopped || l.paused {
		return 0, nil, false
	}
	return l.health.Postponed(time.Now(), j.Value.event.ID)
}

// postponeLocked appends a job of an event in quarantine to gone, and the jobs behind it. If the engine got it back, it
// would hand it over first, and no other event would be tried.
func (l *lane) postponeLocked(gone []unstarted, j *job, delay time.Duration, err error) []unstarted {
	l.load--
	gone = append(gone, unstarted{
		job: j,
		out: outcome{verdict: VerdictQuarantined, delay: delay, class: delivery.ClassDestination, err: err},
	})

	o := j.Value.batch.order
	if o == nil {
		return gone
	}

	_, _, with := o.Leave(j, order.Failed, true)
	return l.appendUnstartedLocked(gone, with, VerdictParked)
}

// appendUnstartedLocked appends to gone the jobs that left the queues of aggregates with the verdict v.
func (l *lane) appendUnstartedLocked(gone []unstarted, jobs []*job, v Verdict) []unstarted {
	l.load -= len(jobs)
	for _, j := range jobs {
		gone = append(gone, unstarted{job: j, out: outcome{verdict: j.Value.behind(v)}})
	}
	return gone
}

// TakeBack returns the deliveries of a batch that no worker has begun.
func (l *lane) TakeBack(p *Batch) {
	l.mu.Lock()
	var gone []unstarted
	waiting := l.queue[l.head:]
	left := slices.DeleteFunc(waiting, func(j *job) bool {
		if j.Value.batch != p {
			return false
		}
		gone = append(gone, unstarted{job: j, out: outcome{verdict: VerdictReleased}})
		return true
	})

	l.queue = l.queue[:l.head+len(left)]
	l.load -= len(gone)
	l.answerUnstarted(gone)
	call := l.wakeLocked()
	l.mu.Unlock()
	call()
}

// stats returns the figures of the lane: see [merge].
func (l *lane) stats() observe.DestinationStats {
	s := l.figuresNow()
	if r := l.target.reporter; r != nil {
		var report delivery.Report
		if err := safecall.Call("Report", func() { report = r.Report() }); err == nil {
			report.Reason = safecall.Clean(report.Reason)
			s.Report = &report
		} else if !l.figures.reported.Swap(true) { // logged once, not with each scrape
			l.log.Error("handler's Report method failed", "err", err)
		}
	}
	return s
}

// figuresNow returns the figures of the lane, without those that the handler reports. It does not call the handler.
func (l *lane) figuresNow() observe.DestinationStats {
	now := time.Now()
	l.mu.Lock()
	s := observe.DestinationStats{
		Name:          l.dest.Name,
		Type:          l.dest.Type,
		DeadLettersTo: l.dest.OnDead.To,
		Running:       l.running,
		Queued:        len(l.queue) - l.head,
		Stuck:         l.workers.stuck,
		Paused:        l.paused,
		Throttled:     l.health.Throttles(),
	}

	counts := l.countsLocked()
	if counts {
		is := l.health.Snapshot(now)
		s.State = is.State
		s.Gap = is.Gap
		s.Trouble.DownSince = is.DownSince
		s.Trouble.NextProbe = is.NextProbe
		s.Trouble.ThrottledUntil = is.AskedUntil
		s.Trouble.ThrottledBy = is.AskedBy
		s.Capacity = l.capacityLocked(now)
		s.Pace = l.throughput.pace
		s.RateLimited = l.limitWaitsLocked(now)
		s.Down = l.health.Down() || l.workers.allowedLocked() <= 0

		if l.agg != nil {
			s.Aggregates = l.agg.Len() + l.agg.Blocked()
		}
	}

	l.mu.Unlock()
	l.figures.read(&s)

	if counts {
		l.figures.readTrouble(&s.Trouble)
	}

	return s
}

// progress returns the progress of the lane, and whether the lane's health counts for the destination.
func (l *lane) progress() (p Progress, counts bool) {
	p.Name = l.dest.Name
	p.Answers = l.figures.answers()

	l.mu.Lock()
	defer l.mu.Unlock()

	rests := l.stopped || l.limitWaitsLocked(time.Now()) || l.restingLocked()
	p.Well = !rests && l.health.Available() && !l.health.Throttled()

	if l.running > 0 {
		p.Within = l.workers.chunkLimit() + watchAgain
	}

	return p, l.countsLocked()
}
