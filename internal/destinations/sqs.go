package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/sqs"
	"github.com/notifyd/notifyd/internal/config"
)

// sqsSettings are the settings of the type "sqs".
type sqsSettings struct {
	sqs.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Batches sent at the same time. More than one is faster, and loses the order."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, which is sent in requests of up to ten messages; above 'request_timeout'."`

	baseDir string
}

func newSQSSettings(baseDir string) *sqsSettings {
	lane := sqs.DefaultLane()
	return &sqsSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *sqsSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.WithDefaults().RequestTimeout, "request_timeout"), tryOpen(s))
}

// Effective implements config.Effective.
func (s *sqsSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *sqsSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	return sqs.New(s.Config, append(options, handlers.WithBaseDir(s.baseDir))...)
}

var _ destination = (*sqsSettings)(nil)
