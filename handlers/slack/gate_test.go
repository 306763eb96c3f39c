package slack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestOneASecond: in each channel, whatever the other channels do.
func TestOneASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, begin := newGate(perChannel), time.Now()
		for i := range 3 {
			for _, channel := range []string{"a", "b"} {
				if err := g.wait(t.Context(), channel); err != nil {
					t.Fatal(err)
				}
				if got, want := time.Since(begin), time.Duration(i)*time.Second; got != want {
					t.Errorf("message %d in %s after %v, want %v", i, channel, got, want)
				}
			}
		}
	})
}

// TestHold: nothing is sent during a pause that Slack asked for, also by those who
// were waiting for their turn then.
func TestHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, begin := newGate(perChannel), time.Now()
		if err := g.wait(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		done, after := make(chan error), time.Duration(0)
		go func() {
			err := g.wait(t.Context(), "a")
			after = time.Since(begin)
			done <- err
		}()
		synctest.Wait()
		g.hold(10 * time.Second)
		g.hold(5 * time.Second) // a shorter one changes nothing
		if err := g.wait(t.Context(), "b"); err != nil || time.Since(begin) < 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if err := <-done; err != nil || after < 10*time.Second {
			t.Errorf("%v after %v", err, after)
		}
	})
}

// TestWaitEnds with the context, and at once if the turn comes too late.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(perChannel)
		g.hold(time.Minute)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		err := g.wait(ctx, "a")
		if _, ok := errors.AsType[*busyError](err); !ok || time.Since(begin) > 0 || !strings.Contains(err.Error(), "1m0s") {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		cause := errors.New("stopping")
		stopped, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { stop(cause) })
		if err := g.wait(stopped, "a"); !errors.Is(err, cause) || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// TestMapIsBounded: however many channels there are.
func TestMapIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(perChannel)
		for round := range 2 {
			for i := range maxChannels + 10 {
				if err := g.wait(t.Context(), fmt.Sprint(round, "-", i)); err != nil {
					t.Fatal(err)
				}
			}
			if n := len(g.channels); n > maxChannels {
				t.Fatalf("%d channels are remembered", n)
			}
			time.Sleep(2 * time.Second) //nolint:forbidigo // of a synctest bubble
		}
	})
}

// TestRetryAfter: a delivery that meets a limit keeps all others back, and
// a delivery whose turn comes too late fails at once and loses no attempt.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	h := newHandler(t, config(s.host()))
	s.says(&reply{http.StatusTooManyRequests, map[string]string{"Retry-After": "3600"}, `{"ok":false,"error":"ratelimited"}`})
	var later interface{ RetryAfter() time.Duration }
	err := h.Deliver(testenv.Within(t, patience), event(`{}`))
	if deliverytest.Class(err) != "throttled" || !errors.As(err, &later) || later.RetryAfter() != time.Hour {
		t.Errorf("%s: %v", deliverytest.Class(err), err)
	}
	s.says(nil)
	err = h.Deliver(testenv.Within(t, patience), event(`{}`))
	if deliverytest.Class(err) != "throttled" || !strings.Contains(err.Error(), "slack has asked for a pause") || s.asked() != 1 {
		t.Errorf("%s: %v; asked %d times", deliverytest.Class(err), err, s.asked())
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("stopping")
	cancel(cause)
	if err := h.Deliver(ctx, event(`{}`)); !errors.Is(err, cause) || delivery.IsUnavailable(err) {
		t.Error(err)
	}
}
