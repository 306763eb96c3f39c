package wake

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// echoTrigger notifies its own relay, like all others, that it suppresses the trigger.
type echoTrigger struct {
	notified func()
	silences atomic.Int32
}

func (b *echoTrigger) Suppress() {
	b.silences.Add(1)
	go func() { // as the notification comes: a moment later
		time.Sleep(time.Millisecond) //nolint:forbidigo // of a synctest bubble
		b.notified()
	}()
}

func (*echoTrigger) Release(context.Context) (uint64, error) { return 0, nil }

func (*echoTrigger) Queued(context.Context) (int, error) { return 0, nil }

// runMachine runs a machine until stop, which waits for its end.
func runMachine(t *testing.T) (trigger *echoTrigger, m *Machine, stop func()) {
	t.Helper()
	trigger = &echoTrigger{}
	m = New(Options{Poll: time.Second, Trigger: trigger, Settle: endedAtOnce, Changed: func(State) {}, Report: failure(t)})
	trigger.notified = m.Poke
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); m.Run(ctx) }()
	synctest.Wait()
	return trigger, m, func() { cancel(); <-ended }
}

func endedAtOnce(uint64) func(context.Context) (Writers, error) {
	return func(context.Context) (Writers, error) { return Ended, nil }
}

// failure fails the test where an error is reported.
func failure(t *testing.T) func(error) {
	t.Helper()
	return func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestListensAgain: a relay returns to listening although it receives notifications that it has caused.
func TestListensAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		trigger, m, stop := runMachine(t)
		if m.State() != Listening {
			t.Errorf("at the start: %v", m.State())
		}
		for n := range int32(3) {
			m.Poke()
			synctest.Wait()
			if m.State() != Polling {
				t.Errorf("woken up: %v", m.State())
			}
			time.Sleep(2 * pollingFor) //nolint:forbidigo // of a synctest bubble
			synctest.Wait()
			if m.State() != Listening || trigger.silences.Load() != n+1 {
				t.Errorf("%v, fell silent %d times", m.State(), trigger.silences.Load())
			}
		}
		stop()
	})
}

// TestOverSlowBacklog: during a slowly read backlog, the trigger is not suppressed and released
// again all the time; when it is gone, events found at once wake the relay as before.
func TestOverSlowBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		trigger, m, stop := runMachine(t)
		for range 100 {
			m.Saw(20, true, false)
			time.Sleep(pollingFor / 2) //nolint:forbidigo // of a synctest bubble
		}
		if n := trigger.silences.Load(); n != 1 || m.State() != Listening {
			t.Errorf("fell silent %d times, and is %v", n, m.State())
		}
		time.Sleep(2 * checkEvery) //nolint:forbidigo // of a synctest bubble
		m.Saw(20, true, false)
		synctest.Wait()
		if n := trigger.silences.Load(); n != 2 || m.State() != Polling {
			t.Errorf("fell silent %d times, and is %v", n, m.State())
		}
		time.Sleep(2 * pollingFor) //nolint:forbidigo // of a synctest bubble
		for range 20 {             // it goes faster again
			m.Saw(200, true, false)
			time.Sleep(checkEvery / 5) //nolint:forbidigo // of a synctest bubble
		}
		if n := trigger.silences.Load(); n > 3 || m.State() != Polling {
			t.Errorf("fell silent %d times, and is %v", n, m.State())
		}
		stop()
	})
}

