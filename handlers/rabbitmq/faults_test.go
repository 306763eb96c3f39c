package rabbitmq_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestAlarm: the broker's memory alarm makes deliveries fail at once, with the
// broker's reason, and nothing is lost or kept waiting.
func TestAlarm(t *testing.T) {
	t.Parallel()
	s, b := own(t, rabbitserver.Config{})
	b.queue("q", nil)
	var log logged
	h := open(t, to(b.url, "q"), log.option())
	if errs := h.DeliverBatch(t.Context(), events(1, 10)); errs != nil {
		t.Fatal(errs)
	}
	if got := h.Report(); !got.Connected || got.Blocked || got.Unconfirmed != 0 {
		t.Errorf("stats: %+v", got)
	}
	if _, err := s.Ctl(t.Context(), "set_vm_memory_high_watermark", "0.0000001"); err != nil {
		t.Fatal(err)
	}
	// The broker notifies a connection only when it publishes.
	begin := time.Now()
	isUnavailable(t, h.Deliver(testenv.Within(t, patience), event(11)), "blocked publishers", "memory")
	isUnavailable(t, h.Deliver(testenv.Within(t, patience), event(11)), "blocked publishers", "memory")
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("it took %v to say so", took)
	}
	if got := h.Report(); !got.Connected || !got.Blocked || !strings.Contains(got.Reason, "memory") {
		t.Errorf("stats: %+v", got)
	}
	if _, err := s.Ctl(t.Context(), "set_vm_memory_high_watermark", "0.4"); err != nil {
		t.Fatal(err)
	}
	settled(t, "delivery after the alarm", func() error { return h.Deliver(t.Context(), event(11)) })
	if n := log.count("blocks publishers"); n != 1 {
		t.Errorf("the alarm is logged %d times:\n%s", n, log.String())
	}
	log.tells(t, "accepts publishers again", 1) // a moment after it takes them
	got := ids(b.take("q"))
	slices.Sort(got)
	if got = slices.Compact(got); len(got) != 11 {
		t.Errorf("arrived: %v", got)
	}
}

// answers fails unless there is an answer for each of n events: no answers at
// all say that everything was delivered.
func answers(t *testing.T, errs []error, n int) []error {
	t.Helper()
	if len(errs) != n {
		t.Fatalf("%d answers for %d events", len(errs), n)
	}
	return errs
}

const heftyEvents = 20

// hefty are messages larger together than any buffer.
func hefty() []*delivery.Event {
	batch := events(2, heftyEvents)
	for _, e := range batch {
		e.Payload = json.RawMessage(`"` + strings.Repeat("x", 4<<20) + `"`)
	}
	return batch
}

// pausable starts a broker with the queue q, and gives its pause an end with
// that of the test.
func pausable(t *testing.T) (*rabbitserver.Server, broker) {
	t.Helper()
	s, b := own(t, rabbitserver.Config{})
	b.queue("q", nil)
	t.Cleanup(func() { _ = s.Resume(context.WithoutCancel(t.Context())) })
	return s, b
}

