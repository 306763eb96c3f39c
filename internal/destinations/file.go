package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	filesink "github.com/notifyd/notifyd/handlers/file"
	"github.com/notifyd/notifyd/internal/config"
)

// fileSettings are the settings of the type "file".
type fileSettings struct {
	filesink.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches handed over at the same time. They are written one after the other."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events written at once, with one 'fsync' per file. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch; above the 20 s for which it waits for locks."`

	baseDir string
}

func newFileSettings(baseDir string) *fileSettings {
	lane := filesink.DefaultLane()
	return &fileSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Batch: lane.Batch, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *fileSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.Within(), "the wait for locks"), tryOpen(s))
}

// Effective implements config.Effective: nothing has a default that depends on something.
func (s *fileSettings) Effective() config.Settings { return s }

func (s *fileSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	return filesink.New(s.Config, append(options, handlers.WithBaseDir(s.baseDir))...)
}

var _ destination = (*fileSettings)(nil)
