package handlertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// deliverFunc is the fault of a handler.
type deliverFunc func(ctx context.Context, c *client, events []*delivery.Event) []error

// fault is a handler with one thing wrong, and the properties that it must fail.
type fault struct {
	name string
	// wrap makes it. tb is the test, for clean-ups.
	deliver func(tb testing.TB, d *Destination) deliverFunc
	close   func(c *client) error
	fails   []string
	// may are properties that it fails as well, depending on what is under way
	// when a fault strikes.
	may []string
	// says is in what the properties say.
	says string
}

// just is for what needs neither the test nor the destination.
func just(f deliverFunc) func(testing.TB, *Destination) deliverFunc {
	return func(testing.TB, *Destination) deliverFunc { return f }
}

// each changes each error.
func each(change func(ctx context.Context, err error) error) func(testing.TB, *Destination) deliverFunc {
	return just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
		errs := c.DeliverBatch(ctx, events)
		for i, err := range errs {
			if err != nil {
				errs[i] = change(ctx, err)
			}
		}
		return errs
	})
}

// brokenPatience is run out of wherever a broken handler loses something, and
// brokenPrompt wherever it hangs.
const (
	brokenPatience = 1500 * time.Millisecond
	brokenPrompt   = 500 * time.Millisecond
)

func TestBrokenHandlersFail(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, f := range slices.Concat(liars(), stubborn(), mistaken(), careless(), alterers(), blamers(), unfit(), closers(), undead()) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			// On a machine with too much to do, want of time looks like a fault: what
			// is reported wrongly runs again with more of it.
			var wrong []string
			var text string
			for _, more := range []int64{1, 6} {
				var deliver deliverFunc
				d := destination(t, func(c *client) delivery.Handler { return &broken{client: c, deliver: deliver, close: f.close} })
				d.Patience, d.Prompt = time.Duration(more*int64(brokenPatience)), time.Duration(more*int64(brokenPrompt))
				if f.deliver != nil {
					deliver = f.deliver(t, &d)
				}
				rep := recordRun(t, d)
				failed := rep.failed()
				text = rep.text(failed)
				if wrong = f.wrongFindings(failed, text); len(wrong) == 0 {
					break
				}
			}
			for _, what := range wrong {
				t.Error(what)
			}
			if t.Failed() {
				t.Logf("failed:\n%s", text)
			}
		})
	}
}

// wrongFindings returns the findings of the suite that are wrong, and the missing ones.
func (f fault) wrongFindings(failed []string, text string) (wrong []string) {
	for _, name := range f.fails {
		if !slices.Contains(failed, name) {
			wrong = append(wrong, fmt.Sprintf("it passes %q", name))
		}
	}
	for _, name := range failed {
		if !slices.Contains(f.fails, name) && !slices.Contains(f.may, name) {
			wrong = append(wrong, fmt.Sprintf("it also fails %q", name))
		}
	}
	if !strings.Contains(text, f.says) {
		wrong = append(wrong, fmt.Sprintf("nothing says %q", f.says))
	}
	if strings.Contains(text, testPassword) {
		wrong = append(wrong, "the suite itself tells the secret")
	}
	return wrong
}

