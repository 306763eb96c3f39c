package webhook

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pass lets time pass in a bubble.
func pass(d time.Duration) { <-time.After(d) }

func TestRateLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(4, 0)
		begin := time.Now()
		var all sync.WaitGroup
		for i := range 21 {
			all.Go(func() {
				leave, err := p.enter(t.Context(), "a", time.Time{})
				if err != nil {
					t.Error(i, err)
					return
				}
				leave()
			})
		}
		all.Wait()
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("21 requests at 4 a second took %v, want 5s", took)
		}
		leave, err := p.enter(t.Context(), "b", time.Now())
		if err != nil {
			t.Fatalf("another host waits too: %v", err)
		}
		leave()
	})
}

func TestNoTurnInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(0.1, 0)
		enter := func(latest time.Duration) error {
			leave, err := p.enter(t.Context(), "a", time.Now().Add(latest))
			if err == nil {
				leave()
			}
			return err
		}
		if err := enter(0); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		var busy *busyError
		if err := enter(9 * time.Second); !errors.As(err, &busy) || busy.wait != 10*time.Second || time.Since(begin) != 0 {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
		if err := enter(10 * time.Second); err != nil || time.Since(begin) != 10*time.Second {
			t.Errorf("got %v after %v: who gave up took a turn", err, time.Since(begin))
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("stop"))
		defer cancel()
		if _, err := p.enter(ctx, "a", time.Time{}); err == nil || err.Error() != "stop" {
			t.Errorf("got %v, want the cause", err)
		}
	})
}

func TestHostConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(0, 2)
		var leaves []func()
		for range 2 {
			leave, err := p.enter(t.Context(), "a", time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			leaves = append(leaves, leave)
		}
		var busy *busyError
		if _, err := p.enter(t.Context(), "a", time.Now().Add(time.Minute)); !errors.As(err, &busy) {
			t.Errorf("a third one got in: %v", err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("stop"))
		defer cancel()
		if _, err := p.enter(ctx, "a", time.Time{}); err == nil || err.Error() != "stop" {
			t.Errorf("got %v, want the cause", err)
		}
		if leave, err := p.enter(t.Context(), "b", time.Now()); err != nil {
			t.Errorf("another host waits too: %v", err)
		} else {
			leave()
		}
		third := make(chan error)
		go func() {
			leave, err := p.enter(t.Context(), "a", time.Time{})
			if err == nil {
				leave()
			}
			third <- err
		}()
		synctest.Wait()
		leaves[0]()
		if err := <-third; err != nil {
			t.Error(err)
		}
		leaves[1]()
	})
}

func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(0, 0)
		p.shut("a", time.Minute)
		p.shut("a", time.Second) // does not shorten it
		pass(59 * time.Second)
		var busy *busyError
		if _, err := p.enter(t.Context(), "a", time.Time{}); !errors.As(err, &busy) || busy.wait != time.Second {
			t.Errorf("got %v", err)
		}
		if leave, err := p.enter(t.Context(), "b", time.Time{}); err != nil {
			t.Error(err)
		} else {
			leave()
		}
		pass(time.Second)
		if leave, err := p.enter(t.Context(), "a", time.Time{}); err != nil {
			t.Error(err)
		} else {
			leave()
		}
	})
}

func TestPlacesAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(1000, 0)
		p.shut("shut", time.Hour)
		held := p.hold("held")
		for i := range 10 * maxPlaces {
			leave, err := p.enter(t.Context(), fmt.Sprint(i), time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			leave()
			if i%100 == 0 {
				pass(time.Millisecond)
			}
		}
		if len(p.all) > 2*maxPlaces || p.all["shut"] == nil || p.all["held"] != held {
			t.Errorf("%d places, shut %v, held %v", len(p.all), p.all["shut"], p.all["held"])
		}
	})
}
