package stream

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/internal/wake"
	"github.com/notifyd/notifyd/observe"
)

// TestHeardDeliveries: a replay of dead letters notifies many times a second. Each time the shards look
// for due rows, and neither the state of the relay nor the shares of the shards are touched.
func TestHeardDeliveries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sought := 0
		var states []wake.State
		relay := wake.New(wake.Options{
			Poll: time.Second, Changed: func(s wake.State) { states = append(states, s) }, Report: func(error) {},
			Settle: func(uint64) func(context.Context) (wake.Writers, error) {
				return func(context.Context) (wake.Writers, error) { return wake.Ended, nil }
			},
		})
		// Without leases: to look at the shares is a panic.
		e := &Engine{wake: relay, shards: map[shardKey]*activeShard{{destination: "a"}: {runner: hinted(func(seek bool) {
			if seek {
				sought++
			}
		})}}}
		if !e.Payload(pgschema.WordDeliveries) || sought != 1 {
			t.Errorf("shards were asked to look for due rows %d times", sought)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); relay.Run(ctx) }()
		synctest.Wait()
		cancel()
		<-ended
		if want := []wake.State{wake.Settling, wake.Listening}; !slices.Equal(states, want) {
			t.Errorf("the states are %v, want %v", states, want)
		}
	})
}

// TestSettleReturnsErrors: a relay that cannot find out whether the trigger is suppressed returns the error. A success
// would end the report of an outage.
func TestSettleReturnsErrors(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	e := &Engine{Options: Options{Trigger: blindTrigger{err: lost}}, writers: tail.NewWriterScanner()}
	if writers, err := e.settle(0)(t.Context()); writers != wake.Suppressed || !errors.Is(err, lost) {
		t.Errorf("got %v, %v, want the error, and the short pauses of a suppressed trigger", writers, err)
	}
}

// blindTrigger cannot find out whether another relay suppresses notifications.
type blindTrigger struct {
	wake.Trigger

	err error
}

func (b blindTrigger) Suppressed(context.Context) (bool, error) { return false, b.err }

// hinted is a part that does nothing but count hints.
type hinted func(seek bool)

func (h hinted) wakeUp(seek bool)          { h(seek) }
func (h hinted) run(context.Context) error { return nil }

func (h hinted) stats() observe.PositionStats { return observe.PositionStats{} }
