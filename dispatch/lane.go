package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/health"
	"github.com/notifyd/notifyd/internal/limit"
	"github.com/notifyd/notifyd/internal/order"
)

// LaneConfig bounds the deliveries of one destination. DefaultLaneConfig has
// the defaults; fields with a bound must be set.
type LaneConfig struct {
	// Concurrency is how many calls of the handler run at once, at least 1. Each shard has that many.
	Concurrency int
	// Batch is the largest number of events given to a BatchHandler in one
	// call, at least 1. Other handlers get one event at a time.
	Batch int
	// Timeout ends the context of one call; more than 0.
	Timeout time.Duration
	// MaxAttempts is how many failures make a dead letter, at least 1.
	MaxAttempts int
	// Backoff is how long to wait between attempts, and before an event is tried again that is
	// throttled by itself, of which no attempt counts.
	Backoff delivery.Backoff
	// LongestPause bounds how long a destination that is down is left alone
	// between two probes, at least 1 ms. The first pause is 100 ms, if that is not longer.
	LongestPause time.Duration
	// Unordered delivers the events of one aggregate in any order: none waits
	// for an earlier one that has failed. An engine that keeps no order does so anyway.
	Unordered bool
	// Total delivers all events one after the other in the order of their ids, as if they were of
	// one aggregate: one that fails holds back all others until it is delivered or dead. It
	// excludes Unordered. An engine that keeps no order ignores it.
	Total bool
	// BlockOnDead holds the later events of an aggregate back behind a dead
	// letter, until that is replayed or discarded. Otherwise they go on.
	BlockOnDead bool
	// Priority is how urgent the destination is, from MinPriority to MaxPriority;
	// 0 by default. While a queue has a backlog, the events of a destination of higher
	// priority are looked for first. It changes nothing where all destinations are alike.
	Priority int
	// Filter is asked for each event before those of its route; nil for none.
	Filter delivery.Filter
	// Rate bounds the deliveries that begin, over all relays of the tables; the zero value is no limit.
	Rate delivery.Rate
	// RateKey gives each key of it that rate; nil counts all events together. It excludes Total.
	RateKey delivery.RateKey
	// ExpiresAfter is the age from which on an event is not delivered any more; 0 for none, at least 1 ms.
	ExpiresAfter time.Duration
	// Shards is how many relays of a stream may deliver to the destination at once, up to MaxShards; 0 is 1. Each shard has the
	// aggregates that its number is the hash of, and a lane of its own. More than one excludes Total. An engine that keeps no
	// order ignores it.
	Shards int
}

// MaxShards is the largest number of shards of a destination.
const MaxShards = 64

const (
	// MinPriority is the lowest priority of a destination.
	MinPriority = -100
	// MaxPriority is the highest one.
	MaxPriority = 100
)

// DefaultLaneConfig returns the limits of a destination that sets none.
func DefaultLaneConfig() LaneConfig {
	return LaneConfig{Concurrency: 8, Batch: 100, Timeout: 30 * time.Second, MaxAttempts: 20, Backoff: delivery.DefaultBackoff(), LongestPause: health.LongestPause}
}

// validate returns every mistake in c, joined.
func (c LaneConfig) validate() error {
	var errs []error
	if c.Concurrency < 1 {
		errs = append(errs, fmt.Errorf("concurrency of %d is below 1", c.Concurrency))
	}
	if c.Batch < 1 {
		errs = append(errs, fmt.Errorf("batch of %d is below 1", c.Batch))
	}
	if c.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("timeout of %v is not above 0", c.Timeout))
	}
	if c.MaxAttempts < 1 {
		errs = append(errs, fmt.Errorf("max attempts of %d is below 1", c.MaxAttempts))
	}
	if c.Priority < MinPriority || c.Priority > MaxPriority {
		errs = append(errs, fmt.Errorf("priority of %d is not from %d to %d", c.Priority, MinPriority, MaxPriority))
	}
	if c.Total && c.Unordered {
		errs = append(errs, errors.New("total order and no order exclude each other"))
	}
	if c.Shards < 0 || c.Shards > MaxShards {
		errs = append(errs, fmt.Errorf("%d shards is not from 1 to %d", c.Shards, MaxShards))
	}
	if c.Total && c.Shards > 1 {
		errs = append(errs, errors.New("total order is that of one shard"))
	}
	if c.RateKey != nil && (c.Total || c.Rate.IsZero()) {
		errs = append(errs, errors.New("a rate key needs a rate limit, and excludes total order, in which nothing goes past an event that waits"))
	}
	if c.ExpiresAfter < 0 || c.ExpiresAfter > 0 && c.ExpiresAfter < time.Millisecond {
		errs = append(errs, fmt.Errorf("expiry after %v is below 1ms", c.ExpiresAfter))
	}
	if c.LongestPause < time.Millisecond {
		errs = append(errs, fmt.Errorf("longest pause of %v is below 1ms", c.LongestPause))
	}
	return errors.Join(append(errs, c.Backoff.Validate(), c.Rate.Validate())...)
}

