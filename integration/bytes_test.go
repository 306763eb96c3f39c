package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/when"
	"github.com/notifyd/notifyd/ops"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const protobuf = "application/x-protobuf"

// content is a payload and its type.
type content struct{ body, kind string }

// arrivals are the events that a destination received, by id.
type arrivals struct {
	t    *testing.T
	name string

	mu  sync.Mutex
	got map[int64]content
}

func (a *arrivals) add(id string, body []byte, kind string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		a.t.Errorf("%s: %v", a.name, err)
	}
	if a.got == nil {
		a.got = make(map[int64]content)
	}
	a.got[n] = content{string(body), kind}
}

// are checks that exactly these events have come.
func (a *arrivals) are(want map[int64]content) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.got) != len(want) {
		a.t.Errorf("%s: %d events, want %d", a.name, len(a.got), len(want))
	}
	for id, w := range want {
		if g := a.got[id]; g != w {
			a.t.Errorf("%s, event %d: %.200q, want %.200q", a.name, id, g, w)
		}
	}
}

// contents are the events in the table, as consumers should receive them.
func (e *env) contents() map[int64]content {
	e.t.Helper()
	rows, err := e.pool.Query(e.ctx, `SELECT id, coalesce(convert_to(payload::text, 'UTF8'), payload_bytes),
		coalesce(content_type, CASE WHEN payload IS NULL THEN 'application/octet-stream' ELSE 'application/json' END) FROM outbox_events`)
	if err != nil {
		e.t.Fatal(err)
	}
	all := make(map[int64]content)
	var id int64
	var body []byte
	var kind string
	if _, err := pgx.ForEachRow(rows, []any{&id, &body, &kind}, func() error {
		all[id] = content{string(body), kind}
		return nil
	}); err != nil {
		e.t.Fatal(err)
	}
	return all
}

// someEvents are payloads of all kinds and sizes, some of them delayed.
func someEvents(seed uint64) (all []outbox.Event) {
	random := rand.New(rand.NewPCG(seed, 1))
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	add := func(payload any, kind string) {
		e := outbox.Event{
			Type: "order.created", AggregateType: "order", AggregateID: strconv.Itoa(random.IntN(5)), Payload: payload, ContentType: kind,
			Headers: map[string]string{"tenant": "acme"},
		}
		if len(all)%7 == 3 {
			e.AvailableAt = time.Now().Add(50 * time.Millisecond)
		}
		all = append(all, e)
	}
	add(every, protobuf)
	add([]byte(nil), protobuf)
	add([]byte(`{"n": 1}`), "text/plain; charset=utf-8")
	add(map[string]int{"n": 1}, "")
	add(map[string]int{"n": 2}, "application/vnd.acme.order+json")
	for range 40 {
		raw := make([]byte, random.IntN(1<<random.IntN(17)))
		for i := range raw {
			raw[i] = byte(random.Uint32())
		}
		add(raw, protobuf)
		add(len(raw), "")
	}
	return all
}

// write writes events in one transaction.
func (e *env) write(events ...outbox.Event) {
	e.t.Helper()
	if err := pgx.BeginFunc(e.ctx, e.pool, func(tx pgx.Tx) error { return outbox.Write(e.ctx, tx, events...) }); err != nil {
		e.t.Fatal(err)
	}
}

// TestBytes: payloads of any kind arrive byte for byte with their content type, at once and at the second attempt.
func TestBytes(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	rabbit := testenv.RabbitMQ(t)
	for i, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, mode)
			e.insert("order.created", ` {"written": "by hand"} `)
			e.write(someEvents(uint64(i))...)
			e.exec(`INSERT INTO outbox_events (event_type, payload_bytes) VALUES ('order.created', '\xff')`)
			want := e.contents()

			topic := "bytes-" + string(mode)
			brokers, toKafka := newByteTopic(t, topic)
			queue, toRabbit := newByteQueue(t, rabbit, topic, len(want))
			hooks, toHook := newByteHook(t)
			own := &arrivals{t: t, name: "handler"}
			second := delivery.HandlerFunc(func(_ context.Context, ev *delivery.Event) error {
				if ev.Attempt == 1 {
					return errors.New("not yet")
				}
				own.add(strconv.FormatInt(ev.ID, 10), ev.Payload, ev.ContentType)
				return nil
			})
			e.relay(func(r *notifyd.Relay) {
				err := errors.Join(r.Add(notifyd.Destination{Name: "kafka", Handler: toKafka}), r.Add(notifyd.Destination{Name: "rabbitmq", Handler: toRabbit}), r.Add(notifyd.Destination{Name: "webhook", Handler: toHook}),
					r.Add(notifyd.Destination{Name: "handler", Handler: second, Lane: delivery.Lane{Backoff: quick()}}), r.Route("*", "kafka", "rabbitmq", "webhook", "handler"))
				if err != nil {
					t.Fatal(err)
				}
			}, notifyd.Config{})
			e.untilDone()
			own.are(want)
			hooks.are(want)
			queue.read().are(want)
			recordsOf(t, brokers, topic, len(want)).are(want)
		})
	}
}

