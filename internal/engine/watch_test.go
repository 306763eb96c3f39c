package engine

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func (w *Watch) pass(d time.Duration) {
	for range ticksOf(d) {
		w.Tick()
	}
}

// names are the parts that hang, the longest first.
func (w *Watch) names() string {
	var all []string
	for _, h := range w.Hangs() {
		all = append(all, h.Part)
	}
	return strings.Join(all, ",")
}

func TestWatch(t *testing.T) {
	t.Parallel()
	w := NewWatch(time.Second)
	round, long, timed := w.Part("round", "its work", 0), w.Part("long", "its work", time.Hour), w.Part("timed", "its timer", Patience)
	for _, p := range []*Part{round, long} {
		p.Begin()
	}
	timed.BeginIn(time.Minute)
	expect := func(want string) {
		t.Helper()
		if got := w.names(); got != want {
			t.Errorf("after %v: %q hang, want %q", w.Now(), got, want)
		}
	}
	w.pass(Patience)
	expect("")
	w.pass(time.Second)
	expect("round")
	if got := w.Hangs()[0]; got.Reason != "round has not come back from its work for 2m1s" || !got.Restart || got.Lost() {
		t.Errorf("%+v", got)
	}
	w.pass(time.Minute)
	expect("round,timed")
	w.pass(Hopeless)
	if all := w.Hangs(); !all[0].Lost() {
		t.Errorf("not lost: %+v", all)
	}
	round.Rest()
	timed.Begin()
	expect("")
	w.Report([]Hang{{Part: "found", For: Patience + Hopeless}})
	expect("found")
	if w.Hangs()[0].Lost() {
		t.Error("what a restart does not cure is lost")
	}
	w.Report(nil)
	w.pass(time.Hour)
	expect("long,timed")
	long.End()
	timed.End()
	expect("")
}

// TestWatchOfAFrozenProcess: whatever time the process has spent frozen, or the machine suspended, is not the
// time of a part. The goroutine that counts is frozen like all others; here it alone is.
func TestWatchOfAFrozenProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := NewWatch(time.Second)
		p := w.Part("round", "its work", Patience)
		p.Begin()
		frozen, ctx := make(chan struct{}), t.Context()
		ctx, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.Run(ctx, func() { <-frozen })
		}()
		time.Sleep(24 * time.Hour) //nolint:forbidigo // of a synctest bubble
		close(frozen)
		synctest.Wait()
		if w.Now() > 2*time.Second || w.names() != "" {
			t.Errorf("after a day frozen: %v have passed, %q hang", w.Now(), w.names())
		}
		time.Sleep(Patience + time.Second) //nolint:forbidigo // of a synctest bubble
		synctest.Wait()
		if w.names() != "round" {
			t.Errorf("awake again: %q hang", w.names())
		}
		stop()
		<-ended
		if w.names() != "" {
			t.Error("a relay that stops hangs")
		}
	})
}

// TestNoWatch: engines work without one.
func TestNoWatch(t *testing.T) {
	t.Parallel()
	var w *Watch
	p := w.Part("round", "its work", Patience)
	p.Begin()
	p.BeginIn(time.Second)
	p.Rest()
	p.End()
	if w.Hangs() != nil || w.Now() != 0 {
		t.Error("nothing hangs")
	}
}