const (
	// maxQueued bounds a lane's queue, whatever the lane's speed.
	maxQueued = 8192
	// chunkTime is how much work a worker takes from the queue in one go, so that workers of very
	// fast handlers do not spend their time on the queue's lock.
	chunkTime = 200 * time.Microsecond
	// maxChunk bounds a chunk by number.
	maxChunk = 64
	// slowCall ends a chunk early: the remaining jobs return to the queue.
	slowCall = time.Millisecond
	// asideWindow is how much work, in time, an engine may have in a lane for which live deliveries must
	// not wait.
	asideWindow = 2 * time.Millisecond
	// maxLine bounds how many events of one aggregate wait in memory at a slow destination. The others
	// wait as rows, so that one aggregate does not take the room of all.
	maxLine = 256
	// maxBehind bounds how many jobs wait in memory behind other events of their aggregate.
	maxBehind = maxQueued
)

// lane is the way to one destination: a bounded queue, a bounded number of workers, and the
// measured speed and health of the destination. Workers are goroutines that exist while there is
// something to do.
type lane struct {
	dest     Destination
	target   target
	log      *slog.Logger
	observer delivery.Observer
	ctx      context.Context //nolint:containedctx // ends all calls of the lane when the relay gives up on them
	onRoom   func()          // called without locks when a refused lane has room again
	outage   *outage         // shared by the lanes of the destination
	workers  sync.WaitGroup
	figures  figures // guarded by figures.mu

	mu      sync.Mutex // guards the fields below
	queue   []*job     // not started yet
	head    int        // index into queue; jobs before it are gone
	load    int        // granted and not answered
	running int        // workers
	tempo   tempo
	hungry  bool // an engine was refused since onRoom was last called
	stopped bool
	paused  bool // by a person; see pause.go
	owned   bool // an engine has the lane
	crew    crew
	health  health.Health
	timer   *time.Timer    // wakes the engine; nil before the first wait
	limiter *limit.Limiter // nil without a rate limit

	agg      *queues // keeps the events of each aggregate in order; nil where the engine keeps none
	together bool    // the handler may be given several events of an aggregate in one call
}

func newLane(name string, h delivery.Handler, cfg LaneConfig, window time.Duration, log *slog.Logger) *lane {
	l := &lane{
		dest: Destination{Name: name, LaneConfig: cfg}, target: newTarget(h, cfg), tempo: tempo{window: window, pace: startPace},
		log: log.With("destination", name), observer: noObserver{}, onRoom: func() {}, outage: &outage{},
	}
	l.crew = crew{lane: l, epoch: time.Now()}
	l.health = health.New(health.Config{Backoff: cfg.Backoff, LongestPause: cfg.LongestPause})
	if k, ok := delivery.As[delivery.PositionKeeper](h); ok && k.KeepsPosition() {
		l.dest.Position = k
	}
	if k, ok := h.(delivery.OrderKeeper); ok {
		l.together = k.KeepsOrder() && !cfg.BlockOnDead
	}
	return l
}

// fairLocked returns the room that makes a claim worthwhile: under load, a claim for every answered
// event would cost more than it brings.
func (l *lane) fairLocked() int {
	fair := l.health.Fair(l.capacityLocked())
	if l.limiter != nil {
		fair = max(1, min(fair, l.limiter.Bunch()))
	}
	return fair
}

