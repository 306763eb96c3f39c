package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/sns"
	"github.com/notifyd/notifyd/internal/config"
)

// snsSettings are the settings of the type "sns".
type snsSettings struct {
	sns.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Batches sent at the same time. More than one is faster, and loses the order."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, which is sent in requests of up to ten messages; above 'request_timeout'."`

	baseDir string
}

func newSNSSettings(baseDir string) *snsSettings {
	lane := sns.DefaultLane()
	return &snsSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *snsSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.WithDefaults().RequestTimeout, "request_timeout"), tryOpen(s))
}

// Effective implements config.Effective.
func (s *snsSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *snsSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	return sns.New(s.Config, append(options, handlers.WithBaseDir(s.baseDir))...)
}

var _ destination = (*snsSettings)(nil)
