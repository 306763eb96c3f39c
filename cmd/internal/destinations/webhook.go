package destinations

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/field"
)

// webhookSettings are the settings of the type "webhook".
type webhookSettings struct {
	Settings[webhook.Config, webhookLane]
}

// webhookLane has the settings of a lane for the type "webhook".
type webhookLane struct {
	// Requests under way at the same time.
	Concurrency int `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000"`

	// Most events in one request, with `batch_format`. Nothing waits for a batch to
	// fill.
	Batch int `yaml:"batch" jsonschema:"minimum=1,maximum=100000"`

	// Longest time for the whole delivery, waiting for its turn included; above
	// `request_timeout`.
	Timeout time.Duration `yaml:"timeout"`
}

// Validate implements config.Settings.
func (s *webhookSettings) Validate() error {
	if err := s.Settings.Validate(); err != nil {
		return err
	}

	perSecond := s.Config.HostRateLimit
	if perSecond <= 0 {
		return nil
	}

	// All that are under way may come for a turn at once.
	wait := s.Lane.Timeout - s.Config.Within()
	turns := max(wait.Seconds()*perSecond, 1)
	if float64(s.Lane.Concurrency) > turns {
		return field.Errorf("concurrency",
			"of %d is too much for host_rate_limit: only %d requests get their turn in the %v between request_timeout and timeout, "+
				"so set concurrency: %d, or a longer timeout", s.Lane.Concurrency, int(turns), wait, int(turns))
	}
	return nil
}

func openWebhook(cfg webhook.Config, options ...handlers.Option) (delivery.Handler, error) {
	if cfg.BatchFormat != "" {
		return webhook.NewBatch(cfg, options...)
	}
	return webhook.New(cfg, options...)
}
