package stream

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/internal/tail"
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

// runVigil runs a vigil until stop, which waits for its end.
func runVigil(t *testing.T) (bell *echoBell, v *vigil, stop func()) {
	t.Helper()
	bell = &echoBell{}
	v = newVigil(time.Second, bell)
	bell.heard = v.wake
	v.wakeAll, v.report = func() {}, func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	v.mark = func() uint64 { return 0 }
	v.look = func(context.Context, uint64) (*tail.Look, error) { return &tail.Look{}, nil }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); v.run(ctx) }()
	synctest.Wait()
	return bell, v, func() { cancel(); <-ended }
}

// TestVigilSleepsAgain: a relay that hears itself fall awake does not stay so.
func TestVigilSleepsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bell, v, stop := runVigil(t)
		if v.is() != asleep {
			t.Errorf("at the start: %v", v.is())
		}
		for n := range int32(3) {
			v.wake()
			synctest.Wait()
			if v.is() != awake {
				t.Errorf("woken up: %v", v.is())
			}
			time.Sleep(2 * awakeFor) //nolint:forbidigo // of a synctest bubble
			synctest.Wait()
			if v.is() != asleep || bell.silences.Load() != n+1 {
				t.Errorf("%v, fell silent %d times", v.is(), bell.silences.Load())
			}
		}
		stop()
	})
}

// TestVigilOverSlowBacklog: during a slowly read backlog, the bell does not fall silent and ring
// again all the time; when it is gone, events found at once wake the relay as before.
func TestVigilOverSlowBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bell, v, stop := runVigil(t)
		for range 100 {
			v.saw(20, true, false)
			time.Sleep(awakeFor / 2) //nolint:forbidigo // of a synctest bubble
		}
		if n := bell.silences.Load(); n != 1 || v.is() != asleep {
			t.Errorf("fell silent %d times, and is %v", n, v.is())
		}
		time.Sleep(2 * watchEvery) //nolint:forbidigo // of a synctest bubble
		v.saw(20, true, false)
		synctest.Wait()
		if n := bell.silences.Load(); n != 2 || v.is() != awake {
			t.Errorf("fell silent %d times, and is %v", n, v.is())
		}
		time.Sleep(2 * awakeFor) //nolint:forbidigo // of a synctest bubble
		for range 20 {           // it goes faster again
			v.saw(200, true, false)
			time.Sleep(watchEvery / 5) //nolint:forbidigo // of a synctest bubble
		}
		if n := bell.silences.Load(); n > 3 || v.is() != awake {
			t.Errorf("fell silent %d times, and is %v", n, v.is())
		}
		stop()
	})
}

// TestVigilBreaks: a relay with more to read does not fall asleep because of a moment without
// reads, and if the moment is long it does not wake up for each read after it.
func TestVigilBreaks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bell, v, stop := runVigil(t)
		v.behind.Store(1)
		for range 20 {
			v.saw(1000, true, false)
			time.Sleep(backlogFor / 2) //nolint:forbidigo // of a synctest bubble
		}
		if n := bell.silences.Load(); n != 1 || v.is() != awake {
			t.Errorf("through breaks it fell silent %d times, and is %v", n, v.is())
		}
		for range 3 { // a destination that hangs
			time.Sleep(2 * backlogFor) //nolint:forbidigo // of a synctest bubble
			v.saw(20, true, false)
		}
		if n := bell.silences.Load(); n != 1 || v.is() != asleep {
			t.Errorf("of a backlog that stands it fell silent %d times, and is %v", n, v.is())
		}
		v.behind.Store(0)
		time.Sleep(2 * watchEvery) //nolint:forbidigo // of a synctest bubble
		v.saw(20, true, false)
		synctest.Wait()
		if n := bell.silences.Load(); n != 2 || v.is() != awake {
			t.Errorf("after the backlog it fell silent %d times, and is %v", n, v.is())
		}
		time.Sleep(2 * awakeFor) //nolint:forbidigo // of a synctest bubble
		stop()
	})
}

// sharedBell is a bell that another relay may keep silent.
type sharedBell struct {
	echoBell

	silent atomic.Bool
}

func (b *sharedBell) Silenced(context.Context) (bool, error) { return b.silent.Load(), nil }

// stage is the environment of a vigil that falls asleep next to other relays.
type stage struct {
	*vigil

	bell         sharedBell
	reads, looks atomic.Int64
	writer       atomic.Pointer[tail.Holder] // who holds the lock of the sequence
}

