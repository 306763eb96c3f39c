package integration

import (
	"errors"
	"maps"
	"strconv"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe/oteltrace"
)

// place is where an event is in a topic.
type place struct {
	partition string
	offset    int64
}

// TestKafkaSpans: the span of each event has the partition and the offset of its record.
func TestKafkaSpans(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const n, partitions = 100, 3
	brokers := testenv.Kafka(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			topic := "spans-of-a-" + string(mode)
			testenv.KafkaTopic(t, brokers, topic, partitions, nil)
			h, err := kafka.New(kafka.Config{Brokers: brokers, Topic: topic})
			if err != nil {
				t.Fatal(err)
			}
			spans := tracetest.NewInMemoryExporter()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
			e := newEnvIn(t, mode)
			relay := e.relay(func(r *notifyd.Relay) {
				r.Use(oteltrace.Middleware(provider))
				handleAll(t, h, delivery.Lane{})(r)
			}, notifyd.Config{})
			e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
				SELECT 'order.changed', 'order', i % 10, '1' FROM generate_series(1, $1::int) i`, n)
			e.untilDone()
			if err := errors.Join(relay.end(), h.Close()); err != nil {
				t.Fatal(err)
			}
			got, want := make(map[string]place), make(map[string]place)
			for _, s := range spans.GetSpans() {
				has := attribute.NewSet(s.Attributes...)
				id, _ := has.Value("messaging.message.id")
				partition, _ := has.Value("messaging.destination.partition.id")
				offset, _ := has.Value("messaging.kafka.offset")
				got[id.AsString()] = place{partition.AsString(), offset.AsInt64()}
			}
			for _, r := range readTopic(t, brokers[0], topic) {
				want[strconv.FormatInt(headerID(t, r), 10)] = place{strconv.Itoa(int(r.Partition)), r.Offset}
			}
			if len(want) != n || !maps.Equal(got, want) {
				t.Errorf("%d spans have %v, want %v", len(got), got, want)
			}
		})
	}
}
