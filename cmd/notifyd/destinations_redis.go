package main

import (
	"cmp"
	"errors"
	"io"
	"time"

	redislogging "github.com/redis/go-redis/v9/logging"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/redis"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/field"
)

// redisSettings are the settings of the type "redis".
type redisSettings struct {
	redis.Config
	// One batch at a time keeps the order of the events, through an outage too.
	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches sent at the same time, each on a connection of its own. Only 1 keeps the order of the events."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events sent in one go. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time that one batch may take; above connect_timeout, write_timeout, read_timeout and wait_timeout together."`

	baseDir string
}

// newRedisSettings has the defaults. The timeout is there for the case that the
// handler does not keep to its own.
func newRedisSettings(baseDir string) config.Settings {
	return &redisSettings{baseDir: baseDir, Concurrency: 1, Batch: 1000, Timeout: time.Minute}
}

// Validate tries to make the handler: that reads the certificates, and contacts
// nothing.
func (s *redisSettings) Validate() error {
	const each = 5 * time.Second // what the handler takes where nothing is set
	within := cmp.Or(s.ConnectTimeout, each) + cmp.Or(s.WriteTimeout, each) + cmp.Or(s.ReadTimeout, each) + s.WaitTimeout
	var err error
	if s.Timeout <= within {
		// What the destination is to blame for would count as attempts.
		err = field.Errorf("timeout", "must be above connect_timeout, write_timeout, read_timeout and wait_timeout together, such as %v", 2*within)
	}
	if err = errors.Join(err, s.Config.Validate()); err != nil {
		return err
	}
	h, err := s.open()
	if err != nil {
		return err
	}
	return h.(io.Closer).Close() //nolint:forcetypeassert // redis.Handler is one
}

func (s *redisSettings) open() (delivery.Handler, error) {
	// The library prints a line for each connection that it cannot make. The
	// relay says once that a destination is down.
	redislogging.Disable()
	return redis.New(s.Config, redis.WithBaseDir(s.baseDir))
}

var _ destination = (*redisSettings)(nil)
