package destinations

import "time"

// The lanes repeat settings of [delivery.Lane] with the bounds and the texts of one type. [Settings] inlines them.

// eventbridgeLane has the settings of a lane for the type "eventbridge".
type eventbridgeLane struct {
	// Batches sent at the same time.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000"`

	// Longest time for one batch, which is sent in requests of up to ten events;
	// above `request_timeout`.
	Timeout time.Duration `yaml:"timeout"`
}

// fileLane has the settings of a lane for the type "file".
type fileLane struct {
	// Batches handed over at the same time. They are written one after the other.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=100"`

	// Most events written at once, with one `fsync` per file. Nothing waits for a
	// batch to fill.
	Batch int `yaml:"batch" jsonschema:"minimum=1,maximum=100000"`

	// Longest time for one batch; above the 20 s for which it waits for locks.
	Timeout time.Duration `yaml:"timeout"`
}

// kinesisLane has the settings of a lane for the type "kinesis".
type kinesisLane struct {
	// Batches sent at the same time. More than one is faster, and loses the order.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000"`

	// Most events sent in one batch; more than 500 are several requests. Nothing
	// waits for a batch to fill.
	Batch int `yaml:"batch" jsonschema:"minimum=1,maximum=100000"`

	// Longest time for one batch, which is sent in requests of up to 500 records;
	// above `request_timeout`.
	Timeout time.Duration `yaml:"timeout"`
}

// natsLane has the settings of a lane for the type "nats".
type natsLane struct {
	// Batches published at the same time. Only 1 keeps the order of an aggregate's
	// events.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=100"`

	// Most events published in one batch. Nothing waits for a batch to fill.
	Batch int `yaml:"batch" jsonschema:"minimum=1,maximum=100000"`

	// Longest time for one batch, whatever happens; above `connect_timeout` for
	// each server and `ack_timeout` together.
	Timeout time.Duration `yaml:"timeout"`
}

// postgresLane has the settings of a lane for the type "postgres".
type postgresLane struct {
	// Batches written at the same time, each on its own connection. Only 1 keeps
	// the order of the events.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=100"`

	// Most events written in one statement. Nothing waits for a batch to fill.
	Batch int `yaml:"batch" jsonschema:"minimum=1,maximum=100000"`

	// Longest time for one batch, whatever happens; above `request_timeout`.
	Timeout time.Duration `yaml:"timeout"`
}

// pubsubLane has the settings of a lane for the type "pubsub".
type pubsubLane struct {
	// Batches sent at the same time. More than one helps where answers take long,
	// and loses the order.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000"`

	// Longest time for one batch, which is sent in a request per ordering key;
	// above `request_timeout`.
	Timeout time.Duration `yaml:"timeout"`
}

// rabbitmqLane has the settings of a lane for the type "rabbitmq".
type rabbitmqLane struct {
	// Batches published at the same time. Only 1 keeps the order of the events.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=100"`

	// Most events published before their confirmations are waited for. Nothing
	// waits for a batch to fill.
	Batch int `yaml:"batch" jsonschema:"minimum=1,maximum=100000"`

	// Longest time for one batch; above `connect_timeout` and `confirm_timeout`
	// together.
	Timeout time.Duration `yaml:"timeout"`
}

// redisLane has the settings of a lane for the type "redis".
type redisLane struct {
	// Batches sent at the same time, each on its own connection. Only 1 keeps the
	// order of the events.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=100"`

	// Most events sent in one batch. Nothing waits for a batch to fill.
	Batch int `yaml:"batch" jsonschema:"minimum=1,maximum=100000"`

	// Longest time for one batch, whatever happens; above `connect_timeout`,
	// `write_timeout`, `read_timeout` and `wait_timeout` together.
	Timeout time.Duration `yaml:"timeout"`
}

// slackLane has the settings of a lane for the type "slack".
type slackLane struct {
	// Messages posted at the same time. More than one helps with several channels,
	// and loses the order.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=100"`

	// Longest time for one message, waiting for its turn included; above
	// `request_timeout`.
	Timeout time.Duration `yaml:"timeout"`
}

// tenMessagesLane has the settings of a lane for services that take up to ten messages in a request.
type tenMessagesLane struct {
	// Batches sent at the same time. More than one is faster, and loses the order.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000"`

	// Longest time for one batch, which is sent in requests of up to ten messages;
	// above `request_timeout`.
	Timeout time.Duration `yaml:"timeout"`
}
