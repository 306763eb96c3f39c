package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/postgres"
	"github.com/notifyd/notifyd/internal/config"
)

// postgresSettings are the settings of the type "postgres".
type postgresSettings struct {
	postgres.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches written at the same time, each on its own connection. Only 1 keeps the order of the events."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events written in one statement. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, whatever happens; above 'request_timeout'."`
}

func newPostgresSettings() *postgresSettings {
	lane := postgres.DefaultLane()
	return &postgresSettings{Concurrency: lane.Concurrency, Batch: lane.Batch, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *postgresSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.Within(), "request_timeout"), tryOpen(s))
}

// Effective implements config.Effective.
func (s *postgresSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *postgresSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	return postgres.New(s.Config, options...)
}

var _ destination = (*postgresSettings)(nil)
