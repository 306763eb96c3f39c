// Package destinations has the settings of each destination type that a configuration file can name, and opens the
// handlers that they describe. A type is a file here and a line in [Registry].
package destinations

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/handlers/file"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/field"
)

// destination is the product of every entry of [Registry]: settings that can
// open the handler they describe.
type destination interface {
	config.Settings
	config.Effective
	// open makes the handler, without a connection. The caller closes it, if it is
	// an io.Closer.
	open(options ...handlers.Option) (delivery.Handler, error)
}

// Open returns the handler of a destination. It opens no connection. The handler logs to log, with the destination's
// name. If the handler is an io.Closer, the caller closes it. Settings that [Registry] does not know are an error.
func Open(d config.Destination, log *slog.Logger) (delivery.Handler, error) {
	s, ok := d.Settings.(destination)
	if !ok {
		return nil, fmt.Errorf("type %q cannot be opened", d.Type)
	}
	return s.open(handlers.WithLogger(log.With("destination", d.Name)))
}

// tryOpen makes the handler, which reads the files that it needs, and closes it.
func tryOpen(d destination) error {
	h, err := d.open()
	if err != nil {
		return err
	}
	if closer, ok := h.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// checkTimeout wants a timeout with room for the handler's own timeouts, by the named
// settings: faults of the destination would count as attempts otherwise.
func checkTimeout(timeout, within time.Duration, settings string) error {
	if timeout > within {
		return nil
	}
	return field.Errorf("timeout", "must be longer than %s (%v), such as %v", settings, within, 2*within)
}

// Registry lists the destination types by the word in a destination's "type".
// Files that a configuration names are relative to baseDir; lines of the type
// "log" go to stdout or stderr.
func Registry(baseDir string, stdout, stderr io.Writer) config.Registry {
	return config.Registry{
		"email":       func() config.Settings { return newEmailSettings(baseDir) },
		"eventbridge": func() config.Settings { return newEventBridgeSettings(baseDir) },
		"file":        func() config.Settings { return newFileSettings(baseDir) },
		"kafka":       func() config.Settings { return newKafkaSettings(baseDir) },
		"kinesis":     func() config.Settings { return newKinesisSettings(baseDir) },
		"log":         func() config.Settings { return &logSettings{Output: "stdout", stdout: stdout, stderr: stderr} },
		"rabbitmq":    func() config.Settings { return newRabbitMQSettings(baseDir) },
		"webhook":     func() config.Settings { return newWebhookSettings(baseDir) },
		"slack":       func() config.Settings { return newSlackSettings(baseDir) },
		"sns":         func() config.Settings { return newSNSSettings(baseDir) },
		"sqs":         func() config.Settings { return newSQSSettings(baseDir) },
		"nats":        func() config.Settings { return newNATSSettings(baseDir) },
		"redis":       func() config.Settings { return newRedisSettings(baseDir) },
		"pubsub":      func() config.Settings { return newPubSubSettings(baseDir) },
		"postgres":    func() config.Settings { return newPostgresSettings() },
	}
}

// emailSettings are the settings of the type "email".
type emailSettings struct {
	email.Config
	// Deliveries at once, each with a connection unless connections is set; and time
	// for connecting and sending together.
	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Mails sent at the same time, each on its own connection."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time for one mail, connecting included."`

	baseDir string
}

func newEmailSettings(baseDir string) *emailSettings {
	lane := email.DefaultLane()
	return &emailSettings{baseDir: baseDir, Concurrency: lane.Concurrency, Timeout: lane.Timeout}
}

// Validate implements config.Settings.
func (s *emailSettings) Validate() error { return tryOpen(s) }

// Effective implements config.Effective.
func (s *emailSettings) Effective() config.Settings {
	c := *s
	if c.Connections == 0 {
		c.Connections = max(s.Concurrency, 1)
	}
	c.Config = c.WithDefaults()
	return &c
}

func (s *emailSettings) open(options ...handlers.Option) (delivery.Handler, error) {
	cfg := s.Config
	if cfg.Connections == 0 {
		cfg.Connections = max(s.Concurrency, 1)
	}
	return email.New(cfg, append(options, handlers.WithBaseDir(s.baseDir))...)
}

// logSettings are the settings of the type "log".
type logSettings struct {
	file.LogConfig
	Output string `yaml:"output" jsonschema:"enum=stdout,enum=stderr" jsonschema_description:"Where the lines go."`

	stdout, stderr io.Writer
}

// Validate has nothing to add to the rules of the tags.
func (s *logSettings) Validate() error { return s.LogConfig.Validate() }

// Effective implements config.Effective.
func (s *logSettings) Effective() config.Settings {
	c := *s
	c.LogConfig = c.WithDefaults()
	return &c
}

func (s *logSettings) open(...handlers.Option) (delivery.Handler, error) {
	out := s.stdout
	if s.Output == "stderr" {
		out = s.stderr
	}
	if out == nil {
		out = os.Stdout
	}
	return file.NewLog(s.LogConfig, file.WithWriter(out))
}

var (
	_ destination = (*emailSettings)(nil)
	_ destination = (*logSettings)(nil)
)

// CloseAll closes the closers of handlers, one after the other, and joins their errors.
func CloseAll(closers []io.Closer) error {
	var errs []error
	for _, c := range closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