// newStage runs a vigil until the end of the test.
func newStage(t *testing.T, poll time.Duration, silent bool) *stage {
	t.Helper()
	s := &stage{}
	s.bell.silent.Store(silent)
	s.vigil = newVigil(poll, &s.bell)
	s.bell.heard = s.wake
	s.wakeAll, s.report = func() { s.reads.Add(1) }, func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	s.mark = func() uint64 { return 0 }
	s.look = func(context.Context, uint64) (*tail.Look, error) {
		s.looks.Add(1)
		l := &tail.Look{}
		if w := s.writer.Load(); w != nil {
			l.Holders = []tail.Holder{*w}
		}
		return l, nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); s.run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return s
}

// TestVigilBesideAnother: while another relay keeps the bell silent, this one reads often, because
// no writer rings for it. It sleeps when the writers that were silent because of the other one have
// ended: those that hold the lock after that relay has released the bell.
func TestVigilBesideAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, time.Hour, true)
		time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		if n, least := s.reads.Load(), int64(time.Second/fastPoll); n < least || s.is() != drowsy {
			t.Errorf("%d reads within a second of silence, want %d at least; it is %v", n, least, s.is())
		}
		// It writes silently, and has not committed when the other relay falls asleep.
		s.writer.Store(&tail.Holder{Transaction: "3/1", PID: 1})
		time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		s.bell.silent.Store(false)
		time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		if s.is() != drowsy || s.looks.Load() == 0 {
			t.Errorf("beside one that was silent it is %v after %d looks", s.is(), s.looks.Load())
		}
		before := s.reads.Load()
		s.writer.Store(nil)
		time.Sleep(4 * time.Second) //nolint:forbidigo // of a synctest bubble
		if s.is() != asleep || s.reads.Load() == before {
			t.Errorf("when that has ended it is %v, and has read %d times", s.is(), s.reads.Load()-before)
		}
	})
}

// TestVigilWokenAtItsStart: a relay that is woken up while it looks for silent writers at its start
// looks for them again, and reads what they have committed without a notification.
func TestVigilWokenAtItsStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, time.Hour, false)
		s.writer.Store(&tail.Holder{Transaction: "3/1", PID: 1})
		synctest.Wait()
		s.wake()
		time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
		if s.is() != drowsy {
			t.Errorf("beside the writer it is %v", s.is())
		}
		before := s.reads.Load()
		s.writer.Store(nil)
		time.Sleep(4 * time.Second) //nolint:forbidigo // of a synctest bubble
		if s.is() != asleep || s.reads.Load() == before {
			t.Errorf("when the writer has ended it is %v, and has read %d times", s.is(), s.reads.Load()-before)
		}
	})
}

// TestVigilBesideAnOpenWriter: a relay that fell asleep during a slow backlog, and waits for a
// writer whose transaction stays open, is awake again when there is much to read.
func TestVigilBesideAnOpenWriter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, time.Second, false)
		synctest.Wait()
		s.writer.Store(&tail.Holder{Transaction: "3/1", PID: 1})
		s.behind.Store(1)
		for range 2 * backlogFor / awakeFor { // a destination that is slow
			s.saw(20, true, false)
			time.Sleep(awakeFor) //nolint:forbidigo // of a synctest bubble
		}
		if n := s.bell.silences.Load(); n != 1 || s.is() != drowsy {
			t.Errorf("over a slow backlog it fell silent %d times, and is %v", n, s.is())
		}
		for range 10 {
			s.saw(200, true, false)
			time.Sleep(awakeFor) //nolint:forbidigo // of a synctest bubble
		}
		if n := s.bell.silences.Load(); n != 2 || s.is() != awake {
			t.Errorf("over a fast one it fell silent %d times, and is %v", n, s.is())
		}
	})
}

// TestVigilCountsDestinations: the rate from which on a relay is awake is one per destination. The router reports no rows.
func TestVigilCountsDestinations(t *testing.T) {
	t.Parallel()
	e := &Engine{vigil: newVigil(time.Second, nil), units: map[string]*running{"": {}, "mail": {}}}
	e.countUnitsLocked()
	if got := e.vigil.rate(idleRate, time.Second); got < idleRate {
		t.Errorf("%v rows a second for each destination, want %v", got, idleRate)
	}
	delete(e.units, "mail")
	e.countUnitsLocked()
	if got := e.vigil.rate(0, time.Second); got != 0 {
		t.Errorf("%v rows a second without a destination", got)
	}
}
