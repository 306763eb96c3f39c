package eventbridge

import (
	"cmp"
	"errors"
	"fmt"
	"mime"
	"regexp"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/awsapi"
	"github.com/notifyd/notifyd/handlers/internal/awsconf"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/field"
)

const (
	// defaultBus is there in each account.
	defaultBus    = "default"
	defaultSource = "notifyd"
)

// DefaultLane returns the recommended settings of a lane: EventBridge keeps no
// order, so concurrent calls lose no order.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 4, Timeout: time.Minute}
}

// Config holds the bus and the form of events, and the credentials. Fields of the kind "template"
// are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// Name or ARN of the event bus; `default` is the account's own.
	//
	// The default is "default".
	EventBus string `json:"event_bus,omitempty" yaml:"event_bus,omitempty"`

	// Source of the event.
	//
	// The default is "notifyd".
	Source string `json:"source,omitempty" yaml:"source,omitempty" kind:"template"`

	// Detail type of the event.
	DetailType string `json:"detail_type,omitempty" yaml:"detail_type,omitempty" kind:"template" unset:"the event type"`

	// Resources that the event is about, before those with its id and headers.
	//
	// A resource that yields nothing is left out.
	Resources []string `json:"resources,omitempty" yaml:"resources,omitempty" kind:"list of templates"`

	handlers.Message
	handlers.AWS
}

// WithDefaults returns a copy with every default filled in that needs no
// environment.
func (c Config) WithDefaults() Config {
	c.EventBus = cmp.Or(c.EventBus, defaultBus)
	c.Source = cmp.Or(c.Source, defaultSource)
	c.Message = message.WithDefaults(c.Message)
	c.AWS = awsconf.WithDefaults(c.AWS, awsapi.RegionOf(c.EventBus))
	return c
}

// Within returns how long one request may take before the handler gives up on it: the request
// timeout.
func (c Config) Within() time.Duration { return c.WithDefaults().RequestTimeout }

var (
	busName = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,256}$`)
	busARN  = regexp.MustCompile(`^arn:[a-z0-9-]+:events:[a-z0-9-]+:[0-9]{12}:event-bus/[A-Za-z0-9._/-]{1,256}$`)
)

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It contacts nothing and reads no files: [New] reads them.
func (c Config) Validate() error {
	errs := []error{
		awsconf.Validate(c.AWS, awsapi.RegionOf(c.EventBus), "event_bus"),
		message.Validate(c.Message),
		c.contentType(),
	}

	if c.EventBus != "" && !busName.MatchString(c.EventBus) && !busARN.MatchString(c.EventBus) {
		errs = append(errs, field.Errorf("event_bus", "must be the name of a bus, or its ARN, such as "+
			"arn:aws:events:eu-central-1:123456789012:event-bus/orders"))
	}

	if strings.HasPrefix(c.Source, "aws.") {
		errs = append(errs, field.Errorf("source", "must not begin with aws., which is for AWS"))
	}

	_, err := newTemplates(c)
	return errors.Join(append(errs, err)...)
}

// contentType refuses a body that no event can have.
func (c Config) contentType() error {
	if c.ContentType == "" || c.Body == "" {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(c.ContentType); err == nil && kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return field.Errorf("content_type", "must be JSON: EventBridge takes no other detail")
	}
	return nil
}

// resource names the setting of a template of Resources.
func resource(i int) string { return fmt.Sprintf("resources.%d", i) }
