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
			return &emailSettings{newSettings(email.New, traits{baseDir: baseDir, lane: email.DefaultLane()}, emailLane{})}
		},

		"eventbridge": typeOf(eventbridge.New, traits{
			baseDir: baseDir, lane: eventbridge.DefaultLane(), within: "request_timeout", system: "aws.eventbridge",
		}, struct {
			Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Batches sent at the same time."`
			Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, which is sent in requests of up to ten events; above 'request_timeout'."`
		}{}),

		"file": typeOf(file.New, traits{baseDir: baseDir, lane: file.DefaultLane(), within: "the wait for locks"}, struct {
			Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches handed over at the same time. They are written one after the other."`
			Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events written at once, with one 'fsync' per file. Nothing waits for a batch to fill."`
			Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch; above the 20 s for which it waits for locks."`
		}{}),

		"kafka": func() config.Settings {
			return &kafkaSettings{newSettings(kafka.New, traits{
				baseDir: baseDir, lane: kafka.DefaultLane(), within: "delivery_timeout", system: "kafka",
			}, kafkaLane{})}
		},

		"kinesis": typeOf(kinesis.New, traits{
			baseDir: baseDir, lane: kinesis.DefaultLane(), within: "request_timeout", system: "aws.kinesis",
		}, struct {
			Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Batches sent at the same time. More than one is faster, and loses the order."`
			Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events sent in one batch; more than 500 are several requests. Nothing waits for a batch to fill."`
			Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, which is sent in requests of up to 500 records; above 'request_timeout'."`
		}{}),

		"log": func() config.Settings { return &logSettings{Output: "stdout", stdout: stdout, stderr: stderr} },

		"nats": typeOf(nats.New, traits{
			baseDir: baseDir, lane: nats.DefaultLane(), within: "connect_timeout for each server and ack_timeout together", system: "nats",
		}, struct {
			Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches published at the same time. Only 1 keeps the order of an aggregate's events."`
			Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events published in one batch. Nothing waits for a batch to fill."`
			Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, whatever happens; above 'connect_timeout' for each server and 'ack_timeout' together."`
		}{}),

		"postgres": typeOf(postgres.New, traits{baseDir: baseDir, lane: postgres.DefaultLane(), within: "request_timeout"}, struct {
			Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches written at the same time, each on its own connection. Only 1 keeps the order of the events."`
			Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events written in one statement. Nothing waits for a batch to fill."`
			Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, whatever happens; above 'request_timeout'."`
		}{}),

		"pubsub": typeOf(pubsub.New, traits{
			baseDir: baseDir, lane: pubsub.DefaultLane(), within: "request_timeout", system: "gcp_pubsub",
		}, struct {
			Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Batches sent at the same time. More than one helps where answers take long, and loses the order."`
			Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, which is sent in a request per ordering key; above 'request_timeout'."`
		}{}),

		"rabbitmq": typeOf(rabbitmq.New, traits{
			baseDir: baseDir, lane: rabbitmq.DefaultLane(), within: "connect_timeout and confirm_timeout together", system: "rabbitmq",
		}, struct {
			Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches published at the same time. Only 1 keeps the order of the events."`
			Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events published before their confirmations are waited for. Nothing waits for a batch to fill."`
			Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch; above 'connect_timeout' and 'confirm_timeout' together."`
		}{}),

		"redis": typeOf(openRedis, traits{
			baseDir: baseDir, lane: redis.DefaultLane(), within: "all other timeouts together", system: "redis",
		}, struct {
			Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches sent at the same time, each on its own connection. Only 1 keeps the order of the events."`
			Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events sent in one batch. Nothing waits for a batch to fill."`
			Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, whatever happens; above 'connect_timeout', 'write_timeout', 'read_timeout' and 'wait_timeout' together."`
		}{}),

		"slack": typeOf(slack.New, traits{baseDir: baseDir, lane: slack.DefaultLane(), within: "request_timeout"}, struct {
			Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Messages posted at the same time. More than one helps with several channels, and loses the order."`
			Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one message, waiting for its turn included; above 'request_timeout'."`
		}{}),

		"sns": typeOf(sns.New, traits{
			baseDir: baseDir, lane: sns.DefaultLane(), within: "request_timeout", system: "aws.sns",
		}, tenMessages{}),
		"sqs": typeOf(sqs.New, traits{
			baseDir: baseDir, lane: sqs.DefaultLane(), within: "request_timeout", system: "aws_sqs",
		}, tenMessages{}),

		"webhook": func() config.Settings {
			return &webhookSettings{newSettings(openWebhook, traits{baseDir: baseDir, lane: webhook.DefaultLane(), within: "request_timeout"}, webhookLane{})}
		},
	}
}

// tenMessages is the lane of services that take up to ten messages in a request.
type tenMessages struct {
	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Batches sent at the same time. More than one is faster, and loses the order."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, which is sent in requests of up to ten messages; above 'request_timeout'."`
}

// openRedis makes a handler. The library prints a line for each connection that it cannot make. The relay reports once
// that a destination is down.
func openRedis(cfg redis.Config, options ...handlers.Option) (*redis.Handler, error) {
	redislogging.Disable()
	return redis.New(cfg, options...)
}
