package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/slack"
	"github.com/notifyd/notifyd/internal/config"
)

// slackSettings are the settings of the type "slack".
type slackSettings struct {
	slack.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Messages posted at the same time. More than one helps with several channels, and loses the order."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one message, waiting for its turn included; above 'request_timeout'."`

	baseDir string
}

func newSlackSettings(baseDir string) *slackSettings {
	lane := slack.DefaultLane()
	return &slackSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *slackSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.Within(), "request_timeout"), tryOpen(s))
}

// Effective implements config.Effective.
func (s *slackSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *slackSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	return slack.New(s.Config, append(options, handlers.WithBaseDir(s.baseDir))...)
}

var _ destination = (*slackSettings)(nil)
