package sns

import (
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/awsapi"
	"github.com/notifyd/notifyd/handlers/internal/awsconf"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// DefaultLane returns the recommended settings of a lane: one batch at a time keeps the
// order, the purpose of FIFO topics.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Timeout: time.Minute}
}

// Config holds the topic for events, and the credentials. Fields of the kind "template"
// are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// ARN of the topic, `arn:aws:sns:eu-central-1:123456789012:orders`. One that
	// ends in `.fifo` is a FIFO topic.
	TopicARN string `json:"topic_arn" yaml:"topic_arn" unset:"required"`

	// Message group.
	//
	// A group on a standard topic is for fair queues behind it.
	GroupID string `json:"group_id,omitempty" yaml:"group_id,omitempty" kind:"template" unset:"FIFO: the aggregate id, else the event type; standard: none"`

	handlers.Message
	handlers.AWS
}

// WithDefaults returns a copy with every default filled in that needs no
// environment.
func (c Config) WithDefaults() Config {
	c.Message = message.WithDefaults(c.Message)
	c.AWS = awsconf.WithDefaults(c.AWS, awsapi.RegionOf(c.TopicARN))
	return c
}

// Within returns how long one request may take before the handler gives up on it: the request
// timeout.
func (c Config) Within() time.Duration { return c.WithDefaults().RequestTimeout }

// topicARN matches the ARNs of topics.
var topicARN = regexp.MustCompile(`^arn:[a-z0-9-]+:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?$`)

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It contacts nothing and reads no files: [New] reads them.
func (c Config) Validate() error {
	_, err := awsapi.Template(tmpl.Key, "group_id", c.GroupID)
	return errors.Join(c.topic(), awsconf.Validate(c.AWS, awsapi.RegionOf(c.TopicARN), "topic_arn"), message.Validate(c.Message), err)
}

func (c Config) topic() error {
	const example = "arn:aws:sns:eu-central-1:123456789012:orders"
	switch {
	case c.TopicARN == "":
		return field.Errorf("topic_arn", "missing: name the topic, such as %s", example)
	case !topicARN.MatchString(c.TopicARN):
		return field.Errorf("topic_arn", "must be the ARN of a topic, such as %s", example)
	default:
		return nil
	}
}

func (c Config) fifo() bool { return strings.HasSuffix(c.TopicARN, awsapi.FIFO) }
