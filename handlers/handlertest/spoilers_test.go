package handlertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

// careless handlers lose, double or mix up events.
func careless() []fault {
	return []fault{
		{
			name: "reorders",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				events = slices.Clone(events)
				slices.Reverse(events)
				errs := c.DeliverBatch(ctx, events)
				slices.Reverse(errs)
				return errs
			}),
			fails: []string{batchAnswers, cutBeforeAnswer, outageInStream, restartInStream},
			says:  "overtook",
		},
		{
			name: "sends everything twice",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				c.DeliverBatch(ctx, events)
				return c.DeliverBatch(ctx, events)
			}),
			fails: []string{oneArrives},
			says:  "without any fault, and came as 2",
		},
		{
			name: "sends again by itself",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				var errs []error
				for range 3 {
					errs = c.DeliverBatch(ctx, events)
					if !slices.ContainsFunc(errs, delivery.IsUnavailable) {
						break
					}
				}
				return errs
			}),
			fails: []string{cutBeforeAnswer},
			may:   []string{outageInStream, restartInStream},
			says:  "want at most 1",
		},
		{
			name: "loses what was under way",
			deliver: func(testing.TB, *Destination) deliverFunc {
				var lost sync.Map
				return func(ctx context.Context, c *client, events []*delivery.Event) []error {
					errs := c.DeliverBatch(ctx, events)
					for i, err := range errs {
						if delivery.IsUnavailable(err) && len(events) == batchSize {
							if _, again := lost.LoadOrStore(events[i].ID, true); !again {
								errs[i] = nil
							}
						}
					}
					return errs
				}
			},
			fails: []string{outageInStream},
			may:   []string{restartInStream},
		},
	}
}

// alterers change what they send.
func alterers() []fault {
	return []fault{
		{
			name: "sends text",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				var texts []*delivery.Event
				for _, e := range events {
					text := *e
					text.Payload = []byte(strings.ToValidUTF8(string(e.Payload), "?"))
					texts = append(texts, &text)
				}
				return c.DeliverBatch(ctx, texts)
			}),
			fails: []string{bytesArrive},
			says:  "arrived as",
		},
		{
			name: "sends nothing for null",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				var texts []*delivery.Event
				for _, e := range events {
					text := *e
					text.Payload = []byte(strings.ReplaceAll(string(e.Payload), "null", ""))
					texts = append(texts, &text)
				}
				return c.DeliverBatch(ctx, texts)
			}),
			fails: []string{noDataAnswers},
			says:  `the payload "null" arrived as ""`,
		},
		{
			name: "calls everything JSON",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				var plain []*delivery.Event
				for _, e := range events {
					untyped := *e
					untyped.ContentType = ""
					plain = append(plain, &untyped)
				}
				return c.DeliverBatch(ctx, plain)
			}),
			fails: []string{bytesArrive},
			says:  "the content type",
		},
	}
}

// blamers take the fault of one for that of another.
func blamers() []fault {
	return []fault{
		{
			name: "fails a batch for one event",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				errs := c.DeliverBatch(ctx, events)
				for _, err := range errs {
					if delivery.IsPermanent(err) {
						for i := range errs {
							errs[i] = err
						}
						break
					}
				}
				return errs
			}),
			fails: []string{badFailsAlone},
			says:  "a neighbour of the bad event is permanent",
		},
		{
			name: "tries what cannot be cured",
			deliver: each(func(_ context.Context, err error) error {
				if delivery.IsPermanent(err) {
					return errors.New("client: refused")
				}
				return err
			}),
			fails: []string{badFailsAlone, casePrefix + "refused"},
			says:  "to be tried again, want permanent",
		},
		{
			name: "calls an outage permanent",
			deliver: each(func(ctx context.Context, err error) error {
				if ctx.Err() == nil && !errors.Is(err, errClosed) && delivery.IsUnavailable(err) && strings.Contains(err.Error(), "connection refused") {
					return delivery.Permanent(errors.New(err.Error()))
				}
				return err
			}),
			fails: []string{nobodyListens, outageInStream},
			may:   []string{restartInStream},
			says:  "an outage has made event",
		},
		{
			name: "counts an outage as an attempt",
			deliver: each(func(ctx context.Context, err error) error {
				if ctx.Err() == nil && strings.Contains(err.Error(), "connection refused") {
					return errors.New(err.Error())
				}
				return err
			}),
			fails: []string{nobodyListens},
			says:  "that has cost the event an attempt",
		},
		{
			name: "makes a dead letter of a cut",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				errs := c.DeliverBatch(ctx, events)
				for i, err := range errs {
					if len(events) == 5 && delivery.IsUnavailable(err) && !strings.Contains(err.Error(), "connection refused") {
						errs[i] = delivery.Permanent(errors.New("client: cut"))
					}
				}
				return errs
			}),
			fails: []string{cutBeforeAnswer},
			may:   []string{nobodyListens},
			says:  "a dead letter",
		},
	}
}