// closeAfter closes a handler at the end of the test.
func closeAfter(t *testing.T, c io.Closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// newByteTopic starts a Kafka with a topic.
func newByteTopic(t *testing.T, topic string) (brokers []string, h *kafka.Handler) {
	t.Helper()
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	if h, err = kafka.New(kafka.Config{Brokers: broker.ListenAddrs(), Topic: topic}); err != nil {
		t.Fatal(err)
	}
	closeAfter(t, h)
	return broker.ListenAddrs(), h
}

// newByteHook starts an HTTP server that takes CloudEvents in binary mode.
func newByteHook(t *testing.T) (*arrivals, *webhook.Handler) {
	t.Helper()
	a := &arrivals{t: t, name: "webhook"}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		a.add(r.Header.Get("ce-id"), body, r.Header.Get("Content-Type"))
	}))
	t.Cleanup(server.Close)
	h, err := webhook.New(webhook.Config{URL: server.URL, Message: handlers.Message{Format: handlers.FormatCloudEventsBinary}})
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, h)
	return a, h
}

// byteQueue is a queue of RabbitMQ.
type byteQueue struct {
	t         *testing.T
	n         int
	delivered <-chan amqp.Delivery
}

func newByteQueue(t *testing.T, b testenv.Broker, name string, n int) (*byteQueue, *rabbitmq.Handler) {
	t.Helper()
	conn, err := amqp.Dial(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDeclare(name, true, false, false, false, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	delivered, err := ch.Consume(name, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := rabbitmq.New(rabbitmq.Config{URL: handlers.NewSecret(b.URL), RoutingKey: name})
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, h)
	return &byteQueue{t, n, delivered}, h
}

func (q *byteQueue) read() *arrivals {
	q.t.Helper()
	a := &arrivals{t: q.t, name: "rabbitmq"}
	for range q.n {
		select {
		case d := <-q.delivered:
			a.add(d.MessageId, d.Body, d.ContentType)
		case <-time.After(patience):
			q.t.Fatalf("%d messages of %d", len(a.got), q.n)
		}
	}
	return a
}

func recordsOf(t *testing.T, brokers []string, topic string, n int) *arrivals {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.AlwaysRetryEOF(), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	a := &arrivals{t: t, name: "kafka"}
	for read := 0; read < n; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatalf("%d records of %d: %v", read, n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			read++
			headers := make(map[string]string)
			for _, h := range r.Headers {
				headers[h.Key] = string(h.Value)
			}
			a.add(headers["notifyd-id"], r.Value, headers["content-type"])
		})
	}
	return a
}

