//go:build testall

package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// unregistered is a topic whose schemas, one for each type of event, are not registered.
func unregistered(t *testing.T, name string) picky {
	t.Helper()
	brokers, registry := testenv.Kafka(t), testenv.SchemaRegistry(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.AlwaysRetryEOF(), kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	testenv.KafkaTopic(t, brokers, name, 1, nil)
	schemas, err := sr.NewClient(sr.URLs(registry))
	if err != nil {
		t.Fatal(err)
	}

	var got []int64
	return picky{
		settings: fmt.Sprintf(`type: kafka, brokers: "%s", topic: %s, schema_registry: {url: "%s", subject: "%[2]s-{{ .Event.Type }}"}`,
			strings.Join(brokers, ","), name, registry),
		cure: func() {
			if _, err := schemas.CreateSchema(t.Context(), name+"-order.placed", sr.Schema{Type: sr.TypeJSON, Schema: `{"type": "object", "properties": {"n": {"type": "integer"}}}`}); err != nil {
				t.Fatal(err)
			}
		},
		arrived: func() []int64 {
			// The end of the topic is known before the records are read, so that the reading ends.
			end := testenv.KafkaEnd(t, brokers, name)
			for int64(len(got)) < end {
				fetches := client.PollFetches(t.Context())
				if err := fetches.Err(); err != nil {
					t.Fatal(err)
				}
				fetches.EachRecord(func(r *kgo.Record) {
					for _, h := range r.Headers {
						if h.Key == "notifyd-id" {
							id, _ := strconv.ParseInt(string(h.Value), 10, 64)
							got = append(got, id)
						}
					}
				})
			}
			return got
		},
	}
}

// TestRefusedWithoutSchema: events wait until the registry has their schema. One whose schema is missing while others are
// taken is a dead letter.
func TestRefusedWithoutSchema(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			refuseAlike(t, mode, unregistered(t, "unregistered-"+mode))
		})
	}
}