func (l *lane) roomLocked(now time.Time) int {
	if l.stopped || l.paused || l.crew.stuck > 0 && l.crew.staffLocked() <= 0 {
		return 0
	}
	room := l.capacityLocked() - l.aheadLocked()
	if l.agg != nil {
		room = min(room, maxBehind-l.load)
	}
	if l.health.Impaired() {
		// A destination that is not well gets no more than that at once, however large its batches are.
		room = l.health.Allowed(now, min(room, maxQueued+l.load), l.load, l.aheadLocked())
	}
	if l.limiter != nil {
		room = l.limiter.Room(now, room)
	}
	switch {
	case !l.tempo.slow():
	case l.agg != nil && l.dest.Total:
		// One call at a time empties the line, however many workers are idle.
		room = min(room, max(maxLine, l.perCall())-l.load)
	default:
		// No engine waits for jobs that a worker does not begin at once: they would be withdrawn,
		// and claimed again, without end.
		room = min(room, l.idleLocked()*l.perCall()-(len(l.queue)-l.head))
	}
	return max(0, room)
}

// aheadLocked counts the jobs that a worker could begin, or has begun. Where order is kept in
// parcels, jobs that wait behind others of their aggregate do not take the room of other
// aggregates.
func (l *lane) aheadLocked() int {
	return l.load - l.waitingLocked()
}

// waitingLocked counts the jobs that wait behind others of their aggregate, and are not in the queue.
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
func (l *lane) idleLocked() int { return l.crew.staffLocked() - l.running }

// capacityLocked returns how many jobs the lane holds: at least one call for each worker left, and no
// more if the lane is slow.
func (l *lane) capacityLocked() int {
	workers := max(1, l.crew.staffLocked())
	if l.agg != nil && l.dest.Total {
		workers = 1
	}
	parallel := workers * l.perCall()
	if l.tempo.slow() {
		return parallel
	}
	if l.tempo.pace <= 0 {
		return max(maxQueued, parallel)
	}
	return min(max(int(int64(workers)*int64(l.tempo.window)/int64(l.tempo.pace)), parallel), max(maxQueued, parallel))
}

// compactLocked drops the jobs before the head of the queue. Under load the queue is never empty:
// without this its array would grow for ever, however few jobs are in it.
func (l *lane) compactLocked() {
	n := copy(l.queue, l.queue[l.head:])
	clear(l.queue[n:])
	l.queue, l.head = l.queue[:n], 0
}

// employLocked starts as many workers as the queue justifies. Each gets its first jobs here: before
// it runs, the claim may have stopped waiting and withdrawn all jobs that had not begun.
func (l *lane) employLocked() {
	per := l.perCall()
	if l.target.batch == nil && l.tempo.pace < chunkTime/maxChunk {
		per = maxChunk // another worker would only wait for the lock
	}
	wanted := min(l.crew.staffLocked(), l.running+(len(l.queue)-l.head+per-1)/per)
	started := max(0, wanted-l.running)
	l.running += started
	for range started {
		first := l.takeLocked(nil)
		if len(first) == 0 {
			l.running--
			continue
		}
		l.crew.hireLocked(first)
	}
}

