package destinations

import (
	"io"
	"time"

	redislogging "github.com/redis/go-redis/v9/logging"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/handlers/eventbridge"
	"github.com/notifyd/notifyd/handlers/file"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/handlers/kinesis"
	"github.com/notifyd/notifyd/handlers/mqtt"
	"github.com/notifyd/notifyd/handlers/nats"
	"github.com/notifyd/notifyd/handlers/postgres"
	"github.com/notifyd/notifyd/handlers/pubsub"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/handlers/redis"
	"github.com/notifyd/notifyd/handlers/slack"
	"github.com/notifyd/notifyd/handlers/sns"
	"github.com/notifyd/notifyd/handlers/sqs"
	"github.com/notifyd/notifyd/handlers/webhook"
)

// Registry lists the destination types by the word in a destination's "type".
// Files that a configuration names are relative to baseDir; lines of the type
// "log" go to stdout or stderr.
func Registry(baseDir string, stdout, stderr io.Writer) config.Registry {
	return config.Registry{
		"email": func() config.Settings {
			return &emailSettings{newSettings(email.New, traits[email.Config]{
				baseDir: baseDir, lane: email.DefaultLane(),
				servers: emailServers,
			}, emailLane{})}
		},

		"eventbridge": typeOf(eventbridge.New, traits[eventbridge.Config]{
			baseDir: baseDir, lane: eventbridge.DefaultLane(), within: "request_timeout", system: "aws.eventbridge",
		}, eventbridgeLane{}),

		"file": typeOf(file.New, traits[file.Config]{baseDir: baseDir, lane: file.DefaultLane(), within: "the wait for locks"}, fileLane{}),

		"kafka": func() config.Settings {
			return &kafkaSettings{newSettings(kafka.New, traits[kafka.Config]{
				baseDir: baseDir, lane: kafka.DefaultLane(), within: "delivery_timeout", system: "kafka",
				servers: func(c kafka.Config) []string { return c.Brokers },
			}, kafkaLane{})}
		},

		"kinesis": typeOf(kinesis.New, traits[kinesis.Config]{
			baseDir: baseDir, lane: kinesis.DefaultLane(), within: "request_timeout", system: "aws.kinesis",
		}, kinesisLane{}),

		"log": func() config.Settings { return &logSettings{Output: "stdout", stdout: stdout, stderr: stderr} },

		"mqtt": typeOf(mqtt.New, traits[mqtt.Config]{
			baseDir: baseDir, lane: mqtt.DefaultLane(), within: "connect_timeout for each server and ack_timeout together", system: "mqtt",
			servers: func(c mqtt.Config) []string { return c.Servers },
		}, mqttLane{}),

		"nats": typeOf(nats.New, traits[nats.Config]{
			baseDir: baseDir, lane: nats.DefaultLane(), within: "connect_timeout for each server and ack_timeout together", system: "nats",
			servers: func(c nats.Config) []string { return c.Servers },
		}, natsLane{}),

		"postgres": typeOf(postgres.New, traits[postgres.Config]{
			baseDir: baseDir, lane: postgres.DefaultLane(), within: "request_timeout",
			servers: func(c postgres.Config) []string { return []string{c.URL.Reveal()} },
		}, postgresLane{}),

		"pubsub": typeOf(pubsub.New, traits[pubsub.Config]{
			baseDir: baseDir, lane: pubsub.DefaultLane(), within: "request_timeout", system: "gcp_pubsub",
		}, pubsubLane{}),

		"rabbitmq": typeOf(rabbitmq.New, traits[rabbitmq.Config]{
			baseDir: baseDir, lane: rabbitmq.DefaultLane(), within: "connect_timeout and confirm_timeout together", system: "rabbitmq",
			servers: rabbitmqServers,
		}, rabbitmqLane{}),

		"redis": typeOf(openRedis, traits[redis.Config]{
			baseDir: baseDir, lane: redis.DefaultLane(), within: "all other timeouts together", system: "redis",
			servers: redisServers,
		}, redisLane{}),

		"slack": typeOf(slack.New, traits[slack.Config]{baseDir: baseDir, lane: slack.DefaultLane(), within: "request_timeout"}, slackLane{}),

		"sns": typeOf(sns.New, traits[sns.Config]{
			baseDir: baseDir, lane: sns.DefaultLane(), within: "request_timeout", system: "aws.sns",
		}, tenMessagesLane{}),
		"sqs": typeOf(sqs.New, traits[sqs.Config]{
			baseDir: baseDir, lane: sqs.DefaultLane(), within: "request_timeout", system: "aws_sqs",
		}, tenMessagesLane{}),

		"webhook": func() config.Settings {
			return &webhookSettings{newSettings(openWebhook, traits[webhook.Config]{
				baseDir: baseDir, lane: webhook.DefaultLane(), within: "request_timeout",
				servers: func(c webhook.Config) []string { return []string{c.URL} },
			}, webhookLane{})}
		},
	}
}

// openRedis makes a handler. The library prints a line for each connection that it cannot make. The relay reports once
// that a destination is down.
func openRedis(cfg redis.Config, options ...handlers.Option) (*redis.Handler, error) {
	redislogging.Disable()
	return redis.New(cfg, options...)
}

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

// mqttLane has the settings of a lane for the type "mqtt".
type mqttLane struct {
	// Batches published at the same time. Only 1 keeps the order of an aggregate's
	// events.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=100"`

	// Most events published in one batch. Nothing waits for a batch to fill.
	Batch int `yaml:"batch" jsonschema:"minimum=1,maximum=100000"`

	// Longest time for one batch, whatever happens; above `connect_timeout` for
	// each server and `ack_timeout` together.
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
