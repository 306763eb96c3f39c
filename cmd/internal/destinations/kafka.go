package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/exactly"
	"github.com/notifyd/notifyd/internal/field"
)

// kafkaSettings are the settings of the type "kafka".
type kafkaSettings struct {
	Settings[kafka.Config, kafkaLane]
}

// kafkaLane has the settings of a lane for the type "kafka".
type kafkaLane struct {
	// Batches written at the same time. Only 1 keeps the order of the events.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=100"`

	// Most events written in one batch; 5000 by default with `exactly_once`.
	// Nothing waits for a batch to fill.
	Batch int `yaml:"batch" jsonschema:"minimum=1,maximum=100000"`

	// Longest time for one batch, whatever happens; above `delivery_timeout`.
	Timeout time.Duration `yaml:"timeout"`
}

// Validate implements config.Settings.
func (s *kafkaSettings) Validate() error {
	return errors.Join(s.Settings.Validate(), s.checkConcurrency())
}

func (s *kafkaSettings) checkConcurrency() error {
	if s.Config.ExactlyOnce && s.Lane.Concurrency != 1 {
		return field.Errorf("concurrency", "must be 1 with exactly_once: true: transactions of one position come one after the other; raise batch instead")
	}
	return nil
}

// Complete implements config.Dependent: each transaction has a cost, so exactly_once has larger batches.
func (s *kafkaSettings) Complete(given func(key string) bool) {
	if s.Config.ExactlyOnce && !given("batch") {
		s.Lane.Batch = kafka.ExactlyOnceLane().Batch
	}
}

// NeedsOrder implements config.Ordered.
func (s *kafkaSettings) NeedsOrder() string {
	if s.Config.ExactlyOnce {
		return "exactly_once: true"
	}
	return ""
}

// Exclusive implements config.Exclusive: two destinations must not share a transactional id.
func (s *kafkaSettings) Exclusive(shards int) (setting string, values []string) {
	if !s.Config.ExactlyOnce || s.Config.TransactionalID == "" {
		return "", nil
	}
	for shard := range shards {
		values = append(values, s.Config.PositionID("", shard))
	}
	return "transactional_id", values
}

// TransactionalIDs returns the transactional ids of a destination with exactly_once, one per shard, for the outbox in
// the given database and schema. For other destinations it returns nil.
func TransactionalIDs(d config.Destination, database, schema string) []string {
	s, ok := d.Settings.(*kafkaSettings)
	if !ok || !s.Config.ExactlyOnce {
		return nil
	}
	ids := make([]string, max(1, d.Shards))
	for shard := range ids {
		ids[shard] = s.Config.PositionID(exactly.ShardName(database, schema, d.Name, shard), shard)
	}
	return ids
}
