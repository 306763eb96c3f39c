package kafka

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/privateserver/kafkaserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// through has a handler connect to addr, whatever the broker calls itself.
func through(h *Handler, addr string) {
	h.options = append(h.options, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}))
}

func TestConformance(t *testing.T) {
	t.Parallel()
	const password = "correct-horse-battery-staple"
	s := testenv.OwnKafka(t, kafkaserver.Config{Secure: kafkaserver.Secure{Users: map[string]string{"ann": password}}})
	brokers := []string{s.Addr()}
	topic := newTopic(t, brokers, 2, map[string]string{"max.message.bytes": "100000"})
	proxy := handlertest.StartProxy(t, s.SecureAddr())
	make1 := func(tb testing.TB, change ...func(*Config)) *Handler {
		tb.Helper()
		cfg := Config{
			Brokers: []string{s.SecureAddr()}, Topic: topic, DeliveryTimeout: 20 * time.Second,
			SASL: &SASL{Mechanism: SASLPlain, Username: "ann", Password: handlers.NewSecret(password)},
		}
		for _, f := range change {
			f(&cfg)
		}
		h, err := New(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		through(h, proxy.Addr())
		return h
	}
	once := func(change func(*Config), ev *delivery.Event) func(testing.TB) error {
		return func(tb testing.TB) error {
			tb.Helper()
			h := make1(tb, change)
			defer h.Close() //nolint:errcheck // always nil
			return h.Deliver(tb.Context(), ev)
		}
	}
	ok := events(1)[0]
	compacted := newTopic(t, brokers, 1, map[string]string{"cleanup.policy": "compact"})
	keyless := *ok
	keyless.AggregateID = ""
	registry := pretend(t, says(http.StatusNotFound, `{"error_code": 40401, "message": "none"}`))
	large := *ok
	large.Payload = json.RawMessage(`"` + strings.Repeat("x", 200_000) + `"`)
	handlertest.Run(t, handlertest.Destination{
		Open:     func(tb testing.TB) delivery.Handler { tb.Helper(); return make1(tb) },
		Received: func(tb testing.TB) []int64 { tb.Helper(); return received(tb, brokers, topic) },
		Message: func(tb testing.TB, id int64) ([]byte, string) {
			tb.Helper()
			return messageOf(tb, brokers, topic, id)
		},
		Rejected: func(id int64) *delivery.Event { bad := large; bad.ID = id; return &bad },
		Network:  proxy,
		Stop: func(tb testing.TB) {
			tb.Helper()
			if err := s.Halt(tb.Context()); err != nil {
				tb.Fatal(err)
			}
		},
		Start: func(tb testing.TB) {
			tb.Helper()
			if err := s.Start(tb.Context()); err != nil {
				tb.Fatal(err)
			}
		},
		Secrets: []string{password, password + "!"},
		Ordered: true,
		Cases: []handlertest.Case{
			{
				Name: "the topic does not exist", Class: delivery.ClassDestination, Text: "UNKNOWN_TOPIC_OR_PARTITION",
				Provoke: once(to("nowhere"), ok),
			},
			{
				Name: "the topic of one event does not exist", Class: delivery.ClassEvent, Unclear: true, Text: "UNKNOWN_TOPIC_OR_PARTITION",
				Provoke: once(to("{{ .Event.Type }}"), ok),
			},
			{
				Name: "a record that the topic does not take", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "INVALID_RECORD",
				Provoke: once(to(compacted), &keyless),
			},
			{
				Name: "the event's partition is missing", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "has no partition 7",
				Provoke: once(func(c *Config) { c.Partition = `{{ "7" }}` }, ok),
			},
			{
				Name: "the partition of all events is missing", Class: delivery.ClassDestination, Text: "has no partition 7",
				Provoke: once(func(c *Config) { c.Partition = "7" }, ok),
			},
			{
				Name: "the registry lacks the subject of all events", Class: delivery.ClassDestination, Text: "register the schema",
				Provoke: once(with(SchemaRegistry{URL: registry.URL}), ok),
			},
			{
				Name: "the registry lacks the subject of the event", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "register the schema",
				Provoke: once(with(SchemaRegistry{URL: registry.URL, Subject: "{{ .Event.Type }}"}), ok),
			},
			{
				Name: "too large for the topic", Class: delivery.ClassEvent, Permanent: true, Text: "MESSAGE_TOO_LARGE",
				Provoke: once(to(topic), &large),
			},
			{
				Name: "too large for the destination", Class: delivery.ClassEvent, Permanent: true, Text: "max_message_bytes",
				Provoke: once(func(c *Config) { c.MaxMessageBytes = 50_000 }, &large),
			},
			{
				Name: "a wrong password", Class: delivery.ClassDestination, Text: "check sasl",
				Provoke: once(func(c *Config) { c.SASL.Password = handlers.NewSecret(password + "!") }, ok),
			},
		},
	})
}

// received returns the ids in a topic, one partition after the other.
func received(tb testing.TB, brokers []string, topic string) (ids []int64) {
	tb.Helper()
	byPartition := make(map[int32][]int64)
	eachRecord(tb, brokers, topic, func(r *kgo.Record) {
		if id := eventIn(tb, r); id != 0 {
			byPartition[r.Partition] = append(byPartition[r.Partition], id)
		}
	})
	for _, p := range byPartition {
		ids = append(ids, p...)
	}
	return ids
}

// eventIn returns the id of the event in a record, 0 if there is none.
func eventIn(tb testing.TB, r *kgo.Record) int64 {
	tb.Helper()
	text := headerOf(r, "notifyd-id")
	if text == "" {
		return 0
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		tb.Error(err)
	}
	return id
}

func headerOf(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// messageOf returns the value of an event's record, and its content type.
func messageOf(tb testing.TB, brokers []string, topic string, id int64) (body []byte, contentType string) {
	tb.Helper()
	eachRecord(tb, brokers, topic, func(r *kgo.Record) {
		if eventIn(tb, r) == id {
			body, contentType = r.Value, headerOf(r, headerContentType)
		}
	})
	return body, contentType
}

// eachRecord calls do for the records in a topic, in the order of each partition.
func eachRecord(tb testing.TB, brokers []string, topic string, do func(*kgo.Record)) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.AlwaysRetryEOF(), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		tb.Fatal(err)
	}
	defer cl.Close()
	for left := testenv.KafkaEnd(tb, brokers, topic); left > 0; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			tb.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			do(r)
		})
	}
}
