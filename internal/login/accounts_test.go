package login_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/notifyd/notifyd/internal/login"
)

// TestShared: the first login of an account goes alone. An acceptance lets all others in at the same time, and a refusal is the answer to
// them all. Another account is not concerned.
func TestShared(t *testing.T) {
	t.Parallel()
	refusal, down := errors.New("wrong password"), errors.New("connection refused")
	isRefusal := func(err error) bool { return errors.Is(err, refusal) }
	synctest.Test(t, func(t *testing.T) {
		ctx := login.With(t.Context(), new(login.Accounts))
		for _, answer := range []error{nil, refusal} {
			who := fmt.Sprint("u", answer)
			began, first := 0, make(chan error)
			var mu sync.Mutex
			var met, all sync.WaitGroup
			met.Add(7)
			for range 8 {
				all.Go(func() {
					err := login.Shared(ctx, who, isRefusal, func() error {
						mu.Lock()
						began++
						leads := began == 1
						mu.Unlock()
						if leads {
							return <-first
						}
						met.Done()
						met.Wait() // all others are here, too
						return nil
					})
					if !errors.Is(err, answer) {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			if began != 1 {
				t.Errorf("%d logins at first", began)
			}
			if err := login.Shared(ctx, "other", isRefusal, func() error { return down }); !errors.Is(err, down) {
				t.Error(err)
			}
			first <- answer
			all.Wait()
			if want := map[bool]int{true: 8, false: 1}[answer == nil]; began != want {
				t.Errorf("%d logins, want %d", began, want)
			}
		}

		short, cancel := context.WithCancelCause(ctx)
		cancel(down)
		if err := login.Shared(short, "late", isRefusal, func() error { return nil }); err != nil && !errors.Is(err, down) {
			t.Error(err)
		}
		if err := login.Shared(t.Context(), "alone", isRefusal, func() error { return refusal }); !errors.Is(err, refusal) {
			t.Error(err)
		}
	})
}
