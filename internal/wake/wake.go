package wake

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// Pressure is how many waiting events, or events in one read, make a relay poll. It exceeds the number of
	// connections that read: a handful of events is not a backlog.
	Pressure = 8
	// pollingFor is the period over which a polling relay counts events before it decides to poll on or to settle.
	pollingFor = 20 * time.Millisecond
	// backlogFor is that period while there is a backlog: a moment without any read is then a pause of the machine.
	backlogFor = 250 * time.Millisecond
	// PollingPause separates the reads of a polling relay that has caught up: empty reads would cost the writers
	// processor time.
	PollingPause = 500 * time.Microsecond
	// idleRate is the rate in events per second that a listening relay can read one by one, with less delay than a
	// polling one.
	idleRate = 2500
	// silencePays is the factor by which silence must increase the rate of queued writers to be worthwhile.
	suppressPays = 1.2
	// settlingFirst is the first pause between the reads of a settling relay. Each pause doubles, up to settlingMost:
	// events of a silent writer wait for a read.
	settlingFirst = time.Millisecond
	settlingMost  = time.Second
	// fastPoll is the poll interval while polls find unannounced events. It applies until fastPollFor after the last
	// such event.
	fastPoll    = 20 * time.Millisecond
	fastPollFor = 5 * time.Second
	// checkEvery is how often a listening relay counts events. From checkRate notifications per second it also checks
	// whether writers queue up to notify. queueLength writers make a queue if they still wait after queueAgain: two
	// commits may coincide.
	checkEvery  = 50 * time.Millisecond
	checkRate   = 100
	queueLength = 2
	queueAgain  = 5 * time.Millisecond
)

// State is how a relay learns of new events.
type State uint8

// The states: see the package comment.
const (
	Listening State = iota
	Settling
	Polling
)

// String returns the label of the state in figures.
func (s State) String() string {
	switch s {
	case Listening:
		return "listening"
	case Settling:
		return "settling"
	case Polling:
		return "polling"
	default:
		return "unknown"
	}
}

// Trigger suppresses the notify trigger, and releases it.
type Trigger interface {
	// Suppress requests suppression and returns at once. The lock may come late, or never, which only slows writers down.
	Suppress()
	// Release ends the suppression, and returns a transaction id: every silent writer has a smaller one.
	Release(ctx context.Context) (xid uint64, err error)
	// Queued returns how many writers wait for one another to notify.
	Queued(ctx context.Context) (writers int, err error)
}

// Writers is the known state of the writers that were silent.
type Writers uint8

// The possible states of silent writers.
const (
	Open       Writers = iota // some may not have ended
	Suppressed                // another relay suppresses the trigger, so there may be new ones
	Ended                     // all have ended
)

// Options configure a [Machine].
type Options struct {
	// Poll is the longest time between two reads of a listening relay.
	Poll time.Duration
	// Trigger is nil where the trigger always notifies, or never does.
	Trigger Trigger
	// Settle begins to wait for silent writers. The trigger is released, and Release returned xid. The returned function is called
	// until it returns Ended. Its error is reported, and the function is called again.
	Settle func(xid uint64) func(context.Context) (Writers, error)
	// Changed makes all readers read now, in that state. It does not wait for them.
	Changed func(State)
	// Report gets the errors of Release and Settle, and nil once they succeed again. A step may succeed without a query, so
	// a success that follows no error proves nothing about the database, and is not reported.
	Report func(error)
}

// Machine is the state of a relay. Readers report the events that they find, and ask how long to wait. Only the
// goroutine of [Machine.Run] uses the trigger, so no reader waits for it.
type Machine struct {
	Options
	state         atomic.Int32
	readers       atomic.Int64  // the readers that share the events
	behind        atomic.Int64  // readers that have not caught up
	found         atomic.Int64  // events found by all readers since the last check
	notified      atomic.Int64  // notifications since the last check
	mustPoll      chan struct{} // capacity 1: poll
	blind         atomic.Bool   // notifications may be lost
	fast          atomic.Int64  // end of fast polling, in unix ns
	ignoreBacklog atomic.Bool   // it left polling during a backlog: reading the backlog must not make it poll

	checked time.Time // time of the last check; used only by Run
	failing bool      // the last step has failed; used only by Run
}

// New returns a machine for one reader, which settles once Run runs. Options may be changed until then.
func New(o Options) *Machine {
	m := &Machine{Options: o, mustPoll: make(chan struct{}, 1)}
	m.state.Store(int32(Settling))
	m.readers.Store(1)
	return m
}

// State returns the state.
func (m *Machine) State() State { return State(m.state.Load()) } //nolint:gosec // three values

// Poke makes the relay poll. It never blocks. It does not extend the polling of a relay that already polls: that relay
// also receives its own notification that it polls, and would never stop.
func (m *Machine) Poke() {
	if m.State() == Polling {
		return
	}
	select {
	case m.mustPoll <- struct{}{}:
	default:
	}
}

// Notified counts a notification of an event. It never blocks.
func (m *Machine) Notified() { m.notified.Add(1) }

// Blind records whether notifications may be lost.
func (m *Machine) Blind(is bool) { m.blind.Store(is) }

// Readers records how many readers share the events.
func (m *Machine) Readers(n int) { m.readers.Store(int64(n)) }

// Behind adds to the number of readers that have not caught up.
func (m *Machine) Behind(delta int) { m.behind.Add(int64(delta)) }

// Saw records the result of one read: the number of events, whether there may be more, and whether a notification had
// announced them.
func (m *Machine) Saw(n int, full, announced bool) {
	if n == 0 {
		return
	}

	m.found.Add(int64(n))
	if m.State() == Polling {
		return
	}
	if (full || n >= Pressure) && !m.ignoreBacklog.Load() {
		m.Poke()
	}
	if !announced {
		m.fast.Store(time.Now().Add(fastPollFor).UnixNano())
	}
}

