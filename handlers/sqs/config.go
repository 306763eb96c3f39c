package sqs

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/awsconf"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// DefaultLane returns the recommended settings of a lane: one batch at a time keeps the
// order, the purpose of FIFO queues.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Timeout: time.Minute}
}

// Config holds the queue for events, and the credentials. Fields marked "template"
// are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// Queue is the name of the queue. A name that ends in ".fifo" names a FIFO
	// queue. Set it, or QueueURL.
	Queue string `json:"queue,omitempty" yaml:"queue,omitempty" jsonschema_description:"Name of the queue. One that ends in '.fifo' is a FIFO queue. Needs the permission 'sqs:GetQueueUrl'." unset:"'queue' or 'queue_url' is required"`
	// QueueOwner is the account that the queue belongs to, twelve digits. The
	// default is the account of the credentials.
	QueueOwner string `json:"queue_owner,omitempty" yaml:"queue_owner,omitempty" jsonschema_description:"Account that owns the queue, twelve digits in quotes." unset:"the account of the credentials"`
	// QueueURL is the URL of the queue, in place of Queue.
	QueueURL string `json:"queue_url,omitempty" yaml:"queue_url,omitempty" jsonschema_description:"URL of the queue, in place of 'queue': 'https://sqs.eu-central-1.amazonaws.com/123456789012/orders'." kind:"URL"`
	// GroupID is the message group (template). For FIFO queues the default is the
	// event's aggregate id, or the event's type if the event has no aggregate. On
	// a standard queue a group is for fair queues, and the default is empty.
	GroupID string `json:"group_id,omitempty" yaml:"group_id,omitempty" jsonschema_description:"Message group." kind:"template" unset:"FIFO: the aggregate id, else the event type; standard: none"`
	handlers.Message

	handlers.AWS
}

// WithDefaults returns a copy with every default filled in that needs no
// environment.
func (c Config) WithDefaults() Config {
	c.Message = message.WithDefaults(c.Message)
	c.AWS = awsconf.WithDefaults(c.AWS, regionOf(c.QueueURL))
	return c
}

// Within returns how long one request may take before the handler gives up on it: the request
// timeout.
func (c Config) Within() time.Duration { return c.WithDefaults().RequestTimeout }
