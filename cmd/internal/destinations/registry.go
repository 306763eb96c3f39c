package destinations

import (
	"io"

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
		}, eventbridgeLane{}),

		"file": typeOf(file.New, traits{baseDir: baseDir, lane: file.DefaultLane(), within: "the wait for locks"}, fileLane{}),

		"kafka": func() config.Settings {
			return &kafkaSettings{newSettings(kafka.New, traits{
				baseDir: baseDir, lane: kafka.DefaultLane(), within: "delivery_timeout", system: "kafka",
			}, kafkaLane{})}
		},

		"kinesis": typeOf(kinesis.New, traits{
			baseDir: baseDir, lane: kinesis.DefaultLane(), within: "request_timeout", system: "aws.kinesis",
		}, kinesisLane{}),

		"log": func() config.Settings { return &logSettings{Output: "stdout", stdout: stdout, stderr: stderr} },

		"nats": typeOf(nats.New, traits{
			baseDir: baseDir, lane: nats.DefaultLane(), within: "connect_timeout for each server and ack_timeout together", system: "nats",
		}, natsLane{}),

		"postgres": typeOf(postgres.New, traits{baseDir: baseDir, lane: postgres.DefaultLane(), within: "request_timeout"}, postgresLane{}),

		"pubsub": typeOf(pubsub.New, traits{
			baseDir: baseDir, lane: pubsub.DefaultLane(), within: "request_timeout", system: "gcp_pubsub",
		}, pubsubLane{}),

		"rabbitmq": typeOf(rabbitmq.New, traits{
			baseDir: baseDir, lane: rabbitmq.DefaultLane(), within: "connect_timeout and confirm_timeout together", system: "rabbitmq",
		}, rabbitmqLane{}),

		"redis": typeOf(openRedis, traits{
			baseDir: baseDir, lane: redis.DefaultLane(), within: "all other timeouts together", system: "redis",
		}, redisLane{}),

		"slack": typeOf(slack.New, traits{baseDir: baseDir, lane: slack.DefaultLane(), within: "request_timeout"}, slackLane{}),

		"sns": typeOf(sns.New, traits{
			baseDir: baseDir, lane: sns.DefaultLane(), within: "request_timeout", system: "aws.sns",
		}, tenMessagesLane{}),
		"sqs": typeOf(sqs.New, traits{
			baseDir: baseDir, lane: sqs.DefaultLane(), within: "request_timeout", system: "aws_sqs",
		}, tenMessagesLane{}),

		"webhook": func() config.Settings {
			return &webhookSettings{newSettings(openWebhook, traits{baseDir: baseDir, lane: webhook.DefaultLane(), within: "request_timeout"}, webhookLane{})}
		},
	}
}

// openRedis makes a handler. The library prints a line for each connection that it cannot make. The relay reports once
// that a destination is down.
func openRedis(cfg redis.Config, options ...handlers.Option) (*redis.Handler, error) {
	redislogging.Disable()
	return redis.New(cfg, options...)
}
