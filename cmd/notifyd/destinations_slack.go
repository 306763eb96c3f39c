package main

import (
	"io"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/slack"
	"github.com/notifyd/notifyd/internal/field"
)

// slackSettings are the settings of the type "slack".
type slackSettings struct {
	slack.Config
	// One message at a time is what one channel takes anyway, and keeps them in
	// order. Timeout has room for the turns that deliveries wait for.
	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Messages posted at the same time. More than one is of use with several channels."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time that one message may take, waiting for its turn included."`

	baseDir string
}

func newSlackSettings(baseDir string) *slackSettings {
	return &slackSettings{baseDir: baseDir, Concurrency: 1, Timeout: time.Minute}
}

// Validate tries to make the handler, which contacts nothing.
func (s *slackSettings) Validate() error {
	h, err := s.open()
	if err != nil {
		return err
	}
	limit := s.RequestTimeout
	if limit == 0 {
		limit = slack.DefaultRequestTimeout
	}
	if limit >= s.Timeout {
		return field.Errorf("timeout", "must be longer than request_timeout (%v), which is only a part of it", limit)
	}
	return h.(io.Closer).Close() //nolint:forcetypeassert // slack.Handler is one
}

func (s *slackSettings) open() (delivery.Handler, error) {
	return slack.New(s.Config, slack.WithBaseDir(s.baseDir))
}

var _ destination = (*slackSettings)(nil)
