package main

import (
	"io"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/sqs"
	"github.com/notifyd/notifyd/internal/field"
)

// sqsSettings are the settings of the type "sqs".
type sqsSettings struct {
	sqs.Config
	// One batch at a time keeps the order, which is what FIFO queues are for.
	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Batches sent at the same time. More than one is faster, and costs the order."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, which is sent in requests of up to ten messages."`

	baseDir string
}

func newSQSSettings(baseDir string) *sqsSettings {
	return &sqsSettings{baseDir: baseDir, Concurrency: 1, Timeout: time.Minute}
}

// Validate tries to make the handler, which contacts nothing.
func (s *sqsSettings) Validate() error {
	h, err := s.open()
	if err != nil {
		return err
	}
	limit := s.RequestTimeout
	if limit == 0 {
		limit = sqs.DefaultRequestTimeout
	}
	if limit >= s.Timeout {
		return field.Errorf("timeout", "must be longer than request_timeout (%v), which is only a part of it", limit)
	}
	return h.(io.Closer).Close() //nolint:forcetypeassert // sqs.Handler is one
}

func (s *sqsSettings) open() (delivery.Handler, error) {
	return sqs.New(s.Config, sqs.WithBaseDir(s.baseDir))
}

var _ destination = (*sqsSettings)(nil)
