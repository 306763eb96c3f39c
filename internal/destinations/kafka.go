package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/exactly"
	"github.com/notifyd/notifyd/internal/field"
)

// kafkaSettings are the settings of the type "kafka".
type kafkaSettings struct {
	kafka.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches written at the same time. Only 1 keeps the order of the events."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events written in one batch; 5000 by default with 'exactly_once'. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, whatever happens; above 'delivery_timeout'."`

	baseDir string
}

func newKafkaSettings(baseDir string) *kafkaSettings {
	lane := kafka.DefaultLane()
	return &kafkaSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Batch: lane.Batch, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *kafkaSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.Within(), "delivery_timeout"), s.checkConcurrency(), tryOpen(s))
}

func (s *kafkaSettings) checkConcurrency() error {
	if s.ExactlyOnce && s.Concurrency != 1 {
		return field.Errorf("concurrency", "must be 1 with exactly_once: true: transactions of one position come one after the other; raise batch instead")
	}
	return nil
}

// Complete implements config.Dependent: each transaction has a cost, so exactly_once has larger batches.
func (s *kafkaSettings) Complete(given func(key string) bool) {
	if s.ExactlyOnce && !given("batch") {
		s.Batch = kafka.ExactlyOnceLane().Batch
	}
}

// NeedsOrder implements config.Ordered.
func (s *kafkaSettings) NeedsOrder() string {
	if s.ExactlyOnce {
		return "exactly_once: true"
	}
	return ""
}

// Exclusive implements config.Exclusive: two destinations must not share a transactional id.
func (s *kafkaSettings) Exclusive(shards int) (setting string, values []string) {
	if !s.ExactlyOnce || s.TransactionalID == "" {
		return "", nil
	}
	for shard := range shards {
		values = append(values, s.PositionID("", shard))
	}
	return "transactional_id", values
}

// Effective implements config.Effective.
func (s *kafkaSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *kafkaSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	return kafka.New(s.Config, append(options, handlers.WithBaseDir(s.baseDir))...)
}

// TransactionalIDs returns the transactional ids of a destination with exactly_once, one per shard, for the outbox in
// the given database and schema. For other destinations it returns nil.
func TransactionalIDs(d config.Destination, database, schema string) []string {
	s, ok := d.Settings.(*kafkaSettings)
	if !ok || !s.ExactlyOnce {
		return nil
	}
	ids := make([]string, max(1, d.Shards))
	for shard := range ids {
		ids[shard] = s.PositionID(exactly.ShardName(database, schema, d.Name, shard), shard)
	}
	return ids
}

var _ destination = (*kafkaSettings)(nil)
