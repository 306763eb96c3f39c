package wake

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// echoBell is a bell whose relay hears, like all others, that it has fallen silent.
type echoBell struct {
	heard    func()
	silences atomic.Int32
}

func (b *echoBell) Silence() {
	b.silences.Add(1)
	go func() { // as the notification comes: a moment later
		time.Sleep(time.Millisecond) //nolint:forbidigo // of a synctest bubble
		b.heard()
	}()
}

func (*echoBell) Ring(context.Context) (uint64, error) { return 0, nil }

func (*echoBell) Queued(context.Context) (int, error) { return 0, nil }

// runMachine runs a machine until stop, which waits for its end.
func runMachine(t *testing.T) (bell *echoBell, m *Machine, stop func()) {
	t.Helper()
	bell = &echoBell{}
	m = New(Options{Poll: time.Second, Bell: bell, Settle: endedAtOnce, Changed: func(State) {}, Report: failure(t)})
	bell.heard = m.Poke
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); m.Run(ctx) }()
	synctest.Wait()
	return bell, m, func() { cancel(); <-ended }
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

// TestListensAgain: a relay that hears itself poll does not go on polling.
func TestListensAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bell, m, stop := runMachine(t)
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
			if m.State() != Listening || bell.silences.Load() != n+1 {
				t.Errorf("%v, fell silent %d times", m.State(), bell.silences.Load())
			}
		}
		stop()
	})
}

// TestOverSlowBacklog: during a slowly read backlog, the bell does not fall silent and ring
// again all the time; when it is gone, events found at once wake the relay as before.
func TestOverSlowBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bell, m, stop := runMachine(t)
		for range 100 {
			m.Saw(20, true, false)
			time.Sleep(pollingFor / 2) //nolint:forbidigo // of a synctest bubble
		}
		if n := bell.silences.Load(); n != 1 || m.State() != Listening {
			t.Errorf("fell silent %d times, and is %v", n, m.State())
		}
		time.Sleep(2 * checkEvery) //nolint:forbidigo // of a synctest bubble
		m.Saw(20, true, false)
		synctest.Wait()
		if n := bell.silences.Load(); n != 2 || m.State() != Polling {
			t.Errorf("fell silent %d times, and is %v", n, m.State())
		}
		time.Sleep(2 * pollingFor) //nolint:forbidigo // of a synctest bubble
		for range 20 {             // it goes faster again
			m.Saw(200, true, false)
			time.Sleep(checkEvery / 5) //nolint:forbidigo // of a synctest bubble
		}
		if n := bell.silences.Load(); n > 3 || m.State() != Polling {
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
		bell, m, stop := runMachine(t)
		m.Behind(1)
		for range 20 {
			m.Saw(1000, true, false)
			time.Sleep(backlogFor / 2) //nolint:forbidigo // of a synctest bubble
		}
		if n := bell.silences.Load(); n != 1 || m.State() != Polling {
			t.Errorf("through breaks it fell silent %d times, and is %v", n, m.State())
		}
		for range 3 { // a destination that hangs
			time.Sleep(2 * backlogFor) //nolint:forbidigo // of a synctest bubble
			m.Saw(20, true, false)
		}
		if n := bell.silences.Load(); n != 1 || m.State() != Listening {
			t.Errorf("of a backlog that stands it fell silent %d times, and is %v", n, m.State())
		}
		m.Behind(-1)
		time.Sleep(2 * checkEvery) //nolint:forbidigo // of a synctest bubble
		m.Saw(20, true, false)
		synctest.Wait()
		if n := bell.silences.Load(); n != 2 || m.State() != Polling {
			t.Errorf("after the backlog it fell silent %d times, and is %v", n, m.State())
		}
		time.Sleep(2 * pollingFor) //nolint:forbidigo // of a synctest bubble
		stop()
	})
}

// stage is the environment of a machine that settles next to other relays.
type stage struct {
	*Machine

	bell         echoBell
	reads, asked atomic.Int64
	silent       atomic.Bool // another relay keeps the trigger silent
	open         atomic.Bool // a writer that was silent has not ended
}

// newStage runs a machine until the end of the test.
func newStage(t *testing.T, poll time.Duration, silent bool) *stage {
	t.Helper()
	s := &stage{}
	s.silent.Store(silent)
	s.Machine = New(Options{Poll: poll, Bell: &s.bell, Settle: s.settle, Changed: func(State) { s.reads.Add(1) }, Report: failure(t)})
	s.bell.heard = s.Poke
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
			return Silenced, nil
		case s.open.Load():
			return Open, nil
		default:
			return Ended, nil
		}
	}
}

// TestBesideAnother: while another relay keeps the bell silent, this one reads often, because
// no writer rings for it. It sleeps when the writers that were silent because of the other one have
// ended: those that hold the lock after that relay has released the bell.
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

// TestWokenAtItsStart: a relay that is woken up while it looks for silent writers at its start
// looks for them again, and reads what they have committed without a notification.
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
		if n := s.bell.silences.Load(); n != 1 || s.State() != Settling {
			t.Errorf("over a slow backlog it fell silent %d times, and is %v", n, s.State())
		}
		for range 10 {
			s.Saw(200, true, false)
			time.Sleep(pollingFor) //nolint:forbidigo // of a synctest bubble
		}
		if n := s.bell.silences.Load(); n != 2 || s.State() != Polling {
			t.Errorf("over a fast one it fell silent %d times, and is %v", n, s.State())
		}
	})
}

// TestRateIsOfOneReader: the rate from which on a relay polls is one per reader.
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

// TestFailingBell: an error of the bell is reported, and the relay rings again until it succeeds.
func TestFailingBell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bell := &failingBell{fails: 3}
		var reported []error
		m := New(Options{Poll: time.Second, Bell: bell, Changed: func(State) {}, Report: func(err error) { reported = append(reported, err) }})
		var got uint64
		m.Settle = func(xid uint64) func(context.Context) (Writers, error) {
			got = xid
			return endedAtOnce(xid)
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
		if len(reported) != 4 || !errors.Is(reported[2], errBell) || reported[3] != nil {
			t.Errorf("reported %v, want three errors, and then that the bell rings", reported)
		}
	})
}

var errBell = errors.New("the database is away")

type failingBell struct {
	echoBell

	fails int
}

func (b *failingBell) Ring(context.Context) (uint64, error) {
	if b.fails--; b.fails >= 0 {
		return 0, errBell
	}
	return 42, nil
}

// queueingBell has writers that wait for one another.
type queueingBell struct{ echoBell }

func (*queueingBell) Queued(context.Context) (int, error) { return queueLength, nil }

// TestQueuedWriters: writers that queue up to notify make the relay poll, if they notify often enough, and it goes on only
// while they get more done than before.
func TestQueuedWriters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		heard, found int // for each checkEvery
		silences     int32
	}{
		"seldom":          {2, 20, 0},
		"more in silence": {10, 70, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				bell := &queueingBell{}
				bell.heard = func() {}
				m := New(Options{Poll: time.Second, Bell: bell, Settle: endedAtOnce, Changed: func(State) {}, Report: failure(t)})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); m.Run(ctx) }()
				for range 20 {
					for range c.heard {
						m.Heard()
					}
					for range 10 {
						m.Saw(c.found/10, false, true)
						time.Sleep(checkEvery / 10) //nolint:forbidigo // of a synctest bubble
					}
				}
				if n := bell.silences.Load(); n != c.silences {
					t.Errorf("the trigger was made silent %d times, want %d", n, c.silences)
				}
				cancel()
				<-ended
				time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
			})
		})
	}
}