// take returns a worker's next jobs, nil if the worker is not needed any more.
func (l *lane) take(w *worker, buf []*job) []*job {
	l.mu.Lock()
	buf = l.takeLocked(buf)
	call := func() {}
	if len(buf) == 0 {
		buf = nil
		l.crew.dismissLocked(w)
		l.crew.bench = append(l.crew.bench, w)
		l.queue, l.head = l.queue[:0], 0
		call = l.wakeLocked() // a slow lane has room only while a worker is missing
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
	} else if l.tempo.pace < chunkTime/2 {
		n = min(maxChunk, int(chunkTime/max(l.tempo.pace, time.Microsecond)), 1+(waiting+l.waitingLocked())/l.running)
	}
	buf = buf[:0]
	for len(buf) < n && l.head < len(l.queue) {
		j := l.queue[l.head]
		if l.aloneLocked(j) {
			if len(buf) > 0 {
				break
			}
			n = 1
		}
		l.queue[l.head] = nil
		l.head++
		buf = append(buf, j)
		q := j.Value.parcel.order
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

// aloneLocked reports whether an event is suspected or refused: it shares no call with other events.
func (l *lane) aloneLocked(j *job) bool {
	return l.health.Suspects(j.Value.event.ID) || j.Value.refused() != nil
}

// untake puts back jobs that a worker took and did not start. They need more workers now than when
// short calls were expected.
func (l *lane) untake(jobs []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	back := make([]*job, 0, len(jobs))
	for _, j := range jobs {
		if j.Cut() {
			continue
		}
		if q := j.Value.parcel.order; q == nil || q.PutBack(j) {
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
		l.employLocked()
	}
}

// finished records and passes on the outcomes of jobs that took a worker the given time together.
// Their times count from begin.
func (l *lane) finished(begin time.Time, elapsed time.Duration, jobs []*job, outs []outcome) {
	if len(jobs) > 0 {
		l.finishedBefore(begin, elapsed, jobs, outs, nil)
	}
}

// finishedBefore does so for the first jobs of a chunk, and returns the remaining ones. Jobs that a
// failed job cuts off are answered with it, and their memory may be reused at once: the worker may
// not even read whether they are cut.
func (l *lane) finishedBefore(begin time.Time, elapsed time.Duration, jobs []*job, outs []outcome, rest []*job) []*job {
	l.figures.record(begin, elapsed, jobs, outs)
	l.mu.Lock()
	l.load -= len(jobs)
	if elapsed != notBegun {
		l.tempo.observe(elapsed / time.Duration(len(jobs)))
	}
	var changed health.Change
	ends := false
	var gone []kept
	if l.health.Impaired() {
		now := time.Now()
		changed = l.heardLocked(now, begin, jobs, outs)
		l.hungry = l.hungry || changed.Closes || l.health.Recovers() // a refused request may fit now
		l.armLocked(now)
		ends = changed.Closes && l.outage.ends(l)
	}
	rests := l.restingLocked()
	for i, j := range jobs {
		if j.Value.parcel.order != nil {
			gone = l.leaveLocked(gone, j, &outs[i], rests || l.stopped)
		}
	}
	if rests {
		// Jobs that were queued earlier. No probe is among them: one is granted only while nothing
		// else is in flight.
		gone = append(gone, l.emptyLocked()...)
		l.health.Finished(spoiled(outs))
	} else {
		l.employLocked()
	}
	rest = slices.DeleteFunc(rest, func(j *job) bool { return j.Cut() })
	call := l.wakeLocked()
	// Under the lock, and last of all: see Parcel.answer; an answered parcel may be filled with
	// other deliveries.
	answerParcels(jobs, outs)
	l.answerKept(gone)
	l.mu.Unlock()
	l.tell(changed, ends)
	call()
	return rest
}

// leaveLocked takes a job with its outcome out of the queue of its aggregate, and appends to gone the jobs that get a verdict along
// with it. rests says that the lane begins no job.
func (l *lane) leaveLocked(gone []kept, j *job, out *outcome, rests bool) []kept {
	how, v := order.Failed, VerdictParked
	switch {
	case out.verdict.Settles() || out.verdict == VerdictDead && !l.dest.BlockOnDead:
		how, v = order.Done, VerdictReleased
	case out.verdict == VerdictReleased:
		how, v = order.Undone, VerdictReleased
	}
	behind, next, with := j.Value.parcel.order.Leave(j, how, rests)
	out.behind = behind
	if next != nil {
		l.queue = append(l.queue, next)
	}
	if len(with) == 0 {
		return gone
	}
	return l.keepLocked(gone, with, v)
}

// heardLocked reports the answers to jobs to the health of the destination. begin is when the first of their calls began.
func (l *lane) heardLocked(now, begin time.Time, jobs []*job, outs []outcome) health.Change {
	var all health.Answers
	for i := range outs {
		switch out := &outs[i]; {
		case out.throttled:
			all.Throttled++
		case out.answered():
			all.Answered++
			l.health.Answered(jobs[i].Value.event.ID, begin.Add(out.from))
		case out.silent:
			l.health.Counted(now, jobs[i].Value.event.ID, out.delay, out.verdict == VerdictDead)
		}
	}
	return l.health.Heard(now, begin, all, l.capacityLocked(), min(l.load+len(jobs), l.running*l.perCall()))
}

// spoiled counts the answers that slowed the lane down: until they are recorded, queued jobs are returned.
func spoiled(outs []outcome) (n int) {
	for i := range outs {
		if outs[i].throttled && outs[i].verdict == VerdictReleased {
			n++
		}
	}
	return n
}

// busy reports whether a worker is at work.
func (l *lane) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running+l.crew.stuck > 0
}

// asideLocked returns how many deliveries may be in the lane that live ones must not wait for.
func (l *lane) asideLocked() int {
	half := l.capacityLocked() / 2
	if l.tempo.pace <= 0 {
		return max(1, half)
	}
	workers := max(1, l.crew.staffLocked())
	quick := int(int64(workers) * int64(asideWindow) / int64(l.tempo.pace))
	return max(1, min(half, max(workers*l.perCall()/2, quick)))
}

// halted reports whether a worker must put back the jobs that it has not begun.
func (l *lane) halted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.restingLocked()
}

// refuseLocked notes that an engine was refused the capacity that it requested.
func (l *lane) refuseLocked(now time.Time) {
	l.hungry = true
	if !l.health.Impaired() && l.limiter == nil {
		return
	}
	// An engine requests capacity before it knows whether there are events: only handed-over deliveries count as pressure.
	if l.agg == nil {
		l.health.Press(l.aheadLocked())
	}
	l.armLocked(now)
}

// wakeLocked returns the function to call after unlocking: onRoom if an engine was refused and a fair part of the lane is free
// again.
func (l *lane) wakeLocked() func() {
	if !l.hungry {
		return func() {}
	}
	if now := time.Now(); l.roomLocked(now) < l.fairLocked() {
		if l.limiter != nil {
			l.armLocked(now) // the limit has closed since the refusal, and answers do not open it
		}
		return func() {}
	}
	l.hungry = false
	return l.onRoom
}

// armLocked sets the timer for changes that time alone brings: those of the health, and a delivery's turn. Changes that
// depend on answers are checked with each answer.
func (l *lane) armLocked(now time.Time) {
	if l.stopped {
		return
	}
	wanted := 0
	if l.hungry {
		wanted = l.fairLocked()
	}
	next := l.health.Next(now, wanted)
	if l.hungry && l.limiter != nil {
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

// tick handles the changes that time has brought.
func (l *lane) tick() {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return
	}
	now := time.Now()
	closes := l.health.Calm(now)
	ends := closes && l.outage.ends(l)
	l.hungry = l.hungry || closes
	call := l.wakeLocked()
	l.armLocked(now)
	l.mu.Unlock()
	l.tell(health.Change{Closes: closes}, ends)
	call()
}

// tell logs and reports a change of the health. ends says that all lanes of the destination are available.
func (l *lane) tell(c health.Change, ends bool) {
	if c.Ramps {
		l.log.Info("destination answers a probe; its events are let through step by step")
	}
	if c.Closes {
		l.available(ends)
	}
	if c.Eases {
		l.log.Info("destination is not throttled any more")
	}
}

// available reports the end of an outage, unless another lane of the destination is still down.
func (l *lane) available(ends bool) {
	if !ends {
		l.log.Debug("destination answers again for this shard")
		return
	}
	l.log.Info("destination answers again")
	l.observer.Observe(delivery.Incident{Kind: delivery.IncidentAvailable, Time: time.Now(), Destination: l.dest.Name})
}

// returnLocked returns unused tokens to the pacer, and returns the function to call after unlocking.
func (l *lane) returnLocked(n int) func() {
	l.health.Take(-n)
	return l.wakeLocked()
}

// bit returns the bit of the lane in an outage. MaxShards bits fit.
func (l *lane) bit() uint64 { return 1 << l.dest.Part }

// countsLocked reports whether the health of the lane counts for the destination. A relay that does not hold a shard knows nothing
// about it.
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
