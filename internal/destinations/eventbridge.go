package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/eventbridge"
	"github.com/notifyd/notifyd/internal/config"
)

// eventbridgeSettings are the settings of the type "eventbridge".
type eventbridgeSettings struct {
	eventbridge.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Batches sent at the same time."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, which is sent in requests of up to ten events; above 'request_timeout'."`

	baseDir string
}

func newEventBridgeSettings(baseDir string) *eventbridgeSettings {
	lane := eventbridge.DefaultLane()
	return &eventbridgeSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *eventbridgeSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.WithDefaults().RequestTimeout, "request_timeout"), tryOpen(s))
}

// Effective implements config.Effective.
func (s *eventbridgeSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *eventbridgeSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	return eventbridge.New(s.Config, append(options, handlers.WithBaseDir(s.baseDir))...)
}

var _ destination = (*eventbridgeSettings)(nil)