// TestBytesThatAreRefused: what asks for the JSON of an event that is not makes a dead letter that names the cure, what
// does not ask delivers it; one that is too large is refused by its size. What an edit puts in its place arrives.
func TestBytesThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, plain, picky := newEnvIn(t, mode), newRecorder(t), newRecorder(t)
			picky.answer = func(_ context.Context, ev *delivery.Event) error {
				if !bytes.Equal(ev.Payload, []byte{1, 2, 0}) {
					return delivery.Permanent(fmt.Errorf("%d bytes of %s are wrong", len(ev.Payload), ev.ContentType))
				}
				return nil
			}
			hook, err := webhook.New(webhook.Config{URL: "http://127.0.0.1:1/", Message: handlers.Message{Body: `{{ json .Payload.n }}`}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = hook.Close() })
			asks, asksNot := condition(t, `payload.n > 1`), condition(t, `event.type == "order.created"`)
			r := e.relay(func(r *notifyd.Relay) {
				if err := errors.Join(r.Add(notifyd.Destination{Name: "plain", Handler: plain}), r.Add(notifyd.Destination{Name: "picky", Handler: picky}), r.Add(notifyd.Destination{Name: "hook", Handler: hook}), r.Add(notifyd.Destination{Name: "asks", Handler: plain}),
					r.Route("*", "picky", "hook"), r.RouteWhen("*", asksNot, "plain"), r.RouteWhen("*", asks, "asks")); err != nil {
					t.Fatal(err)
				}
			}, notifyd.Config{MaxEventBytes: 1_000_000})
			e.write(outbox.Event{Type: "order.created", Payload: []byte{'7'}, ContentType: protobuf})
			id := scan[int64](e, `SELECT max(id) FROM outbox_events`)
			if got := plain.next(); got.ID != id || string(got.Payload) != "7" || got.ContentType != protobuf {
				t.Errorf("delivered is %+v", got)
			}
			const dead = `SELECT count(*) = $2 FROM outbox_deliveries WHERE event_id = $1 AND state = 'dead' AND error_class = 'event'`
			e.untilDone()
			e.until("three are dead letters", dead, id, 3)
			for name, want := range map[string]string{
				"picky": "1 bytes of application/x-protobuf are wrong",
				"hook":  "the payload is not JSON, but application/x-protobuf: put what the template needs into headers",
				"asks":  "the payload is not JSON by its content type",
			} {
				if got := scan[string](e, `SELECT last_error FROM outbox_deliveries WHERE event_id = $1 AND destination = $2`, id, name); !strings.Contains(got, want) {
					t.Errorf("%s: %s, want %s", name, got, want)
				}
			}
			dlq := r.Ops()
			if err := dlq.EditEvent(e.ctx, id, []byte{1, 2, 0}, ops.Action{Actor: "test"}); err != nil {
				t.Fatal(err)
			}
			if result, err := dlq.ReplayDeadLetters(e.ctx, ops.DeadLetterFilter{Events: []int64{id}, Destination: "picky"}, ops.BulkAction{Actor: "test"}); err != nil || result.Done != 1 {
				t.Fatalf("%+v, %v", result, err)
			}
			e.until("two are left", dead, id, 2)
			e.untilDone()
			shown, err := dlq.Case(e.ctx, id)
			if err != nil || !bytes.Equal(shown.Event.PayloadBytes, []byte{1, 2, 0}) || shown.Event.ContentType != protobuf || string(shown.Audit[0].OldPayloadBytes) != "7" {
				t.Errorf("%+v, %v", shown, err)
			}
			large := scan[int64](e, `INSERT INTO outbox_events (event_type, payload_bytes) VALUES ('order.created', convert_to(repeat('x', 2000000), 'UTF8')) RETURNING id`)
			e.until("a large one is dead", `SELECT count(*) > 0 FROM outbox_deliveries WHERE event_id = $1 AND state = 'dead' AND last_error LIKE '%event of 2000000 bytes was not read%'`, large)
			if mode == outboxsql.ModeStream {
				e.replaysBytes(plain, id)
			}
		})
	}
}

// replaysBytes delivers the stream to a destination again.
func (e *env) replaysBytes(to *recorder, id int64) {
	e.t.Helper()
	s, err := ops.New(e.pool, ops.Config{Schema: outboxsql.DefaultSchema})
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := s.StartReplay(e.ctx, ops.ReplayRange{Destination: "plain"}, ops.Action{}); err != nil {
		e.t.Fatal(err)
	}
	if got := to.next(); got.ID != id || !bytes.Equal(got.Payload, []byte{1, 2, 0}) || got.ContentType != protobuf || got.Replay == 0 {
		e.t.Errorf("replayed is %+v", got)
	}
}

func condition(t *testing.T, text string) delivery.Filter {
	t.Helper()
	l, err := when.New()
	if err != nil {
		t.Fatal(err)
	}
	x, err := l.Compile(text)
	if err != nil {
		t.Fatal(err)
	}
	return x.Match
}
