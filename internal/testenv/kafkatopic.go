package testenv

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// KafkaTopic makes a topic that no other test of the brokers makes; configs may
// be nil. A broker that is short of time answers late, the client asks again, and
// is told that the topic is there: so it is.
func KafkaTopic(tb testing.TB, brokers []string, name string, partitions int32, configs map[string]*string) {
	tb.Helper()
	// A broker that is busy with its start closes a connection now and then. The
	// client takes that for a lack of SASL, which cannot be meant here.
	client, err := kadm.NewOptClient(kgo.SeedBrokers(brokers...), kgo.AlwaysRetryEOF())
	if err != nil {
		tb.Fatal(err)
	}
	defer client.Close()
	if _, err := client.CreateTopic(tb.Context(), partitions, 1, configs, name); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		tb.Fatalf("make the topic %s: %v", name, err)
	}
}
