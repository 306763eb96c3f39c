package main

import (
	"io"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/field"
)

// webhookSettings are the settings of the type "webhook".
type webhookSettings struct {
	webhook.Config
	// Timeout has room for the turns that deliveries wait for.
	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Requests under way at the same time."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time that one delivery may take, waiting for its turn included."`

	baseDir string
}

func newWebhookSettings(baseDir string) *webhookSettings {
	return &webhookSettings{baseDir: baseDir, Concurrency: 8, Timeout: 30 * time.Second}
}

// Validate tries to make the handler, which contacts nothing.
func (s *webhookSettings) Validate() error {
	h, err := s.open()
	if err != nil {
		return err
	}
	if err := h.(io.Closer).Close(); err != nil { //nolint:forcetypeassert // webhook.Handler is one
		return err
	}
	limit := s.RequestTimeout
	if limit == 0 {
		limit = webhook.DefaultRequestTimeout
	}
	if limit >= s.Timeout {
		return field.Errorf("timeout", "must be longer than request_timeout (%v), which is only a part of it", limit)
	}
	// All that are under way may come for a turn at once.
	if turns := (s.Timeout - limit).Seconds() * s.RateLimit; s.RateLimit > 0 && float64(s.Concurrency) > max(turns, 1) {
		return field.Errorf("concurrency", "of %d is too much for rate_limit: only %d requests get their turn in the %v between request_timeout and timeout, "+
			"so set concurrency: %d, or a longer timeout", s.Concurrency, int(max(turns, 1)), s.Timeout-limit, int(max(turns, 1)))
	}
	return nil
}

func (s *webhookSettings) open() (delivery.Handler, error) {
	return webhook.New(s.Config, webhook.WithBaseDir(s.baseDir))
}

var _ destination = (*webhookSettings)(nil)