// TestBreaks: a relay with more to read does not settle because of a moment without
// reads, and if the moment is long it does not wake up for each read after it.
func TestBreaks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		trigger, m, stop := runMachine(t)
		m.Behind(1)
		for range 20 {
			m.Saw(1000, true, false)
			time.Sleep(backlogFor / 2) //nolint:forbidigo // of a synctest bubble
		}
		if n := trigger.silences.Load(); n != 1 || m.State() != Polling {
			t.Errorf("through breaks it fell silent %d times, and is %v", n, m.State())
		}
		for range 3 { // a destination that hangs
			time.Sleep(2 * backlogFor) //nolint:forbidigo // of a synctest bubble
			m.Saw(20, true, false)
		}
		if n := trigger.silences.Load(); n != 1 || m.State() != Listening {
			t.Errorf("of a backlog that stands it fell silent %d times, and is %v", n, m.State())
		}
		m.Behind(-1)
		time.Sleep(2 * checkEvery) //nolint:forbidigo // of a synctest bubble
		m.Saw(20, true, false)
		synctest.Wait()
		if n := trigger.silences.Load(); n != 2 || m.State() != Polling {
			t.Errorf("after the backlog it fell silent %d times, and is %v", n, m.State())
		}
		time.Sleep(2 * pollingFor) //nolint:forbidigo // of a synctest bubble
		stop()
	})
}

// stage is the environment of a machine that settles next to other relays.
type stage struct {
	*Machine

	trigger      echoTrigger
	reads, asked atomic.Int64
	silent       atomic.Bool // another relay suppresses the trigger
	open         atomic.Bool // a writer that was silent has not ended
}

// newStage runs a machine until the end of the test.
func newStage(t *testing.T, poll time.Duration, silent bool) *stage {
	t.Helper()
	s := &stage{}
	s.silent.Store(silent)
	s.Machine = New(Options{Poll: poll, Trigger: &s.trigger, Settle: s.settle, Changed: func(State) { s.reads.Add(1) }, Report: failure(t)})
	s.trigger.notified = s.Poke
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return s
}

func (s *stage) settle(uint64) func(context.Context) (Writers, error) {
	return func(context.Context) (Writers, error) {
		s.asked.Add(1)
		switch {
		case s.silent.Load():
			return Suppressed, nil
		case s.open.Load():
			return Open, nil
		default:
			return Ended, nil
		}
	}
}

// TestBesideAnother: while another relay suppresses the trigger, this one reads often, because
// no writer notifies. It listens once the writers that were silent because of the other relay have
// ended: those that hold the lock after that relay has released the trigger.
func TestBesideAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, time.Hour, true)
		time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		if n, least := s.reads.Load(), int64(time.Second/fastPoll); n < least || s.State() != Settling {
			t.Errorf("%d reads within a second of silence, want %d at least; it is %v", n, least, s.State())
		}
		// It writes silently, and has not committed when the other relay settles.
		s.open.Store(true)
		time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		s.silent.Store(false)
		time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		if s.State() != Settling || s.asked.Load() == 0 {
			t.Errorf("beside one that was silent it is %v after %d looks", s.State(), s.asked.Load())
		}
		before := s.reads.Load()
		s.open.Store(false)
		time.Sleep(4 * time.Second) //nolint:forbidigo // of a synctest bubble
		if s.State() != Listening || s.reads.Load() == before {
			t.Errorf("when that has ended it is %v, and has read %d times", s.State(), s.reads.Load()-before)
		}
	})
}

// TestWokenAtItsStart: a relay is woken while it searches for silent writers at its start. It searches again, and reads
// the events that they have committed without a notification.
func TestWokenAtItsStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, time.Hour, false)
		s.open.Store(true)
		synctest.Wait()
		s.Poke()
		time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		if s.State() != Settling {
			t.Errorf("beside the writer it is %v", s.State())
		}
		before := s.reads.Load()
		s.open.Store(false)
		time.Sleep(4 * time.Second) //nolint:forbidigo // of a synctest bubble
		if s.State() != Listening || s.reads.Load() == before {
			t.Errorf("when the writer has ended it is %v, and has read %d times", s.State(), s.reads.Load()-before)
		}
	})
}

