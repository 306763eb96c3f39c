package main

import (
	"cmp"
	"errors"
	"io"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/nats"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/field"
)

// natsSettings are the settings of the type "nats".
type natsSettings struct {
	nats.Config
	// One batch at a time keeps the order of each aggregate's events, through an
	// outage too.
	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches published at the same time. Only 1 keeps the order of an aggregate's events."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events published in one go. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time that one batch may take; above connect_timeout for each server and ack_timeout together."`

	baseDir string
}

// newNATSSettings has the defaults. The timeout is there for the case that the
// handler does not keep to its own.
func newNATSSettings(baseDir string) config.Settings {
	return &natsSettings{baseDir: baseDir, Concurrency: 1, Batch: 1000, Timeout: time.Minute}
}

// Validate tries to make the handler: that reads the certificates and
// credentials, and contacts nothing.
func (s *natsSettings) Validate() error {
	const each = 5 * time.Second // what the handler takes where nothing is set
	within := cmp.Or(s.ConnectTimeout, each)*time.Duration(len(s.Servers)) + cmp.Or(s.AckTimeout, each)
	var err error
	if s.Timeout <= within {
		// What the destination is to blame for would count as attempts.
		err = field.Errorf("timeout", "must be above connect_timeout for each server and ack_timeout together, such as %v", 2*within)
	}
	if err = errors.Join(err, s.Config.Validate()); err != nil {
		return err
	}
	h, err := s.open()
	if err != nil {
		return err
	}
	return h.(io.Closer).Close() //nolint:forcetypeassert // nats.Handler is one
}

func (s *natsSettings) open() (delivery.Handler, error) {
	return nats.New(s.Config, nats.WithBaseDir(s.baseDir))
}

var _ destination = (*natsSettings)(nil)
