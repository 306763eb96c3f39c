package watermill_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	wmlog "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/handlers/watermill"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func event(id int64) *delivery.Event {
	return &delivery.Event{
		ID: id, Type: "order.created", AggregateType: "order", AggregateID: "A-7", Payload: json.RawMessage(`{"a":  1}`),
		Headers: map[string]string{"tenant": "acme", "notifyd-id": "forged"}, CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Replay: 1,
	}
}

// channel is a Pub/Sub in the process whose messages are counted.
type channel struct {
	*gochannel.GoChannel
	mu  sync.Mutex
	ids []int64
}

func newChannel(tb testing.TB, topic string) *channel {
	tb.Helper()
	c := &channel{GoChannel: gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, wmlog.NopLogger{})}
	messages, err := c.Subscribe(tb.Context(), topic)
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range messages {
			c.note(m)
			m.Ack()
		}
	}()
	tb.Cleanup(func() {
		_ = c.Close()
		<-done
	})
	return c
}

func (c *channel) note(m *message.Message) {
	id, _ := strconv.ParseInt(m.UUID, 10, 64) // a mistake is missed in the ids
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids = append(c.ids, id)
}

func (c *channel) received() []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.ids)
}

// shared leaves the channel open when a handler closes it, and refuses messages with the word
// "bad" in them.
type shared struct{ *channel }

func (s shared) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if strings.Contains(string(m.Payload), "bad") {
			return errBad
		}
	}
	return s.channel.Publish(topic, messages...)
}

func (shared) Close() error { return nil }

var errBad = errors.New("a bad message")

func classify(err error) error {
	if errors.Is(err, errBad) {
		return delivery.Permanent(err)
	}
	return err
}

func newHandler(tb testing.TB, p message.Publisher, topic func(*delivery.Event) string, options ...watermill.Option) *watermill.Handler {
	tb.Helper()
	h, err := watermill.New(p, topic, options...)
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

// TestConformance runs Watermill's own Pub/Sub through the suite.
func TestConformance(t *testing.T) {
	t.Parallel()
	c := newChannel(t, "orders")
	handlertest.Run(t, handlertest.Destination{
		Open: func(tb testing.TB) delivery.Handler {
			tb.Helper()
			return newHandler(tb, shared{c}, watermill.Topic("orders"), watermill.WithClassify(classify))
		},
		Received: func(testing.TB) []int64 { return c.received() },
		Rejected: func(id int64) *delivery.Event {
			e := event(id)
			e.Payload = json.RawMessage(`"bad"`)
			e.Replay = 0
			return e
		},
		Cases: []handlertest.Case{{
			Name: "no topic", Class: delivery.ClassEvent, Permanent: true, Text: "no topic",
			Provoke: func(tb testing.TB) error {
				tb.Helper()
				return newHandler(tb, shared{c}, watermill.Topic("")).Deliver(tb.Context(), event(1))
			},
		}, {
			Name: "an error that nobody classifies", Class: delivery.ClassEvent, Unclear: true, Text: "a bad message",
			Provoke: func(tb testing.TB) error {
				tb.Helper()
				e := event(1)
				e.Payload = json.RawMessage(`"bad"`)
				return newHandler(tb, shared{c}, watermill.Topic("orders")).Deliver(tb.Context(), e)
			},
		}},
	})
}

// TestMessage compares the message with the event.
func TestMessage(t *testing.T) {
	t.Parallel()
	var got *message.Message
	h := newHandler(t, publisher(func(topic string, messages ...*message.Message) error {
		got = messages[0]
		if topic != "topic-of-order.created" {
			t.Errorf("topic %s", topic)
		}
		return nil
	}), func(e *delivery.Event) string { return "topic-of-" + e.Type })
	if err := h.Deliver(t.Context(), event(42)); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"notifyd-id": "42r1", "notifyd-type": "order.created", "notifyd-aggregate-type": "order", "notifyd-aggregate-id": "A-7",
		"notifyd-time": "2026-03-04T05:06:07Z", "tenant": "acme",
	}
	if got.UUID != "42r1" || string(got.Payload) != `{"a":  1}` || !maps.Equal(got.Metadata, want) || got.Context() != t.Context() {
		t.Errorf("got %+v", got)
	}
	text, err := h.Preview(event(42))
	if err != nil || !strings.Contains(text, "topic-of-order.created") || !strings.Contains(text, "42r1") {
		t.Errorf("%s%v", text, err)
	}
}

// publisher is a message.Publisher.
type publisher func(topic string, messages ...*message.Message) error

func (p publisher) Publish(topic string, messages ...*message.Message) error {
	return p(topic, messages...)
}

func (publisher) Close() error { return nil }

// TestBatch: one call for each topic, and one for each event once a call has failed.
func TestBatch(t *testing.T) {
	t.Parallel()
	errDown := errors.New("down")
	events := []*delivery.Event{event(1), event(2), event(3), event(4)}
	events[1].Type, events[3].Type = "user.created", "user.created"
	for name, c := range map[string]struct {
		fail  string // calls with this in them
		err   error
		calls []string
		want  string
	}{
		"delivered": {"nothing", nil, []string{"order.created 1r1 3r1", "user.created 2r1 4r1"}, "[<nil> <nil> <nil> <nil>]"},
		"a bad one": {
			"3r1", errBad,
			[]string{"order.created 1r1 3r1", "order.created 1r1", "order.created 3r1", "user.created 2r1 4r1"},
			"[<nil> <nil> watermill: a bad message <nil>]",
		},
		"down": {
			"order", errDown,
			[]string{"order.created 1r1 3r1", "user.created 2r1 4r1"},
			"[watermill: down <nil> watermill: down <nil>]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls []string
			h := newHandler(t, publisher(func(topic string, messages ...*message.Message) error {
				call := topic
				for _, m := range messages {
					call += " " + m.UUID
				}
				calls = append(calls, call)
				if strings.Contains(call, c.fail) {
					return c.err
				}
				return nil
			}), func(e *delivery.Event) string { return e.Type }, watermill.WithClassify(func(err error) error {
				if errors.Is(err, errDown) {
					return delivery.Unavailable(err)
				}
				return err
			}))
			if got := fmt.Sprint(h.DeliverBatch(t.Context(), events)); got != c.want || !slices.Equal(calls, c.calls) {
				t.Errorf("got %s, want %s; calls %q", got, c.want, calls)
			}
		})
	}
}

// TestContext: a publisher that gives up because the relay stops is not at fault, nor is the event.
func TestContext(t *testing.T) {
	t.Parallel()
	cause := errors.New("the relay stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	h := newHandler(t, publisher(func(_ string, messages ...*message.Message) error {
		cancel(cause)
		<-messages[0].Context().Done()
		return errBad
	}), watermill.Topic("t"), watermill.WithClassify(classify))
	for _, err := range h.DeliverBatch(ctx, []*delivery.Event{event(1), event(2)}) {
		if !errors.Is(err, cause) || delivery.IsPermanent(err) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := watermill.New(nil, watermill.Topic("t")); err == nil {
		t.Error("there is no publisher")
	}
}