// Pause returns how long a reader that has caught up waits until it reads again.
func (m *Machine) Pause() time.Duration {
	if m.State() == Polling {
		return PollingPause
	}
	return m.PollEvery()
}

// PollEvery returns the poll interval, which is short while polls find unannounced events.
func (m *Machine) PollEvery() time.Duration {
	if m.blind.Load() || time.Now().UnixNano() < m.fast.Load() {
		return min(fastPoll, m.Poll)
	}
	return m.Poll
}

// Run works until ctx ends.
func (m *Machine) Run(ctx context.Context) {
	floor, again := m.settle(ctx)
	for ctx.Err() == nil {
		if again {
			m.poll(ctx, floor)
			floor, again = m.settle(ctx)
		} else {
			floor, again = m.listen(ctx)
		}
	}
}

func (m *Machine) become(s State) {
	m.state.Store(int32(s))
	m.Changed(s)
}

// listen waits until the relay must poll, and returns the rate below which polling no longer pays. It checks regularly
// whether writers queue up to notify: such writers commit one after the other.
func (m *Machine) listen(ctx context.Context) (floor float64, poll bool) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()

	for {
		select {
		case <-ctx.Done():
			return 0, false
		case <-m.mustPoll:
			return idleRate, true
		case <-tick.C:
			if floor, poll := m.check(ctx); poll {
				return floor, true
			}
		}
	}
}

// check reports whether the relay must poll, because many events are found, or writers queue up to notify.
func (m *Machine) check(ctx context.Context) (floor float64, poll bool) {
	now := time.Now()
	over := now.Sub(m.checked)
	m.checked = now
	if m.busy(over) {
		return idleRate, true
	}

	rate := float64(m.notified.Swap(0)) / over.Seconds()
	return rate * suppressPays, rate >= checkRate && m.queued(ctx)
}

// busy reports whether the events found in that time make the relay poll. When a backlog is gone and no event was
// found, the backlog no longer stops the relay from polling.
func (m *Machine) busy(over time.Duration) bool {
	found := m.found.Swap(0)
	if found == 0 && m.behind.Load() == 0 {
		m.ignoreBacklog.Store(false)
	}
	return m.rate(found, over) >= idleRate
}

// rate returns how many events a reader has found per second.
func (m *Machine) rate(found int64, over time.Duration) float64 {
	return float64(found) / float64(max(1, m.readers.Load())) / over.Seconds()
}

func (m *Machine) queued(ctx context.Context) bool {
	if m.Trigger == nil {
		return false
	}

	for range 2 {
		if n, err := m.Trigger.Queued(ctx); err != nil || n < queueLength {
			return false // the trigger reports its own connection errors
		}
		sleep(ctx, queueAgain)
	}

	return true
}

// poll suppresses the trigger until the rate of events is below floor.
func (m *Machine) poll(ctx context.Context, floor float64) {
	m.become(Polling)
	if m.Trigger != nil {
		m.Trigger.Suppress()
	}

	m.found.Store(0)

	for began, found := time.Now(), int64(0); ; {
		sleep(ctx, pollingFor)

		found += m.found.Swap(0)
		over := time.Since(began)
		behind := m.behind.Load() > 0
		switch {
		case ctx.Err() == nil && m.rate(found, over) >= floor:
			began = time.Now()
			found = 0
		case ctx.Err() == nil && behind && over < backlogFor:
		default:
			// Without this, the backlog of a slow destination would silence the trigger and release it again and again.
			m.ignoreBacklog.Store(behind || found > 0)
			return
		}
	}
}

// settle lets the trigger notify, and waits for silent writers. It reports whether the relay must poll again before
// these have ended.
func (m *Machine) settle(ctx context.Context) (floor float64, poll bool) {
	m.become(Settling)

	tick := time.NewTicker(checkEvery)
	defer tick.Stop()

	m.checked = time.Now()
	m.notified.Store(0)

	pause := settlingFirst
	var ended func(context.Context) (Writers, error)
	for ctx.Err() == nil {
		writers, err := m.step(ctx, &ended)
		if (err != nil || m.failing) && ctx.Err() == nil {
			m.failing = err != nil
			m.Report(err)
		}

		if writers == Ended {
			m.become(Listening) // all read once more
			return 0, false
		}

		if floor, poll := m.rest(ctx, pause, tick.C); poll {
			return floor, true
		}

		pause = min(2*pause, m.Poll, settlingMost)
		if writers == Suppressed {
			pause = min(pause, fastPoll) // no writer notifies this relay
		}

		m.Changed(Settling)
	}

	return 0, false
}

// step is one step of settling: it releases the trigger, once, and then checks the silent writers.
func (m *Machine) step(ctx context.Context, ended *func(context.Context) (Writers, error)) (Writers, error) {
	if *ended == nil {
		var xid uint64
		if m.Trigger != nil {
			var err error
			xid, err = m.Trigger.Release(ctx)
			if err != nil {
				return Open, err
			}
		}

		*ended = m.Settle(xid)
	}
	return (*ended)(ctx)
}

// rest pauses between the reads of a settling relay. It reports whether the relay must poll, which ends the pause: the
// transaction of a silent writer may last.
func (m *Machine) rest(ctx context.Context, pause time.Duration, check <-chan time.Time) (floor float64, poll bool) {
	timer := time.NewTimer(pause)
	defer timer.Stop()

	for {
		select {
		case <-ctx.Done():
			return 0, false
		case <-timer.C:
			return 0, false
		case <-m.mustPoll:
			return idleRate, true
		case <-check:
			if floor, poll := m.check(ctx); poll {
				return floor, true
			}
		}
	}
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