// unfit handlers can be seen or heard where they should not.
func unfit() []fault {
	return []fault{
		{
			name: "writes into the event",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				if len(events) > 0 && events[0].Headers["tenant"] != "" {
					events[0].Attempt++
				}
				return c.DeliverBatch(ctx, events)
			}),
			fails: []string{leftAsItWas},
			says:  "has changed the event",
		},
		{
			name: "cannot be called twice at once",
			deliver: func(testing.TB, *Destination) deliverFunc {
				var inUse sync.Mutex
				return func(ctx context.Context, c *client, events []*delivery.Event) []error {
					if !inUse.TryLock() {
						return slices.Repeat([]error{errors.New("client: in use")}, len(events))
					}
					defer inUse.Unlock()
					return c.DeliverBatch(ctx, events)
				}
			},
			fails: []string{manyAtOnce},
			says:  "deliveries at once",
		},
		{
			name:    "tells its password",
			deliver: each(func(_ context.Context, err error) error { return &teller{err} }),
			fails:   []string{secretsUntold},
			says:    "an error (*handlertest.teller) shows a secret: client: [secret]",
		},
		{
			name: "logs its password",
			deliver: func(_ testing.TB, d *Destination) deliverFunc {
				// "relay1:" before it, as in an Authorization header.
				d.Log = func() string { return "all well\nsent cmVsYXkxOmNvcnJlY3QgaG9yc2UvYmF0dGVyeQ\n" }
				return func(ctx context.Context, c *client, events []*delivery.Event) []error {
					return c.DeliverBatch(ctx, events)
				}
			},
			fails: []string{secretsUntold},
			says:  "the log shows a secret: sent ",
		},
	}
}

// teller shows its password to %+v only.
type teller struct{ error }

func (e *teller) Unwrap() error { return e.error }

func (e *teller) Format(s fmt.State, _ rune) {
	if s.Flag('+') {
		_, _ = fmt.Fprintf(s, "client: %s", testPassword)
	} else {
		_, _ = fmt.Fprint(s, e.error)
	}
}

// closers cannot be closed as they should be.
func closers() []fault {
	return []fault{
		{
			name: "panics when it is closed again",
			close: func(c *client) error {
				select {
				case <-c.done:
					panic("client: close of a closed client")
				default:
					return c.Close()
				}
			},
			fails: []string{closeAgain},
			says:  "Close panics: client: close of a closed client",
		},
		{
			name: "says goodbye and waits for an answer",
			close: func(c *client) error {
				select {
				case <-c.done:
					return nil
				case c.slot <- struct{}{}:
				}
				if c.conn != nil {
					if _, err := fmt.Fprintln(c.conn, "QUIT"); err == nil {
						_, _ = c.r.ReadString('\n')
					}
				}
				<-c.slot
				return c.Close()
			},
			fails: []string{closeSilent},
			says:  "Close has not returned within ",
		},
		{
			name:  "cannot be closed",
			close: func(c *client) error { return errors.Join(c.Close(), errors.New("client: cannot")) },
			// finish closes in all of them.
			fails: []string{oneArrives},
			says:  "Close: client: cannot",
		},
	}
}

// undead handlers go on after they were closed.
func undead() []fault {
	return []fault{
		{
			name: "delivers after it is closed",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				select {
				case <-c.done:
					c = newClient(c.addr)
					defer c.Close() //nolint:errcheck // it gives none
				default:
				}
				return c.DeliverBatch(ctx, events)
			}),
			fails: []string{deliverAfter},
			may:   []string{closeUnderway},
			says:  "a closed handler reports a delivery",
		},
		{
			name: "panics after it is closed",
			deliver: just(func(ctx context.Context, c *client, events []*delivery.Event) []error {
				select {
				case <-c.done:
					panic("client: send on a closed channel")
				default:
					return c.DeliverBatch(ctx, events)
				}
			}),
			fails: []string{deliverAfter},
			may:   []string{closeUnderway},
			says:  "the handler panics: client: send on a closed channel",
		},
		{
			name: "buries what comes after it is closed",
			deliver: each(func(_ context.Context, err error) error {
				if errors.Is(err, errClosed) {
					return delivery.Permanent(errClosed)
				}
				return err
			}),
			fails: []string{deliverAfter},
			may:   []string{closeUnderway},
		},
		{
			name: "leaves a goroutine behind",
			deliver: func(tb testing.TB, _ *Destination) deliverFunc {
				tb.Helper()
				end := make(chan struct{})
				var left sync.WaitGroup
				tb.Cleanup(func() { close(end); left.Wait() })
				return func(ctx context.Context, c *client, events []*delivery.Event) []error {
					left.Go(func() { <-end })
					return c.DeliverBatch(ctx, events)
				}
			},
			fails: []string{goroutinesEnd},
			says:  "goroutines of the closed handler",
		},
	}
}
