package destinations

import (
	"errors"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/field"
)

// webhookSettings are the settings of the type "webhook".
type webhookSettings struct {
	webhook.Config

	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Requests under way at the same time."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events in one request, with 'batch_format'. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for the whole delivery, waiting for its turn included; above 'request_timeout'."`

	baseDir string
}

func newWebhookSettings(baseDir string) *webhookSettings {
	lane := webhook.DefaultLane()
	return &webhookSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Batch: lane.Batch, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *webhookSettings) Validate() error {
	within := s.Within()
	if err := errors.Join(checkTimeout(s.Timeout, within, "request_timeout"), tryOpen(s)); err != nil {
		return err
	}
	// All that are under way may come for a turn at once.
	if turns := (s.Timeout - within).Seconds() * s.HostRateLimit; s.HostRateLimit > 0 && float64(s.Concurrency) > max(turns, 1) {
		return field.Errorf("concurrency", "of %d is too much for host_rate_limit: only %d requests get their turn in the %v between request_timeout and timeout, "+
			"so set concurrency: %d, or a longer timeout", s.Concurrency, int(max(turns, 1)), s.Timeout-within, int(max(turns, 1)))
	}
	return nil
}

// Effective implements config.Effective.
func (s *webhookSettings) Effective() config.Settings {
	c := *s
	c.Config = c.WithDefaults()
	return &c
}

func (s *webhookSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	options = append(options, handlers.WithBaseDir(s.baseDir))
	if s.BatchFormat != "" {
		return webhook.NewBatch(s.Config, options...)
	}
	return webhook.New(s.Config, options...)
}

var _ destination = (*webhookSettings)(nil)
