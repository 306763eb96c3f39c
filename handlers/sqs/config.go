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

// Config holds the queue for events, and the credentials. Fields of the kind "template"
// are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// Name of the queue. One that ends in `.fifo` is a FIFO queue. Needs the
	// permission `sqs:GetQueueUrl`.
	Queue string `json:"queue,omitempty" yaml:"queue,omitempty" unset:"'queue' or 'queue_url' is required"`

	// Account that owns the queue, twelve digits in quotes.
	QueueOwner string `json:"queue_owner,omitempty" yaml:"queue_owner,omitempty" unset:"the account of the credentials"`

	// URL of the queue, in place of `queue`:
	// `https://sqs.eu-central-1.amazonaws.com/123456789012/orders`.
	QueueURL string `json:"queue_url,omitempty" yaml:"queue_url,omitempty" kind:"URL"`

	// Message group.
	//
	// A group on a standard queue is for fair queues.
	GroupID string `json:"group_id,omitempty" yaml:"group_id,omitempty" kind:"template" unset:"FIFO: the aggregate id, else the event type; standard: none"`

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
