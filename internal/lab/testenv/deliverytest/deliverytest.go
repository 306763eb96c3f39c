// Package deliverytest has the events, and the checks of answers, that tests of destinations share.
package deliverytest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
)

type handler interface {
	delivery.Handler
	io.Closer
}

// Open returns the handler that construct makes. The end of the test closes it.
func Open[C any, H io.Closer](tb testing.TB, construct func(C, ...handlers.Option) (H, error), cfg C, opts ...handlers.Option) H {
	tb.Helper()
	h, err := construct(cfg, opts...)
	if err != nil {
		tb.Fatal(err)
	}

	tb.Cleanup(func() {
		if err := h.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return h
}

// Changed returns a copy of a configuration with changes.
func Changed[C any](cfg C, changes ...func(*C)) C {
	for _, change := range changes {
		change(&cfg)
	}
	return cfg
}

// Opener returns [Open] in the form that the suite of destinations expects.
func Opener[C any, H handler](construct func(C, ...handlers.Option) (H, error), cfg C) func(testing.TB) delivery.Handler {
	return func(tb testing.TB) delivery.Handler {
		tb.Helper()
		return Open(tb, construct, cfg)
	}
}

// Once returns a function that opens a handler and delivers an event with it, for a case of the suite.
func Once[C any, H handler](construct func(C, ...handlers.Option) (H, error), cfg C, e *delivery.Event, changes ...func(*C)) func(testing.TB) error {
	return func(tb testing.TB) error {
		tb.Helper()
		return Open(tb, construct, Changed(cfg, changes...)).Deliver(tb.Context(), e)
	}
}

// Event returns an event of the aggregate A-7 for a destination.
func Event(destination string, id int64, payload string) *delivery.Event {
	return &delivery.Event{
		ID:            id,
		Type:          "order.created",
		AggregateType: "order",
		AggregateID:   "A-7",
		Payload:       json.RawMessage(payload),
		Headers:       map[string]string{"tenant": "acme"},
		CreatedAt:     time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
		Attempt:       1,
		Destination:   destination,
	}
}

// Spread returns events of seven aggregates for a destination: the aggregate of each is its id modulo 7.
func Spread(destination string, ids ...int64) []*delivery.Event {
	all := make([]*delivery.Event, len(ids))
	for i, id := range ids {
		all[i] = &delivery.Event{
			ID:            id,
			Type:          "order.created",
			AggregateType: "order",
			AggregateID:   fmt.Sprint("k", id%7),
			Payload:       json.RawMessage(fmt.Sprintf(`{"n": %d}`, id)),
			Attempt:       1,
			Destination:   destination,
			CreatedAt:     time.Date(2026, 11, 21, 10, 0, 0, 123456000, time.UTC),
			Headers:       map[string]string{"traceparent": "00-1-2-03", "tenant": "a"},
		}
	}
	return all
}

// UpTo returns the ids 1 to n.
func UpTo(n int64) []int64 {
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64(i) + 1
	}
	return ids
}

// Deliver fails the test unless h delivers all events, in one batch.
func Deliver(tb testing.TB, h delivery.BatchHandler, all []*delivery.Event) {
	tb.Helper()
	for i, err := range h.DeliverBatch(tb.Context(), all) {
		if err != nil {
			tb.Fatalf("event %d: %v", all[i].ID, err)
		}
	}
}

// Class names the meaning of an answer: "delivered"; "permanent" or "retry" for an event at fault, "unclear-permanent" or
// "unclear-retry" if every event may be refused alike; "unavailable" or "throttled" for a destination at fault; "relay" if
// the relay ended the call.
func Class(err error) string {
	switch {
	case err == nil:
		return "delivered"
	case delivery.IsUnclear(err):
		return "unclear-" + Class(delivery.Proven(err))
	case delivery.IsPermanent(err):
		return "permanent"
	case delivery.IsUnavailable(err):
		return "unavailable"
	case delivery.IsThrottled(err):
		return "throttled"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "relay"
	default:
		return "retry"
	}
}

// Classes names the classes of all errors, in their order.
func Classes(errs []error) string {
	all := make([]string, len(errs))
	for i, err := range errs {
		all[i] = Class(err)
	}
	return strings.Join(all, " ")
}

// Times repeats a word of [Classes].
func Times(word string, n int) string { return strings.TrimSpace(strings.Repeat(word+" ", n)) }

// WantClass reports an error whose [Class] is another one.
func WantClass(tb testing.TB, err error, want string) {
	tb.Helper()
	if got := Class(err); got != want {
		tb.Errorf("class of %v is %s, want %s", err, got, want)
	}
}

// WantClasses reports errors whose [Classes] are others.
func WantClasses(tb testing.TB, errs []error, want string) {
	tb.Helper()
	if got := Classes(errs); got != want {
		tb.Errorf("%s, want %s: %v", got, want, errs)
	}
}

// WantText reports each text that the message of an error lacks. A nil error lacks all of them.
func WantText(tb testing.TB, err error, texts ...string) {
	tb.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			tb.Errorf("error %v does not contain %q", err, text)
		}
	}
}