// liars report deliveries that did not happen.
func liars() []fault {
	return []fault{
		{
			name: "says yes before it has sent anything",
			deliver: func(tb testing.TB, _ *Destination) deliverFunc {
				tb.Helper()
				var later sync.WaitGroup
				tb.Cleanup(later.Wait)
				return func(ctx context.Context, c *client, events []*delivery.Event) []error {
					later.Go(func() { c.DeliverBatch(ctx, events) })
					return nil
				}
			},
			// It does not know the fate of any event.
			fails: []string{badFailsAlone, answerAwaited, nobodyListens, cutBeforeAnswer, deliverAfter, casePrefix + "refused", casePrefix + "to wait", casePrefix + "too much", casePrefix + "wrong password"},
			may:   []string{doneContext, cancelEnds, deadlineEnds, lateAnswer, outageInStream, restartInStream, closeUnderway, goroutinesEnd, manyAtOnce, leftAsItWas, batchAnswers},
			says:  "delivered, though the destination had not answered",
		},
		{
			name: "takes the end of its context for an answer",
			deliver: each(func(ctx context.Context, err error) error {
				if ctx.Err() != nil {
					return nil //nolint:nilerr // this is what is wrong with it
				}
				return err
			}),
			fails: []string{answerAwaited, doneContext},
			may:   []string{closeUnderway},
		},
		{
			name: "takes a lost connection for an answer",
			deliver: each(func(_ context.Context, err error) error {
				if delivery.IsUnavailable(err) && !strings.Contains(err.Error(), "refused") && !strings.Contains(err.Error(), "password") && !errors.Is(err, errClosed) {
					return nil
				}
				return err
			}),
			fails: []string{cutBeforeAnswer},
			may:   []string{nobodyListens, outageInStream, restartInStream, closeUnderway, goroutinesEnd},
			says:  "before the destination had answered",
		},
		{
			name: "has no answer for one of many",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				errs := c.DeliverBatch(ctx, events)
				if len(events) == batchSize {
					return errs[1:]
				}
				return errs
			}),
			fails: []string{batchAnswers, outageInStream, restartInStream},
			says:  "19 answers for 20 events",
		},
		{
			name: "answers for nothing",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				if len(events) == 0 {
					return []error{nil}
				}
				return c.DeliverBatch(ctx, events)
			}),
			fails: []string{batchAnswers},
			says:  "answers for a batch without events",
		},
	}
}

// stubborn handlers do not mind their context.
func stubborn() []fault {
	return []fault{
		{
			name: "swallows its context",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				if ctx.Err() != nil {
					return c.DeliverBatch(ctx, events)
				}
				return c.DeliverBatch(context.WithoutCancel(ctx), events)
			}),
			fails: []string{cancelEnds, deadlineEnds},
			says:  "Deliver has not returned within ",
		},
		{
			name: "minds nothing but the deadline",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
				defer context.AfterFunc(ctx, func() {
					if errors.Is(ctx.Err(), context.DeadlineExceeded) {
						cancel(context.Cause(ctx))
					}
				})()
				return c.DeliverBatch(inner, events)
			}),
			fails: []string{cancelEnds},
		},
		{
			name: "minds no deadline",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
				defer context.AfterFunc(ctx, func() {
					if errors.Is(ctx.Err(), context.Canceled) {
						cancel(context.Cause(ctx))
					}
				})()
				return c.DeliverBatch(inner, events)
			}),
			fails: []string{deadlineEnds},
		},
		{
			name: "minds no deadline while it connects",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				if err := c.acquire(ctx); err == nil {
					if c.conn == nil {
						ctx = context.WithoutCancel(ctx)
					}
					<-c.slot
				}
				return c.DeliverBatch(ctx, events)
			}),
			fails: []string{deadlineEnds},
			may:   []string{closeUnderway, goroutinesEnd},
		},
	}
}

// mistaken handlers find the wrong reason for the right end.
func mistaken() []fault {
	return []fault{
		{
			name: "blames the destination for a shutdown",
			deliver: each(func(ctx context.Context, err error) error {
				if ctx.Err() != nil {
					return delivery.Unavailable(err)
				}
				return err
			}),
			fails: []string{doneContext, cancelEnds, deadlineEnds},
			says:  "the fault of neither the event nor the destination",
		},
		{
			name: "forgets why its context was done",
			deliver: each(func(ctx context.Context, err error) error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return err
			}),
			fails: []string{doneContext, cancelEnds, deadlineEnds},
			says:  "does not wrap context.Cause(ctx)",
		},
		{
			name: "takes slow for down",
			deliver: func(_ testing.TB, d *Destination) deliverFunc {
				net := &mutable{Network: d.Network}
				d.Network = net
				return func(ctx context.Context, c *client, events []*delivery.Event) []error {
					if net.muted.Load() && len(events) == 1 && ctx.Err() == nil {
						hurry, cancel := context.WithCancelCause(ctx)
						cancel(delivery.Unavailable(errors.New("client: too slow")))
						ctx = hurry
					}
					return c.DeliverBatch(ctx, events)
				}
			},
			fails: []string{lateAnswer},
			says:  "the answer was late",
		},
	}
}

// mutable knows whether it is muted.
type mutable struct {
	Network
	muted atomic.Bool
}

func (m *mutable) Mute() { m.muted.Store(true); m.Network.Mute() }
func (m *mutable) Heal() { m.muted.Store(false); m.Network.Heal() }
