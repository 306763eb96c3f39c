package stream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/tail"
)

const (
	// pressure is how many events one read finds before the relay switches to reading without
	// notifications.
	pressure = 8
	// awakeFor is the period over which an awake relay counts events, before it stays awake or
	// falls asleep.
	awakeFor = 20 * time.Millisecond
	// backlogFor is that period while there is a backlog: a moment without any read is then a pause
	// of the machine.
	backlogFor = 250 * time.Millisecond
	// awakePause separates the reads of an awake relay that has caught up.
	awakePause = 500 * time.Microsecond
	// idleRate is the number of events per second that a sleeping relay reads one by one as well,
	// and with less delay.
	idleRate = 2500
	// silencePays is how much more writers must get done in silence for silence to pay, if they had
	// queued up for the bell.
	silencePays = 1.2
	// drowsyFirst is the first pause between the reads of a relay that falls asleep;
	// each pause is twice as long as the one before.
	drowsyFirst = time.Millisecond
	// fastPoll is the poll interval while polls find unannounced events, and fastPollFor how long
	// it stays so after the last such event.
	fastPoll    = 20 * time.Millisecond
	fastPollFor = 5 * time.Second
	// watchEvery is how often a relay checks whether writers queue up to ring, from watchRate
	// events per second on. queueLength of them make a queue if they are still there after
	// queueAgain: two commits may always coincide.
	watchEvery  = 50 * time.Millisecond
	watchRate   = 100
	queueLength = 2
	queueAgain  = 5 * time.Millisecond
)

// Holders is implemented by an [engine.Bell] that can tell whether another relay keeps it silent.
type Holders interface {
	Silenced(ctx context.Context) (bool, error)
}

// mode is how awake the relay is.
type mode uint8

const (
	asleep mode = iota // the bell names ids; the poll is the floor
	awake              // reads without a break; the bell is silent
	drowsy             // the bell rings again, but silent writers may not have committed
)

// String returns the label of the mode, as in figures.
func (m mode) String() string {
	switch m {
	case asleep:
		return "asleep"
	case awake:
		return "awake"
	case drowsy:
		return "drowsy"
	default:
		return "unknown"
	}
}

// vigil decides how awake the relay is. Units report to it what they find, and get from it how long
// to wait. The goroutine of run operates the bell.
//
// A relay that falls asleep lets the bell ring, and then finds the holders of the lock of the
// sequence: a silent writer has drawn an id before, and holds the lock until the end of its
// transaction. When none of them is left, one more read has seen all that they wrote.
type vigil struct {
	poll    time.Duration
	bell    engine.Bell                                                 // nil: the relay polls
	look    func(ctx context.Context, after uint64) (*tail.Look, error) // nil: it is too early for one
	mark    func() uint64                                               // the time, as looks count it
	wakeAll func()
	report  func(error)

	part   *engine.Part
	units  atomic.Int64  // units of destinations that this relay owns
	behind atomic.Int64  // units that have not caught up
	found  atomic.Int64  // rows found by all units since the last check
	heard  atomic.Int64  // notifications since then
	rise   chan struct{} // capacity 1: be awake
	blind  atomic.Bool   // notifications are not heard
	fast   atomic.Int64  // until when to poll fast, in unix ns
	slow   atomic.Bool   // it fell asleep during a backlog: reading that is not a reason to be awake

	asked time.Time // time of the last call of busy; used by run only

	mu   sync.Mutex
	mode mode
}

func newVigil(poll time.Duration, bell engine.Bell) *vigil {
	return &vigil{poll: poll, bell: bell, rise: make(chan struct{}, 1)}
}

// wake makes the relay awake. It never blocks. It does not prolong the time of a relay that is
// already awake: that hears its own notification that it is awake, as others do, and would never
// sleep again.
func (v *vigil) wake() {
	if v.is() == awake {
		return
	}
	select {
	case v.rise <- struct{}{}:
	default:
	}
}

func (v *vigil) is() mode {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mode
}

func (v *vigil) become(m mode) {
	v.mu.Lock()
	v.mode = m
	v.mu.Unlock()
	v.wakeAll()
}

// saw records the result of one read of a unit.
func (v *vigil) saw(n int, full, announced bool) { //nolint:revive // what the read has shown
	if n == 0 {
		return
	}
	v.found.Add(int64(n))
	switch v.is() {
	case awake:
	case drowsy, asleep:
		if (full || n >= pressure) && !v.slow.Load() {
			v.wake()
		}
		if !announced {
			v.fast.Store(time.Now().Add(fastPollFor).UnixNano())
		}
	}
}

// pause returns how long a unit that has caught up waits until it reads again.
func (v *vigil) pause() time.Duration {
	if v.is() == awake {
		return awakePause
	}
	if v.blind.Load() || time.Now().UnixNano() < v.fast.Load() {
		return min(fastPoll, v.poll)
	}
	return v.poll
}

// run works until ctx ends. It begins as if the relay had been awake: writers may have been silent
// because of a dead relay.
func (v *vigil) run(ctx context.Context) {
	floor, ok := v.fallAsleep(ctx)
	for ctx.Err() == nil {
		if ok {
			v.stayAwake(ctx, floor)
			floor, ok = v.fallAsleep(ctx)
		} else {
			floor, ok = v.sleep(ctx)
		}
	}
}

// sleep waits until the relay must be awake, and checks now and then whether writers queue up to
// ring: they then commit one after the other.
func (v *vigil) sleep(ctx context.Context) (floor float64, ok bool) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		v.part.Begin()
		select {
		case <-ctx.Done():
			return 0, false
		case <-v.rise:
			return idleRate, true
		case <-tick.C:
			if v.busy() {
				return idleRate, true
			}
			rate := float64(v.heard.Swap(0)) / watchEvery.Seconds()
			if rate >= watchRate && v.queued(ctx) {
				return rate * silencePays, true
			}
		}
	}
}

// busy reports whether so much was found since its last call that the relay must be awake. A
// backlog that is gone, and of which nothing was found, no longer keeps the relay asleep.
func (v *vigil) busy() bool {
	now, found := time.Now(), v.found.Swap(0)
	over := now.Sub(v.asked)
	v.asked = now
	if found == 0 && v.behind.Load() == 0 {
		v.slow.Store(false)
	}
	return v.rate(found, over) >= idleRate
}

// rate returns how many rows a unit has found per second.
func (v *vigil) rate(found int64, over time.Duration) float64 {
	return float64(found) / float64(max(1, v.units.Load())) / over.Seconds()
}

func (v *vigil) queued(ctx context.Context) bool {
	if v.bell == nil {
		return false
	}
	for range 2 {
		if n, err := v.bell.Queued(ctx); err != nil || n < queueLength {
			return false // the bell reports its own connection errors
		}
		sleep(ctx, queueAgain)
	}
	return true
}

// stayAwake keeps the bell silent until the rate of events is low.
func (v *vigil) stayAwake(ctx context.Context, floor float64) {
	v.become(awake)
	if v.bell != nil {
		v.bell.Silence()
	}
	v.found.Store(0)
	for began, found := time.Now(), int64(0); ; {
		v.part.Begin()
		sleep(ctx, awakeFor)
		found += v.found.Swap(0)
		over, behind := time.Since(began), v.behind.Load() > 0
		switch {
		case ctx.Err() == nil && v.rate(found, over) >= floor:
			began, found = time.Now(), 0
		case ctx.Err() == nil && behind && over < backlogFor:
		default:
			// Otherwise a slow destination would make the bell fall silent and ring again for as
			// long as its backlog lasts.
			v.slow.Store(behind || found > 0)
			return
		}
	}
}
