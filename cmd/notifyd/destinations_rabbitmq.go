package main

import (
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/field"
)

// rabbitmqSettings are the settings of the type "rabbitmq".
type rabbitmqSettings struct {
	rabbitmq.Config
	// One batch at a time keeps the order of the events, through an outage too,
	// and more at a time are slower: they compete for the broker's one reader of
	// the connection.
	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Batches published at the same time. Only 1 keeps the order of the events."`
	Batch       int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events published before their confirmations are waited for. Nothing waits for a batch to fill."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time that one batch may take; above connect_timeout and confirm_timeout together."`

	baseDir string
	log     *slog.Logger // nil while the configuration is only read
}

func newRabbitMQSettings(baseDir string) config.Settings {
	return &rabbitmqSettings{baseDir: baseDir, Concurrency: 1, Batch: 500, Timeout: time.Minute}
}

// Validate tries to make the handler: that reads the certificates, and contacts
// nothing.
func (s *rabbitmqSettings) Validate() error {
	var err error
	if within := s.Within(); s.Timeout <= within {
		// What the destination is to blame for would count as attempts.
		err = field.Errorf("timeout", "must be above connect_timeout and confirm_timeout together, %v", within)
	}
	if err = errors.Join(err, s.Config.Validate()); err != nil {
		return err
	}
	h, err := s.open()
	if err != nil {
		return err
	}
	return h.(io.Closer).Close() //nolint:forcetypeassert // rabbitmq.Handler is one
}

func (s *rabbitmqSettings) open() (delivery.Handler, error) {
	options := []rabbitmq.Option{rabbitmq.WithBaseDir(s.baseDir)}
	if s.log != nil {
		options = append(options, rabbitmq.WithLogger(s.log))
	}
	return rabbitmq.New(s.Config, options...)
}

// logTo implements logging.
func (s *rabbitmqSettings) logTo(log *slog.Logger) { s.log = log }

var (
	_ destination = (*rabbitmqSettings)(nil)
	_ logging     = (*rabbitmqSettings)(nil)
)
