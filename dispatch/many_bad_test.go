package dispatch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestManyBadEvents: the delay of good events does not grow with the number of bad ones, if these have a type of their
// own: it is about as long as one call for a bad event. Without such a type, good events behind bad ones that fail at
// once are hardly delayed; behind bad ones that occupy workers they wait until most of these have been tried once. The
// log has the figures.
func TestManyBadEvents(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what  kind
		typed time.Duration // bound if bad events have a type of their own
		mixed time.Duration // bound if they have not; 0 for none
	}{
		{drops, 2 * time.Second, time.Minute},
		{refuses, 2 * time.Second, time.Minute},
		{lingers, lingersFor + 2*time.Second, 0},
		{hangs, 2*hangTimeout + 2*time.Second, 0},
	} {
		for _, typed := range []bool{true, false} {
			within := c.mixed
			if typed {
				within = c.typed
			}
			for _, first := range []int{1, 3, 12, 20, 100} {
				kinds := slices.Concat(slices.Repeat([]kind{c.what}, first), slices.Repeat([]kind{good}, 1000))
				name := fmt.Sprintf("%s/typed=%t/%d_in_front", c.what, typed, first)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					manyBad(t, kinds, typed, within)
				})
			}
			for _, share := range []int{10, 50, 90} {
				kinds := slices.Repeat([]kind{good}, 600)
				r := rand.New(rand.NewPCG(1, 2))
				for i := range kinds {
					if r.IntN(100) < share {
						kinds[i] = c.what
					}
				}
				name := fmt.Sprintf("%s/typed=%t/%d_percent", c.what, typed, share)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					if share == 90 {
						testenv.Long(t)
					}
					manyBad(t, kinds, typed, within)
				})
			}
		}
	}
}

const hangTimeout = 30 * time.Second

// manyBad delivers all good events, and wants the last one within the given time, 0 for no bound.
func manyBad(t *testing.T, kinds []kind, typed bool, within time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &poisoned{
			when: make(map[int64]time.Time), came: make(map[int64]time.Time),
			cfg: testLane(), form: "one", kinds: kinds, keys: 50, typed: typed, onlyGood: true, reads: 500,
		}
		p.cfg.MaxAttempts = 20
		p.cfg.Timeout = hangTimeout
		begin := time.Now()
		if wrong := p.run(t); wrong != "" {
			t.Fatal(wrong)
		}

		var delays []time.Duration
		for _, at := range p.when {
			delays = append(delays, at.Sub(begin))
		}
		slices.Sort(delays)
		last := delays[len(delays)-1]
		t.Logf("%d good events: half within %.1f s, all within %.1f s, %d calls", len(delays), delays[len(delays)/2].Seconds(), last.Seconds(), p.calls)
		if within > 0 && last > within {
			t.Errorf("the last good event came after %v, want %v", last, within)
		}
	})
}
