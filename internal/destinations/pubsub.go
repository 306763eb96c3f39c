package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/pubsub"
	"github.com/notifyd/notifyd/internal/config"
)

// pubsubSettings are the settings of the type "pubsub".
type pubsubSettings struct {
	pubsub.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Batches sent at the same time. More than one helps where answers take long, and loses the order."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, which is sent in a request per ordering key; above 'request_timeout'."`

	baseDir string
}

func newPubSubSettings(baseDir string) *pubsubSettings {
	lane := pubsub.DefaultLane()
	return &pubsubSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *pubsubSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.Within(), "request_timeout"), tryOpen(s))
}

// Effective implements config.Effective.
func (s *pubsubSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *pubsubSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	return pubsub.New(s.Config, append(options, handlers.WithBaseDir(s.baseDir))...)
}

var _ destination = (*pubsubSettings)(nil)
