package main

import (
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/email"
	logsink "github.com/notifyd/notifyd/handlers/log"
	"github.com/notifyd/notifyd/internal/config"
)

// destination is what every entry of the registry makes: settings that can
// open the handler they describe.
type destination interface {
	config.Settings
	// open makes the handler, without contacting anything. Whoever opens it
	// closes it, if it is an io.Closer.
	open() (delivery.Handler, error)
}

// logging is implemented by a destination whose handler has something to say
// about itself, such as that it has lost its connection.
type logging interface {
	// logTo comes before open.
	logTo(log *slog.Logger)
}

// registry lists the destination types by the word in a destination's "type".
// Files that a configuration names are relative to baseDir; lines of the type
// "log" go to stdout or stderr.
func registry(baseDir string, stdout, stderr io.Writer) config.Registry {
	return config.Registry{
		"email": func() config.Settings {
			return &emailSettings{baseDir: baseDir, Concurrency: 4, Timeout: 90 * time.Second}
		},
		"kafka":    func() config.Settings { return newKafkaSettings(baseDir) },
		"log":      func() config.Settings { return &logSettings{Output: "stdout", stdout: stdout, stderr: stderr} },
		"rabbitmq": func() config.Settings { return newRabbitMQSettings(baseDir) },
		"webhook":  func() config.Settings { return newWebhookSettings(baseDir) },
		"slack":    func() config.Settings { return newSlackSettings(baseDir) },
		"sqs":      func() config.Settings { return newSQSSettings(baseDir) },
		"nats":     func() config.Settings { return newNATSSettings(baseDir) },
		"redis":    func() config.Settings { return newRedisSettings(baseDir) },
	}
}

// emailSettings are the settings of the type "email".
type emailSettings struct {
	email.Config
	// Deliveries at once, each with a connection unless connections says
	// otherwise; and time for connecting and sending together.
	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Mails sent at the same time, each on a connection of its own."`
	Timeout     time.Duration `yaml:"timeout" jsonschema_description:"Longest time that one mail may take, connecting included."`

	baseDir string
}

// Validate tries to make the handler: that reads the template files, and
// contacts nothing.
func (s *emailSettings) Validate() error {
	if err := s.Config.Validate(); err != nil {
		return err
	}
	h, err := s.open()
	if err != nil {
		return err
	}
	return h.(io.Closer).Close() //nolint:forcetypeassert // email.Handler is one
}

func (s *emailSettings) open() (delivery.Handler, error) {
	cfg := s.Config
	if cfg.Connections == 0 {
		cfg.Connections = max(s.Concurrency, 1)
	}
	return email.New(cfg, email.WithBaseDir(s.baseDir))
}

// logSettings are the settings of the type "log".
type logSettings struct {
	logsink.Config
	Output string `yaml:"output" jsonschema:"enum=stdout,enum=stderr" jsonschema_description:"Where the lines go."`

	stdout, stderr io.Writer
}

// Validate has nothing to add to what the tags say.
func (s *logSettings) Validate() error { return s.Config.Validate() }

func (s *logSettings) open() (delivery.Handler, error) {
	out := s.stdout
	if s.Output == "stderr" {
		out = s.stderr
	}
	if out == nil {
		out = os.Stdout
	}
	return logsink.New(s.Config, logsink.WithWriter(out))
}

var (
	_ destination = (*emailSettings)(nil)
	_ destination = (*logSettings)(nil)
)
