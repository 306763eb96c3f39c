package main

import (
	"errors"
	"io"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/field"
)

// kafkaSettings are the settings of the type "kafka".
type kafkaSettings struct {
	kafka.Config
	// One batch at a time keeps the order of the events, through an outage too.
	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches written at the same time. Only 1 keeps the order of the events."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events written in one go. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time that one batch may take; above delivery_timeout."`

	baseDir string
}

// newKafkaSettings has the defaults. The timeout is there for the case that the
// handler does not keep to its own.
func newKafkaSettings(baseDir string) config.Settings {
	return &kafkaSettings{baseDir: baseDir, Concurrency: 1, Batch: 1000, Timeout: 2 * kafka.DefaultDeliveryTimeout}
}

// Validate tries to make the handler: that reads the certificates, and contacts
// nothing.
func (s *kafkaSettings) Validate() error {
	within := s.DeliveryTimeout
	if within == 0 {
		within = kafka.DefaultDeliveryTimeout
	}
	var err error
	if s.Timeout <= within {
		// What the destination is to blame for would count as attempts.
		err = field.Errorf("timeout", "must be above delivery_timeout of %v, such as %v", within, 2*within)
	}
	if err = errors.Join(err, s.Config.Validate()); err != nil {
		return err
	}
	h, err := s.open()
	if err != nil {
		return err
	}
	return h.(io.Closer).Close() //nolint:forcetypeassert // kafka.Handler is one
}

func (s *kafkaSettings) open() (delivery.Handler, error) {
	return kafka.New(s.Config, kafka.WithBaseDir(s.baseDir))
}

var _ destination = (*kafkaSettings)(nil)
