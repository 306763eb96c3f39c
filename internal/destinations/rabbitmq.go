package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/internal/config"
)

// rabbitmqSettings are the settings of the type "rabbitmq".
type rabbitmqSettings struct {
	rabbitmq.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches published at the same time. Only 1 keeps the order of the events."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events published before their confirmations are waited for. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch; above 'connect_timeout' and 'confirm_timeout' together."`

	baseDir string
}

func newRabbitMQSettings(baseDir string) *rabbitmqSettings {
	lane := rabbitmq.DefaultLane()
	return &rabbitmqSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Batch: lane.Batch, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *rabbitmqSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.Within(), "connect_timeout and confirm_timeout together"), tryOpen(s))
}

// Effective implements config.Effective.
func (s *rabbitmqSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *rabbitmqSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	return rabbitmq.New(s.Config, append(options, handlers.WithBaseDir(s.baseDir))...)
}

var _ destination = (*rabbitmqSettings)(nil)
