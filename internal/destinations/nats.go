package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/nats"
	"github.com/notifyd/notifyd/internal/config"
)

// natsSettings are the settings of the type "nats".
type natsSettings struct {
	nats.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches published at the same time. Only 1 keeps the order of an aggregate's events."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events published in one batch. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, whatever happens; above 'connect_timeout' for each server and 'ack_timeout' together."`

	baseDir string
}

func newNATSSettings(baseDir string) *natsSettings {
	lane := nats.DefaultLane()
	return &natsSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Batch: lane.Batch, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *natsSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.Within(), "connect_timeout for each server and ack_timeout together"), tryOpen(s))
}

// Effective implements config.Effective.
func (s *natsSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *natsSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	return nats.New(s.Config, append(options, handlers.WithBaseDir(s.baseDir))...)
}

var _ destination = (*natsSettings)(nil)