// TestPausedBroker fills the socket of a broker that has stopped reading: the
// delivery ends by write_timeout.
func TestPausedBroker(t *testing.T) {
	t.Parallel()
	s, b := pausable(t)
	cfg := to(b.url, "q")
	cfg.WriteTimeout = time.Second
	h := open(t, cfg)
	if err := h.Deliver(t.Context(), event(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, err := range answers(t, h.DeliverBatch(testenv.Within(t, patience), hefty()), heftyEvents) {
		isUnavailable(t, err)
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	settled(t, "delivery after the pause", func() error { return h.Deliver(t.Context(), event(100)) })
}

// TestPausedBrokerCancelled: a write that hangs ends with its context.
func TestPausedBrokerCancelled(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	s, b := pausable(t)
	cfg := to(b.url, "q")
	cfg.WriteTimeout = time.Hour
	h := open(t, cfg)
	if err := h.Deliver(t.Context(), event(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []error)
	go func() { done <- h.DeliverBatch(ctx, hefty()) }()
	select { // time enough to fill the socket; too little would only prove less
	case errs := <-done:
		t.Fatalf("a paused broker has taken everything: %v", errs)
	case <-time.After(time.Second):
	}
	cancel()
	select {
	case errs := <-done:
		for _, err := range answers(t, errs, heftyEvents) {
			if !errors.Is(err, context.Canceled) || delivery.IsUnavailable(err) {
				t.Errorf("cancelled: %v", err)
			}
		}
	case <-time.After(patience):
		t.Fatal("a cancelled delivery hangs in the socket")
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	settled(t, "delivery after the pause", func() error { return h.Deliver(t.Context(), event(101)) })
}

// TestTooLargeForTheBroker: the broker closes the channel, with everything that
// is under way on it, and does not say for which message.
func TestTooLargeForTheBroker(t *testing.T) {
	t.Parallel()
	_, b := own(t, rabbitserver.Config{Settings: map[string]string{"max_message_size": "10000"}})
	b.queue("q", nil)
	h := open(t, to(b.url, "q"))
	batch := events(1, 50)
	for _, bad := range []int{7, 23, 49} {
		batch[bad].Payload = json.RawMessage(`"` + strings.Repeat("x", 20000) + `"`)
	}
	errs := h.DeliverBatch(t.Context(), batch)
	if len(errs) != len(batch) {
		t.Fatalf("%d answers", len(errs))
	}
	for i, err := range errs {
		switch i {
		case 7, 23, 49:
			isPermanent(t, err, "PRECONDITION_FAILED", "10000")
		default:
			if err != nil {
				t.Errorf("its neighbour %d: %v", i, err)
			}
		}
	}
	first := firsts(ids(b.take("q")))
	if len(first) != 47 || !slices.IsSorted(first) {
		t.Errorf("arrived: %v", first)
	}
}

// firsts drops repeated messages.
func firsts(ids []int64) []int64 {
	seen := make(map[int64]bool)
	return slices.DeleteFunc(ids, func(id int64) bool {
		was := seen[id]
		seen[id] = true
		return was
	})
}

// TestOneOfManyQueues: only messages that lead nowhere fail.
func TestOneOfManyQueues(t *testing.T) {
	t.Parallel()
	b := broker{t, testenv.RabbitMQ(t).URL}
	b.queue("to.even", nil)
	cfg := to(b.url, "to.{{ .Headers.side }}")
	h := open(t, cfg)
	batch := events(1, 10)
	for i, e := range batch {
		e.Headers = map[string]string{"side": []string{"even", "odd"}[i%2]}
	}
	for i, err := range answers(t, h.DeliverBatch(t.Context(), batch), len(batch)) {
		if i%2 == 0 && err != nil {
			t.Errorf("event %d: %v", i, err)
		} else if i%2 == 1 {
			isRetried(t, err, "312", `"to.odd"`)
		}
	}
	if got := ids(b.take("to.even")); !slices.Equal(got, []int64{1, 3, 5, 7, 9}) {
		t.Errorf("arrived: %v", got)
	}
}

// TestFullQueue: the messages that a full queue refuses are not lost, and those
// behind them of the same aggregate come again after them.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	b := broker{t, testenv.RabbitMQ(t).URL}
	b.queue("q", amqp.Table{"x-max-length": int64(5), "x-overflow": "reject-publish"})
	h := open(t, to(b.url, "q"))
	refused := 0
	for i, err := range answers(t, h.DeliverBatch(t.Context(), events(1, 20)), 20) {
		if err != nil {
			refused++
			isUnavailable(t, err, "queue is full")
		} else if i > 10 {
			t.Errorf("event %d is said to be in a queue of five", i)
		}
	}
	if got := b.take("q"); refused == 0 || len(got)+refused != 20 {
		t.Errorf("%d arrived, %d refused", len(got), refused)
	}
}

// TestDeletedQueue: with a declaration it is made again, without one its events
// wait.
func TestDeletedQueue(t *testing.T) {
	t.Parallel()
	b := broker{t, testenv.RabbitMQ(t).URL}
	b.queue("q", nil)
	h := open(t, to(b.url, "q"))
	cfg := to(b.url, "d")
	cfg.Declare.Queues = []rabbitmq.Queue{{Name: "d", Arguments: map[string]any{"x-queue-type": "classic"}}}
	declaring := open(t, cfg)
	for _, h := range []*rabbitmq.Handler{h, declaring} {
		if err := h.Deliver(t.Context(), event(1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, queue := range []string{"q", "d"} {
		if _, err := b.channel().QueueDelete(queue, false, false, false); err != nil {
			t.Fatal(err)
		}
	}
	isUnavailable(t, h.Deliver(t.Context(), event(2)), "NO_ROUTE")
	isUnavailable(t, h.Deliver(t.Context(), event(2)), "NO_ROUTE")
	isUnavailable(t, declaring.Deliver(t.Context(), event(2)), "NO_ROUTE")
	if err := declaring.Deliver(t.Context(), event(2)); err != nil {
		t.Errorf("the queue was not declared again: %v", err)
	}
}

// TestConfirmsLost holds back the broker's answers and cuts the connection: the
// handler cannot know whether the messages have arrived, and sends them again.
func TestConfirmsLost(t *testing.T) {
	t.Parallel()
	broker1 := testenv.RabbitMQ(t)
	if broker1.Server == nil {
		t.Skip("it needs a node of our own")
	}
	b := broker{t, broker1.URL}
	b.queue("q", nil)
	proxy := handlertest.StartProxy(t, broker1.Server.Addr())
	h := open(t, to(strings.Replace(b.url, broker1.Server.Addr(), proxy.Addr(), 1), "q"))
	if err := h.Deliver(t.Context(), event(1)); err != nil {
		t.Fatal(err)
	}
	b.take("q")
	proxy.Mute()
	done := make(chan []error)
	batch := events(2, 30)
	go func() { done <- h.DeliverBatch(t.Context(), batch) }()
	var got []int64
	settled(t, "the messages arrive", func() error {
		if got = append(got, ids(b.take("q"))...); len(got) < 30 {
			return errors.New("not all")
		}
		return nil
	})
	if n := h.Report().Unconfirmed; n != 30 {
		t.Errorf("%d unconfirmed, want 30", n)
	}
	proxy.Cut()
	for _, err := range answers(t, <-done, len(batch)) {
		isUnavailable(t, err, "before the message was confirmed")
	}
	proxy.Heal()
	settled(t, "delivery after the cut", func() error { return errors.Join(h.DeliverBatch(t.Context(), batch)...) })
	if again := ids(b.take("q")); !slices.Equal(again, got) {
		t.Errorf("came again: %v", again)
	}
}

// TestConfirmTimeout: a broker that does not confirm is down, and what it says
// later is no answer to the next delivery.
func TestConfirmTimeout(t *testing.T) {
	t.Parallel()
	shared := testenv.RabbitMQ(t)
	if shared.Server == nil {
		t.Skip("it needs a node of our own")
	}
	b := broker{t, shared.URL}
	b.queue("q", nil)
	proxy := handlertest.StartProxy(t, shared.Server.Addr())
	cfg := to(strings.Replace(b.url, shared.Server.Addr(), proxy.Addr(), 1), "{{ .Headers.to }}")
	cfg.ConfirmTimeout = 5 * time.Second
	h := open(t, cfg)
	good, lost := event(1), event(2)
	good.Headers, lost.Headers = map[string]string{"to": "q"}, map[string]string{"to": "nowhere"}
	if err := h.Deliver(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	proxy.Mute()
	isUnavailable(t, h.Deliver(t.Context(), lost), "confirm_timeout of 5s is over")
	proxy.Heal()
	// The return of the first try is on its way, the event goes elsewhere now.
	lost.Headers = good.Headers
	if err := h.Deliver(t.Context(), lost); err != nil {
		t.Errorf("after the broker has answered: %v", err)
	}
}

// TestClosedByOperator: rabbitmqctl close_all_connections and a restart.
func TestClosedByOperator(t *testing.T) {
	t.Parallel()
	s, b := own(t, rabbitserver.Config{})
	b.queue("q", nil)
	var log logged
	h := open(t, to(b.url, "q"), log.option())
	next := int64(1)
	deliver := func() error { return errors.Join(h.DeliverBatch(t.Context(), events(next, 20))...) }
	for what, fault := range map[string]func() error{
		"close_all_connections": func() error { _, err := s.Ctl(t.Context(), "close_all_connections", "maintenance"); return err },
		"stop_app": func() error {
			_, err := s.Ctl(t.Context(), "stop_app")
			isUnavailable(t, errors.Join(h.DeliverBatch(t.Context(), events(next, 3))...))
			_, err2 := s.Ctl(t.Context(), "start_app")
			return errors.Join(err, err2)
		},
		"kill": func() error { return errors.Join(s.Kill(t.Context()), s.Start(t.Context())) },
	} {
		if err := deliver(); err != nil {
			t.Fatalf("before %s: %v", what, err)
		}
		if err := fault(); err != nil {
			t.Fatal(err)
		}
		next += 20
		settled(t, "delivery after "+what, deliver)
		next += 20
	}
	got := firsts(ids(b.take("q")))
	slices.Sort(got)
	if len(got) != int(next-1) {
		t.Errorf("%d of %d arrived", len(got), next-1)
	}
	log.tells(t, "rabbitmq connected", log.count("rabbitmq not connected")+1) // the last one perhaps a moment after it is used
}

// TestStrictOrder: the second event of an aggregate is not even published while
// the first one fails.
func TestStrictOrder(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	b := broker{t, testenv.RabbitMQ(t).URL}
	b.queue("q", nil)
	cfg := to(b.url, "{{ .Headers.to }}")
	cfg.StrictOrder = true
	h := open(t, cfg)
	batch := events(1, 6)
	for i, e := range batch {
		e.Headers, e.AggregateID = map[string]string{"to": "q"}, []string{"a", "b"}[i%2]
	}
	batch[2].Headers = map[string]string{"to": "nowhere"} // the second of a
	errs := h.DeliverBatch(t.Context(), batch)
	if len(errs) != 6 || errs[0] != nil || errs[1] != nil || errs[3] != nil || errs[5] != nil {
		t.Errorf("answers: %v", errs)
	} else {
		isRetried(t, errs[2], "NO_ROUTE")
		isRetried(t, errs[4], "an earlier event of the same aggregate failed")
	}
	if got := ids(b.take("q")); !slices.Equal(got, []int64{1, 2, 4, 6}) {
		t.Errorf("arrived: %v", got)
	}
}
