package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/kinesis"
	"github.com/notifyd/notifyd/internal/config"
)

// kinesisSettings are the settings of the type "kinesis".
type kinesisSettings struct {
	kinesis.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Batches sent at the same time. More than one is faster, and loses the order."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events sent in one batch; more than 500 are several requests. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, which is sent in requests of up to 500 records; above 'request_timeout'."`

	baseDir string
}

func newKinesisSettings(baseDir string) *kinesisSettings {
	lane := kinesis.DefaultLane()
	return &kinesisSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Batch: lane.Batch, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *kinesisSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.WithDefaults().RequestTimeout, "request_timeout"), tryOpen(s))
}

// Effective implements config.Effective.
func (s *kinesisSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *kinesisSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	return kinesis.New(s.Config, append(options, handlers.WithBaseDir(s.baseDir))...)
}

var _ destination = (*kinesisSettings)(nil)
