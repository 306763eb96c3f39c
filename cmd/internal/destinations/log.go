package destinations

import (
	"io"
	"os"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/file"
)

// logSettings are the settings of the type "log".
type logSettings struct {
	file.LogConfig

	// Where the lines go.
	Output string `yaml:"output" enum:"stdout,stderr"`

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