// TestBesideAnOpenWriter: a relay that left polling during a slow backlog, and waits for a
// writer whose transaction stays open, polls again when there is much to read.
func TestBesideAnOpenWriter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, time.Second, false)
		synctest.Wait()
		s.open.Store(true)
		s.Behind(1)
		for range 2 * backlogFor / pollingFor { // a destination that is slow
			s.Saw(20, true, false)
			time.Sleep(pollingFor) //nolint:forbidigo // of a synctest bubble
		}
		if n := s.trigger.silences.Load(); n != 1 || s.State() != Settling {
			t.Errorf("over a slow backlog it fell silent %d times, and is %v", n, s.State())
		}
		for range 10 {
			s.Saw(200, true, false)
			time.Sleep(pollingFor) //nolint:forbidigo // of a synctest bubble
		}
		if n := s.trigger.silences.Load(); n != 2 || s.State() != Polling {
			t.Errorf("over a fast one it fell silent %d times, and is %v", n, s.State())
		}
	})
}

// TestRateIsOfOneReader: the rate above which a relay polls is per reader.
func TestRateIsOfOneReader(t *testing.T) {
	t.Parallel()
	m := New(Options{})
	for _, c := range []struct {
		readers int
		want    float64
	}{{1, idleRate}, {0, idleRate}, {2, idleRate / 2}} {
		m.Readers(c.readers)
		if got := m.rate(idleRate, time.Second); got != c.want {
			t.Errorf("%v events a second for each of %d readers, want %v", got, c.readers, c.want)
		}
	}
}

// TestFailingTrigger: an error of the trigger is reported, and the relay releases the trigger again until it succeeds.
// One success is reported: a later step proves nothing about the database.
func TestFailingTrigger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		trigger := &failingTrigger{fails: 3}
		var reported []error
		m := New(Options{Poll: time.Second, Trigger: trigger, Changed: func(State) {}, Report: func(err error) { reported = append(reported, err) }})
		var got uint64
		m.Settle = func(xid uint64) func(context.Context) (Writers, error) {
			got = xid
			steps := 0
			return func(context.Context) (Writers, error) { // its steps ask no database
				if steps++; steps < 5 {
					return Open, nil
				}
				return Ended, nil
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); m.Run(ctx) }()
		time.Sleep(time.Minute) //nolint:forbidigo // of a synctest bubble
		cancel()
		<-ended
		if m.State() != Listening || got != 42 {
			t.Errorf("it is %v, and settles with the id %d", m.State(), got)
		}
		if len(reported) != 4 || !errors.Is(reported[2], errTrigger) || reported[3] != nil {
			t.Errorf("reported %v, want three errors, and one success after them", reported)
		}
	})
}

var errTrigger = errors.New("the database is away")

type failingTrigger struct {
	echoTrigger

	fails int
}

func (b *failingTrigger) Release(context.Context) (uint64, error) {
	if b.fails--; b.fails >= 0 {
		return 0, errTrigger
	}
	return 42, nil
}

// queueingTrigger has writers that wait for one another.
type queueingTrigger struct{ echoTrigger }

func (*queueingTrigger) Queued(context.Context) (int, error) { return queueLength, nil }

// TestQueuedWriters: writers that queue to notify make the relay poll, if they notify often enough. It keeps polling only
// while they achieve more than before.
func TestQueuedWriters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		notified, found int // for each checkEvery
		silences        int32
	}{
		"seldom":          {2, 20, 0},
		"more in silence": {10, 70, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				trigger := &queueingTrigger{}
				trigger.notified = func() {}
				m := New(Options{Poll: time.Second, Trigger: trigger, Settle: endedAtOnce, Changed: func(State) {}, Report: failure(t)})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); m.Run(ctx) }()
				for range 20 {
					for range c.notified {
						m.Notified()
					}
					for range 10 {
						m.Saw(c.found/10, false, true)
						time.Sleep(checkEvery / 10) //nolint:forbidigo // of a synctest bubble
					}
				}
				if n := trigger.silences.Load(); n != c.silences {
					t.Errorf("the trigger was made silent %d times, want %d", n, c.silences)
				}
				cancel()
				<-ended
				time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
			})
		})
	}
}
