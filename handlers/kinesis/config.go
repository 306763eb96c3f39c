package kinesis

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

// DefaultLane returns the recommended settings of a lane: one batch at a time, as many events
// as a request takes.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Batch: maxEntries, Timeout: time.Minute}
}

// Config holds the stream for events, and the credentials. Fields of the kind "template"
// are templates over the event: .Event, .Payload and .Headers.
//
// A record has no headers, so the default form is a CloudEvent, which holds the event's id.
type Config struct {
	// Name of the stream, or its ARN:
	// `arn:aws:kinesis:eu-central-1:123456789012:stream/orders`.
	Stream string `json:"stream" yaml:"stream" unset:"required"`

	// Decides the shard.
	PartitionKey string `json:"partition_key,omitempty" yaml:"partition_key,omitempty" kind:"template" unset:"the aggregate id, else the event's id"`

	handlers.Message
	handlers.AWS
}

// WithDefaults returns a copy with every default filled in that needs no
// environment.
func (c Config) WithDefaults() Config {
	c.Message = message.WithDefaults(c.form())
	c.AWS = awsconf.WithDefaults(c.AWS, awsapi.RegionOf(c.Stream))
	return c
}

// Within returns how long one request may take before the handler gives up on it: the request
// timeout.
func (c Config) Within() time.Duration { return c.WithDefaults().RequestTimeout }

// form is that of records.
func (c Config) form() handlers.Message {
	m := c.Message
	if m.Format == "" && m.Body == "" {
		m.Format = handlers.FormatCloudEventsStructured
	}
	return m
}

var (
	streamName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)
	streamARN  = regexp.MustCompile(`^arn:[a-z0-9-]+:kinesis:[a-z0-9-]+:[0-9]{12}:stream/[A-Za-z0-9_.-]{1,128}$`)
)

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It contacts nothing and reads no files: [New] reads them.
func (c Config) Validate() error {
	_, err := awsapi.Template(tmpl.Key, "partition_key", c.PartitionKey)
	errs := []error{
		awsconf.Validate(c.AWS, awsapi.RegionOf(c.Stream), "stream"),
		message.Validate(c.form()),
		err,
	}

	switch {
	case c.Stream == "":
		errs = append(errs, field.Errorf("stream", "missing: name the stream"))
	case !streamName.MatchString(c.Stream) && !streamARN.MatchString(c.Stream):
		errs = append(errs, field.Errorf("stream", "must be the name of a stream, or its ARN, such as "+
			"arn:aws:kinesis:eu-central-1:123456789012:stream/orders"))
	}

	if c.Format == handlers.FormatCloudEventsBinary {
		errs = append(errs, field.Errorf("format", "must be %s or %s: a record has no headers",
			handlers.FormatCloudEventsStructured, handlers.FormatPayload))
	}

	return errors.Join(errs...)
}

func (c Config) isARN() bool { return strings.HasPrefix(c.Stream, "arn:") }
