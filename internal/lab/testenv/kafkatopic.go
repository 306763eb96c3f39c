package testenv

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// KafkaTopic creates a topic for the test; configs may be nil. A slow broker answers late, the client repeats the
// request, and the broker answers that the topic exists, which is success.
func KafkaTopic(tb testing.TB, brokers []string, name string, partitions int32, configs map[string]*string) {
	tb.Helper()
	// A broker that is busy starting sometimes closes a connection. The client would take that for missing SASL.
	client, err := kadm.NewOptClient(kgo.SeedBrokers(brokers...), kgo.AlwaysRetryEOF())
	if err != nil {
		tb.Fatal(err)
	}
	defer client.Close()

	_, err = client.CreateTopic(tb.Context(), partitions, 1, configs, name)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		tb.Fatalf("create the topic %s: %v", name, err)
	}

	// The controller has created the topic. The broker learns of it a moment later.
	for {
		known, err := client.ListTopics(tb.Context(), name)
		if err == nil && known[name].Err == nil && len(known[name].Partitions) == int(partitions) {
			return
		}

		select {
		case <-tb.Context().Done():
			tb.Fatalf("the topic %s is not to be seen: %v", name, errors.Join(err, known[name].Err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// KafkaEnd returns how many offsets the partitions of a topic have, and 0 for a topic that does not exist. A server that
// has just started has no leaders for a moment, which is waited out.
func KafkaEnd(tb testing.TB, brokers []string, topic string) (end int64) {
	tb.Helper()
	client, err := kadm.NewOptClient(kgo.SeedBrokers(brokers...), kgo.AlwaysRetryEOF())
	if err != nil {
		tb.Fatal(err)
	}
	defer client.Close()

	ctx, cancel := context.WithTimeout(tb.Context(), leadersWithin)
	defer cancel()

	for {
		ends, err := client.ListEndOffsets(ctx, topic)
		if err == nil {
			err = ends.Error()
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			return 0
		}
		if err == nil {
			ends.Each(func(o kadm.ListedOffset) { end += o.Offset })
			return end
		}

		select {
		case <-ctx.Done():
			tb.Fatalf("the end of the topic %s: %v", topic, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// leadersWithin bounds how long KafkaEnd waits for leaders.
const leadersWithin = 2 * time.Minute
