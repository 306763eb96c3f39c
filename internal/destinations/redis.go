package destinations

import (
	"errors"
	"time"

	redislogging "github.com/redis/go-redis/v9/logging"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/redis"
	"github.com/notifyd/notifyd/internal/config"
)

// redisSettings are the settings of the type "redis".
type redisSettings struct {
	redis.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches sent at the same time, each on its own connection. Only 1 keeps the order of the events."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events sent in one batch. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one batch, whatever happens; above 'connect_timeout', 'write_timeout', 'read_timeout' and 'wait_timeout' together."`

	baseDir string
}

func newRedisSettings(baseDir string) *redisSettings {
	lane := redis.DefaultLane()
	return &redisSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Batch: lane.Batch, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *redisSettings) Validate() error {
	return errors.Join(checkTimeout(s.Timeout, s.Within(), "all other timeouts together"), tryOpen(s))
}

// Effective implements config.Effective.
func (s *redisSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *redisSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	// The library prints a line for each connection that it cannot make. The
	// relay reports once that a destination is down.
	redislogging.Disable()
	return redis.New(s.Config, append(options, handlers.WithBaseDir(s.baseDir))...)
}

var _ destination = (*redisSettings)(nil)
